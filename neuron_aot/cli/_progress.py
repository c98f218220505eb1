"""Progress of a compile: a live table on a terminal, one plain line per program elsewhere."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from neuron_aot_runtime.contract.errors import NeuronAotError

from ..compiling import Progress
from ..make import Made
from ..pipeline import Plan
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
        planned=lambda plan, jobs, needs: _output.talk(_planned(plan, jobs, needs)),
        retried=lambda name, error: _output.talk(f"{name}  will be tried again: {error.message}"),
        made=lambda name, made: _output.talk(_made(name, made)),
        failed=lambda name, error: _output.talk(f"{name}  failed: {error.message}"),
    )


def _planned(plan: Plan, jobs: int, needs: dict[str, int]) -> str:
    found, missing = len(plan.found), len(plan.misses)
    lines = [f"{found + missing} programs for {plan.recipe.target}: {found} in the store, {missing} to make"]
    if missing:
        lines[0] += f" with {jobs} job{'s' if jobs > 1 else ''}, each of up to {max(needs.values())} MB (estimate)"
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


@dataclass
class _Row:
    """``memory`` in MB: an estimate until it is made. ``ended``: None while it waits or runs."""

    phase: str
    state: str
    memory: str = ""
    style: str | None = None
    started: float | None = None
    ended: float | None = None
    running: bool = False

    @property
    def time(self) -> str:
        return "" if self.started is None else f"{(self.ended or time.monotonic()) - self.started:.0f} s"


class _Board:
    """One row per program; what does not fit on the screen is what has ended, then what waits."""

    def __init__(self) -> None:
        self.rows: dict[str, _Row] = {}

    def hooks(self, live) -> Progress:
        def planned(plan: Plan, jobs: int, needs: dict[str, int]) -> None:
            live.console.print(_planned(plan, jobs, needs), markup=False)
            for program in plan.grid.programs:
                if program.name in plan.found:
                    self.rows[program.name] = _Row(program.phase, "hit", style="dim", ended=0)
                else:
                    self.rows[program.name] = _Row(program.phase, "waiting", f"~{needs[program.name]} MB")

        def noted(name: str, note: str) -> None:
            row = self.rows[name]
            row.state, row.style, row.running = note, "bold", True
            row.started = row.started or time.monotonic()

        def ended(name: str, state: str, style: str | None, *, again: bool = False) -> _Row:
            row = self.rows[name]
            row.state, row.style, row.running = state, style, False
            row.ended = None if again else time.monotonic()
            return row

        def made(name: str, made: Made) -> None:
            row = ended(name, "compiled" if made.compiled else "hit", "green")
            row.memory = f"{made.record.provenance.peak_memory_mb} MB"
            live.console.print(_made(name, made), markup=False)

        def retried(name: str, error: NeuronAotError) -> None:
            ended(name, "to be tried again", "yellow", again=True).started = None
            live.console.print(f"{name}  will be tried again: {error.message}", style="yellow", markup=False)

        def failed(name: str, error: NeuronAotError) -> None:
            ended(name, "failed", "red")
            live.console.print(f"{name}  failed: {error.message}", style="red", markup=False)

        return Progress(planned=planned, noted=noted, retried=retried, made=made, failed=failed)

    def render(self):
        from rich.table import Table

        table = Table(box=None, pad_edge=False, header_style="bold")
        for column in ("program", "phase", "state", "time", "memory"):
            table.add_column(column, justify="right" if column in ("time", "memory") else "left", no_wrap=True)
        room = max(_output.console().height - 4, 3)
        first = sorted(self.rows, key=lambda name: (not self.rows[name].running, self.rows[name].ended is not None))
        shown = set(first[:room])
        for name, row in self.rows.items():
            if name in shown:
                table.add_row(name, row.phase, row.state, row.time, row.memory, style=row.style)
        if self.rows:
            ended = sum(row.ended is not None for row in self.rows.values())
            table.add_row(f"{ended} of {len(self.rows)} programs")
        return table
