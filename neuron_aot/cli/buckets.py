"""neuron-aot buckets: the grid of programs that a recipe spells."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from . import _output


def buckets_command(
    recipe: Annotated[Path, typer.Argument(help="The recipe, a YAML file.", show_default=False)],
    target: Annotated[str | None, typer.Option(help="The target, instead of the recipe's.")] = None,
    store: Annotated[
        str | None, typer.Option(help="A store: what it holds, and what its past compiles say of the rest.")
    ] = None,
    jobs: Annotated[int | None, typer.Option(min=1, help="Worker processes to estimate for.")] = None,
    json_output: Annotated[bool, typer.Option("--json", help="Print the result as JSON on stdout.")] = False,
) -> None:
    """Show the programs of RECIPE: how much each can pad, what they take, and the shapes that are not made."""
    from ..buckets import describe_grid
    from ..make import default_toolchain
    from ..store import open_existing
    from ._recipe import command_recipe

    opened = open_existing(store) if store is not None else None
    grid = describe_grid(command_recipe(recipe, target=target), opened, default_toolchain(), jobs=jobs)
    if json_output:
        _output.data(grid.as_data())
        return
    rows = []
    for row in grid.rows:
        state = "in the store" if row.in_store else _duration(row.seconds)
        bound = row.bound
        least = f"{bound.least_size} of {bound.least_context}"
        rows.append(
            [row.name, str(row.size), str(row.context), least, f"{bound.padding:.0%}", *([state] if opened else [])]
        )
    columns = ["program", ">size", ">context", ">smallest step", ">pads up to", *(["made in"] if opened else [])]
    _output.table(f"{len(rows)} programs for {grid.target}", columns, rows)
    for drop in grid.dropped:
        print(f"not made   {drop.name}: {drop.reason}")
    held = ", ".join(f"{_output.size(nbytes)} of {name.replace('_', ' ')}" for name, nbytes in grid.memory.items())
    print(f"memory     {held}")
    if opened:
        known = _duration(grid.seconds)
        print(
            f"compile    {known} with {grid.jobs} jobs" + (f", {grid.unknown} programs unknown" if grid.unknown else "")
        )


def _duration(seconds: float | None) -> str:
    if seconds is None:
        return "unknown"
    return f"~{seconds:.0f} s" if seconds < 120 else f"~{seconds / 60:.0f} min"
