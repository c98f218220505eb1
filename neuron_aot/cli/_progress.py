"""Progress of a compile: a live table on a terminal, one plain line per program elsewhere."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

from neuron_aot_runtime.contract.errors import NeuronAotError

from ..make import Made
from ..pipeline import Plan, Progress
from . import _output


@contextmanager
def compile_progress() -> Iterator[Progress]:
    """The Progress to hand to ``compile_recipe``."""
    if not _output.console().is_terminal:
        yield _plain()
        return
    from rich.live import Live

    board = _Board()
    with Live(get_renderable=board.render, console=_output.console(), refresh_per_second=4, transient=True) as live:
        yield board.hooks(live)


def _plain() -> Progress:
    return Progress(
        planned=lambda plan, jobs: _output.talk(_planned(plan, jobs)),
        made=lambda name, made: _output.talk(_made(name, made)),
        failed=lambda name, error: _output.talk(f"{name}  failed: {error.message}"),
    )


def _planned(plan: Plan, jobs: int) -> str:
    found, missing = len(plan.found), len(plan.misses)
    lines = [f"{found + missing} programs for {plan.recipe.target}: {found} in the store, {missing} to make"]
    if missing:
        lines[0] += f" with {jobs} job{'s' if jobs > 1 else ''}"
    lines += [f"  not made: {drop.name}: {drop.reason}" for drop in plan.grid.dropped]
    return "\n".join(lines)


def _made(name: str, made: Made) -> str:
    size = _output.size(made.record.artifact.size)
    if not made.compiled:
        return f"{name}  found in the store by its HLO, {size}"
    took = made.record.provenance
    line = (
        f"{name}  made in {(took.lower_ms + took.generate_ms) / 1000:.1f} s "
        f"(lower {took.lower_ms / 1000:.1f}, generate {took.generate_ms / 1000:.1f}; "
        f"peak memory {took.peak_memory_mb} MB), {size}"
    )
    return line + ("; not reproducible: another writer's bytes differ and were first" if made.adopted else "")


class _Board:
    """What is running now, above it what is done."""

    def __init__(self) -> None:
        self.running: dict[str, tuple[str, float]] = {}
        self.done = self.total = 0

    def hooks(self, live) -> Progress:
        def planned(plan: Plan, jobs: int) -> None:
            self.total = len(plan.misses)
            live.console.print(_planned(plan, jobs), markup=False)

        def noted(name: str, note: str) -> None:
            self.running[name] = (note, self.running.get(name, ("", time.monotonic()))[1])

        def finished(name: str, line: str, style: str | None = None) -> None:
            self.running.pop(name, None)
            self.done += 1
            live.console.print(line, style=style, markup=False)

        def failed(name: str, error: NeuronAotError) -> None:
            finished(name, f"{name}  failed: {error.message}", "red")

        return Progress(
            planned=planned, noted=noted, made=lambda name, made: finished(name, _made(name, made)), failed=failed
        )

    def render(self):
        from rich.table import Table

        rows = Table(box=None, pad_edge=False, show_header=False)
        for name, (note, since) in self.running.items():
            rows.add_row(name, f"{note} …", f"{time.monotonic() - since:.0f} s")
        if self.total:
            rows.add_row(f"{self.done} of {self.total}", "", "")
        return rows
