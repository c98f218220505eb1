"""neuron-aot doctor: the settings and where each came from, the versions, and whether a store can be reached."""

from __future__ import annotations

from typing import Annotated

import typer

from . import _output


def doctor_command(
    url: Annotated[str | None, typer.Argument(help="A store to try.", show_default=False)] = None,
    json_output: Annotated[bool, typer.Option("--json", help="Print the result as JSON on stdout.")] = False,
) -> int:
    """Show the settings in force, and try a store step by step."""
    from ..store.doctor import settings_in_force, try_store, versions

    settings, steps = settings_in_force(), try_store(url) if url else []
    if json_output:
        _output.data(
            {
                "settings": [{"name": item.name, "value": item.value, "source": item.source} for item in settings],
                "versions": versions(),
                "steps": [
                    {"step": step.name, "ok": step.error is None, "said": step.said}
                    | (step.error.as_dict() if step.error else {})
                    for step in steps
                ],
            }
        )
    else:
        rows = [[item.name, item.value or "-", item.source] for item in settings]
        _output.table("settings", ["name", "value", "from"], rows)
        _output.table("versions", ["package", "version"], [list(item) for item in versions().items()])
        if steps:
            rows = [[step.name, "failed" if step.error else "ok", step.said] for step in steps]
            _output.table(f"{url}", ["step", "", "said"], rows)
    for step in steps:
        if step.error is not None:
            _output.talk(f"{step.name}: {step.error}", style="red")
    return next((step.error.exit_code for step in steps if step.error and step.needed), 0)
