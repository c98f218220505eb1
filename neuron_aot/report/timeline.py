"""When a bundle's programs were made, from their provenance records.

A record has the end of a program's compile and how long that took. While a command compiles, its workers are busy, so a
pause in which nothing is made separates two commands; what an earlier one made, the latest found in the store.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from neuron_aot_runtime.store import Provenance

from ..units import duration
from .page import Span, Timeline, share

#: Seconds; a worker that starts imports torch first, which no record counts.
_PAUSE = 120

_TICKS = 4


@dataclass(frozen=True)
class Making:
    """One program's compile. ``start``, ``end``: seconds since the epoch."""

    name: str
    start: float
    end: float
    made: Provenance


def makings(records: Iterable[tuple[str, Provenance]]) -> list[Making]:
    """By start; a record whose date is none is left out."""
    found = []
    for name, made in records:
        try:
            end = datetime.fromisoformat(made.built_at).timestamp()
        except ValueError:
            continue
        found.append(Making(name, end - (made.lower_ms + made.generate_ms) / 1000, end, made))
    return sorted(found, key=lambda item: (item.start, item.name))


def runs(items: Iterable[Making]) -> list[list[Making]]:
    """The compiles that made them, the latest first. ``items`` by start."""
    found: list[list[Making]] = []
    busy_until = float("-inf")
    for item in items:
        if item.start > busy_until + _PAUSE:
            found.append([])
        found[-1].append(item)
        busy_until = max(busy_until, item.end)
    return found[::-1]


def timelines(records: Iterable[tuple[str, Provenance]]) -> list[Timeline]:
    """One for each compile, the latest first."""
    return [_timeline(run, hit=index > 0) for index, run in enumerate(runs(makings(records)))]


def _timeline(run: list[Making], *, hit: bool) -> Timeline:
    first, last = run[0].start, max(item.end for item in run)
    whole, work = last - first, sum(item.end - item.start for item in run)
    began = (datetime.fromtimestamp(0, UTC) + timedelta(seconds=round(first))).strftime("%Y-%m-%d %H:%M:%S UTC")
    peak = max(item.made.peak_memory_mb for item in run)
    spans = [
        Span(
            label=item.name,
            start=share(item.start - first, whole),
            lower=share(item.made.lower_ms / 1000, whole),
            generate=share(item.made.generate_ms / 1000, whole),
            text=f"{duration(item.end - item.start)}, peak {item.made.peak_memory_mb} MB",
        )
        for item in run
    ]
    told = f"{len(run)} programs in {duration(whole)}, {duration(work)} of work, peak memory of a program {peak} MB"
    return Timeline(
        title=f"Compile of {began}",
        note=f"{told}. {'Hits: found in the store by the latest compile.' if hit else 'Compiled by the latest compile.'}",
        hit=hit,
        ticks=tuple((tick / _TICKS, duration(whole * tick / _TICKS)) for tick in range(_TICKS + 1)),
        spans=tuple(spans),
    )
