"""A recipe's grid, described: bounds, memory, what a store holds of it and what the rest will take."""

from __future__ import annotations

from dataclasses import asdict, dataclass

from .estimates import estimate, read_samples
from .make import Toolchain
from .pipeline import make_plan, plan_shapes
from .plan import ReasonedDrop
from .plan.bounds import Bound, device_bytes, padding_bounds
from .recipe import Recipe
from .schedule.local import default_jobs
from .store import Store


@dataclass(frozen=True, kw_only=True)
class Row:
    """One program. ``in_store``: None without a store; ``seconds``: the estimate of its compile, None when unknown."""

    name: str
    phase: str
    size: int
    context: int
    bound: Bound
    in_store: bool | None
    seconds: float | None


@dataclass(frozen=True, kw_only=True)
class DescribedGrid:
    """``memory``: bytes by what holds them. ``seconds``: to compile with ``jobs`` workers; ``unknown`` not counted."""

    target: str
    rows: tuple[Row, ...]
    dropped: tuple[ReasonedDrop, ...]
    memory: dict[str, int]
    jobs: int
    seconds: float | None
    unknown: int

    def as_data(self) -> dict:
        """For ``--json``."""
        return {
            "target": self.target,
            "programs": [asdict(row) for row in self.rows],
            "dropped": [asdict(drop) for drop in self.dropped],
            "memory": self.memory,
            "jobs": self.jobs,
            "estimated_seconds": self.seconds,
            "unknown": self.unknown,
        }


def describe_grid(recipe: Recipe, store: Store | None, toolchain: Toolchain, *, jobs: int | None) -> DescribedGrid:
    """Describe every program of ``recipe``. Raises RecipeError, UsageError (target), StoreError."""
    shapes = plan_shapes(recipe, toolchain)
    grid = shapes.grid
    bounds = padding_bounds(grid.programs)
    found = set(make_plan(recipe, store, toolchain).found) if store else set()
    samples = read_samples(store, recipe.target, shapes.layout) if store else []
    rows = []
    for program in grid.programs:
        held = program.name in found
        guess = None if held else estimate(samples, program.phase, program.bucket)
        rows.append(
            Row(
                name=program.name,
                phase=program.phase,
                size=program.bucket.size,
                context=program.bucket.context,
                bound=bounds[program.name],
                in_store=held if store else None,
                seconds=0.0 if held else (guess and guess.seconds),
            )
        )
    jobs = jobs or default_jobs()
    known = [row.seconds for row in rows if row.seconds is not None]
    return DescribedGrid(
        target=recipe.target,
        rows=tuple(rows),
        dropped=grid.dropped,
        memory=device_bytes(shapes.layout),
        jobs=jobs,
        # No schedule ends before the longest program or before the work is shared out evenly.
        seconds=max(max(known), sum(known) / jobs) if known else None,
        unknown=len(rows) - len(known),
    )
