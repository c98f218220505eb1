"""Reading a request file: CSV with the columns timestamp, prompt_tokens, output_tokens (others are ignored).

Timestamps are ISO dates or seconds; only their differences count. Rows need not be in order.
"""

from __future__ import annotations

import csv
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

import numpy as np
from neuron_aot_runtime.contract.errors import UsageError

COLUMNS = ("timestamp", "prompt_tokens", "output_tokens")

#: The year 5138, since 1970; today in milliseconds is 17 times as much.
_MOST_SECONDS = 1e11

#: So many requests over the limit are outliers that a server refuses; more mean that the limit is not this traffic's.
OUTLIER_SHARE = 0.01


@dataclass(frozen=True, eq=False)
class Traffic:
    """Requests by arrival. ``arrivals_R`` float64, seconds since the first; ``prompts_R``, ``outputs_R`` int64, tokens.

    ``num_clipped``: requests over ``max_model_len``, counted as long as the limit.
    """

    arrivals_R: np.ndarray
    prompts_R: np.ndarray
    outputs_R: np.ndarray
    num_clipped: int = 0

    def __len__(self) -> int:
        return len(self.prompts_R)

    @property
    def seconds(self) -> float:
        """From the first arrival to the last."""
        return float(self.arrivals_R[-1] - self.arrivals_R[0])

    def halves(self) -> tuple[Traffic, Traffic]:
        """The first and the second half of the requests, by arrival."""
        middle = len(self) // 2
        return self._part(slice(0, middle)), self._part(slice(middle, None))

    def share(self, index: int, shares: int) -> Traffic:
        """Every ``shares``-th request, from the one at ``index``; arrivals stay as they are."""
        return self._part(slice(index, None, shares))

    def _part(self, part: slice) -> Traffic:
        return Traffic(self.arrivals_R[part], self.prompts_R[part], self.outputs_R[part])


def read_traffic(path: Path, *, max_model_len: int) -> Traffic:
    """Read and check a request file. Requests longer than ``max_model_len`` tokens are cut to it, if they are few.

    Raises UsageError: no file, wrong columns, a malformed row (with its line), fewer than two requests, or more than
    OUTLIER_SHARE of the requests over the limit.
    """
    rows = _read_rows(path)
    wanted = "two requests or more: one says nothing about how they spread"
    if len(rows) < 2:
        message = f"{path} holds no request" if not rows else f"{path} holds a single request"
        raise UsageError(message, wanted=wanted, found=str(len(rows)), next_command="give a longer record of requests")
    rows.sort(key=lambda row: row[0])
    arrivals_R = np.array([row[0] for row in rows])
    prompts_R, outputs_R = (np.array([row[column] for row in rows], np.int64) for column in (1, 2))
    over_R = prompts_R + outputs_R > max_model_len
    num_over = int(over_R.sum())
    if num_over > OUTLIER_SHARE * len(rows):
        longest = int((prompts_R + outputs_R).max())
        raise UsageError(
            f"{path}: {num_over} of {len(rows)} requests are longer than max_model_len",
            wanted=f"prompt and output within {max_model_len} tokens (up to {OUTLIER_SHARE:.0%} may be longer)",
            found=f"up to {longest} tokens",
            next_command=f"plan with --max-model-len {longest}, or take those requests out of the file",
        )
    # One token of output is left to a prompt as long as the limit: a server refuses it otherwise.
    prompts_R = np.minimum(prompts_R, max_model_len)
    outputs_R = np.minimum(outputs_R, np.maximum(max_model_len - prompts_R, 1))
    return Traffic(arrivals_R - arrivals_R[0], prompts_R, outputs_R, num_over)


def _read_rows(path: Path) -> list[tuple[float, int, int]]:
    try:
        with path.open(newline="", encoding="utf-8-sig") as file:
            return _parse(path, csv.reader(file))
    except FileNotFoundError:
        raise UsageError(f"there is no request file {path}", next_command="give --traffic a CSV file") from None
    except OSError as error:
        raise UsageError(f"cannot read {path}: {error.strerror}") from error
    except (UnicodeDecodeError, csv.Error) as error:
        raise UsageError(f"{path} is not a CSV file: {error}") from error


def _parse(path: Path, reader) -> list[tuple[float, int, int]]:
    header = next(reader, None)
    if header is None:
        raise UsageError(
            f"{path} is empty",
            wanted=f"a CSV file with the columns {', '.join(COLUMNS)}",
            next_command="give --traffic a record of requests",
        )
    names = [name.strip() for name in header]
    if missing := [name for name in COLUMNS if name not in names]:
        raise UsageError(
            f"{path} lacks the column{'s' if len(missing) > 1 else ''} {', '.join(missing)}",
            wanted=", ".join(COLUMNS),
            found=", ".join(names),
            next_command="name the columns in the first line",
        )
    places = [names.index(name) for name in COLUMNS]
    rows = []
    for row in reader:
        if row:
            try:
                rows.append(_parse_row(row, places))
            except ValueError as error:
                raise UsageError(
                    f"{path}, line {reader.line_num}: {error}",
                    wanted="timestamp (a date or seconds), prompt_tokens >= 1, output_tokens >= 0",
                    found=",".join(row)[:200],
                    next_command="correct or remove this line",
                ) from None
    return rows


def _parse_row(row: list[str], places: list[int]) -> tuple[float, int, int]:
    if len(row) <= max(places):
        raise ValueError(f"{len(row)} columns are too few")
    timestamp, prompt, output = (row[place].strip() for place in places)
    return _seconds(timestamp), _count("prompt_tokens", prompt, 1), _count("output_tokens", output, 0)


def _seconds(text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        try:
            return datetime.fromisoformat(text).timestamp()
        except (ValueError, OverflowError, OSError):
            raise ValueError(f"timestamp {text!r} is neither a date nor seconds") from None
    if not abs(seconds) < _MOST_SECONDS:  # not a number, infinite, or of another unit
        raise ValueError(f"timestamp {text!r} is not in seconds")
    return seconds


def _count(name: str, text: str, least: int) -> int:
    if not text.isascii() or not text.isdigit() or not least <= int(text) < 1 << 30:
        raise ValueError(f"{name} {text!r} is not a whole number from {least} on")
    return int(text)
