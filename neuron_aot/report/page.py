"""What a report shows, as data: sections of four kinds. ``page.html`` has one macro for each kind.

Shares are numbers from 0 to 1, of whatever the section is about; texts are plain, the template escapes them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeVar

from neuron_aot_runtime.contract.manifest import Bucket


@dataclass(frozen=True)
class Cell:
    """One program of a grid. ``heat`` colours it; ``small`` is a second line."""

    heat: float
    text: str
    small: str
    title: str

    @property
    def hot(self) -> bool:
        """Whether the colour is so strong that text on it must be the other shade."""
        return self.heat > 0.5


@dataclass(frozen=True, kw_only=True)
class Heatmap:
    """``rows``: (bucket size, a cell for each of ``contexts``; None where no program is)."""

    title: str
    note: str
    sizes: str
    contexts: tuple[int, ...]
    rows: tuple[tuple[int, tuple[Cell | None, ...]], ...]
    kind: str = "heatmap"


@dataclass(frozen=True)
class Bar:
    """``share`` of the full width; ``other``: a second, paler one for comparison."""

    label: str
    share: float
    text: str
    other: float | None = None


@dataclass(frozen=True, kw_only=True)
class Bars:
    title: str
    note: str
    bars: tuple[Bar, ...]
    kind: str = "bars"


@dataclass(frozen=True, kw_only=True)
class Span:
    """``start`` and the widths of its two halves (lowering, generating) are shares of the timeline."""

    label: str
    start: float
    lower: float
    generate: float
    text: str


@dataclass(frozen=True, kw_only=True)
class Timeline:
    """``ticks``: (share, text). ``hit``: these programs were found by a later compile."""

    title: str
    note: str
    hit: bool
    ticks: tuple[tuple[float, str], ...]
    spans: tuple[Span, ...]
    kind: str = "timeline"


@dataclass(frozen=True, kw_only=True)
class Table:
    """``numeric``: the columns that are numbers, by place."""

    title: str
    note: str
    columns: tuple[str, ...]
    numeric: tuple[int, ...]
    rows: tuple[tuple[str, ...], ...]
    kind: str = "table"


Section = Heatmap | Bars | Timeline | Table


@dataclass(frozen=True, kw_only=True)
class Page:
    """``facts``: (name, value) pairs at the top."""

    title: str
    subtitle: str
    facts: tuple[tuple[str, str], ...]
    sections: tuple[Section, ...]


class HasBucket(Protocol):
    """A program, of a bundle or of a plan."""

    @property
    def phase(self) -> str: ...
    @property
    def bucket(self) -> Bucket: ...


Item = TypeVar("Item", bound=HasBucket)

#: What a bucket's size counts in each phase.
SIZES = {"prefill": "prompt tokens", "decode": "sequences"}


def heatmaps(programs: Iterable[Item], cell: Callable[[Item], Cell], note: str) -> list[Heatmap]:
    """The grid of each phase: sizes downwards, contexts across."""
    every, maps = list(programs), []
    for phase, counted in SIZES.items():
        held = {(item.bucket.size, item.bucket.context): item for item in every if item.phase == phase}
        contexts = sorted({context for _, context in held})
        rows = [
            (size, tuple(cell(held[size, context]) if (size, context) in held else None for context in contexts))
            for size in sorted({size for size, _ in held})
        ]
        if rows:
            maps.append(
                Heatmap(title=f"Grid: {phase}", note=note, sizes=counted, contexts=tuple(contexts), rows=tuple(rows))
            )
    return maps


def bars(title: str, note: str, amounts: Sequence[tuple[str, float, str]]) -> Bars:
    """(label, amount, text) as bars whose longest fills the width."""
    most = max((amount for _, amount, _ in amounts), default=0)
    made = tuple(Bar(label, share(amount, most), text) for label, amount, text in amounts)
    return Bars(title=title, note=note, bars=made)


def share(amount: float, whole: float) -> float:
    """0 of nothing."""
    return amount / whole if whole else 0.0
