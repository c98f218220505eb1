"""neuron-aot inspect and reproduce: one program from the inside, and as a bug report."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from . import _output


def inspect_command(
    what: Annotated[str, typer.Argument(help="An artifact file, or BUNDLE#PROGRAM.", show_default=False)],
    json_output: Annotated[bool, typer.Option("--json", help="Print the result as JSON on stdout.")] = False,
) -> None:
    """Show a NEFF's header and contents, or a module's operators, dots, bytes and aliases."""
    from .. import inspect

    if "#" in what:
        bundle, name, record = inspect.open_program(what)
        program = bundle.manifest.program(name)
        result = {"program": name, "made_by": record.code_generator}
        result["artifact"] = inspect.inspect_file(bundle.artifact_path(program))
        if "hlo" in record.attachments:
            result["hlo"] = inspect.inspect_hlo(inspect.attachment(bundle, record, "hlo"))
    else:
        result = {"artifact": inspect.inspect_file(Path(what))}
    if json_output:
        _output.data(result)
        return
    for section, content in result.items():
        if not isinstance(content, dict):
            print(f"{section}: {content}")
            continue
        print(f"{section}:")
        for name, value in content.items():
            _show(name, value)


def reproduce_command(
    what: Annotated[str, typer.Argument(help="BUNDLE#PROGRAM.", show_default=False)],
    directory: Annotated[Path, typer.Argument(help="A new or empty directory.", show_default=False)],
    json_output: Annotated[bool, typer.Option("--json", help="Print the result as JSON on stdout.")] = False,
) -> None:
    """Write a program's HLO, its compiler's command line, versions and log: a report without weights or secrets."""
    from ..reproduce import reproduce

    files = reproduce(what, directory)
    if json_output:
        _output.data({"directory": str(directory), "files": files})
        return
    for name in files:
        print(directory / name)


def _show(name: str, value) -> None:
    if isinstance(value, dict):
        print(f"  {name}:")
        for key, count in value.items():
            print(f"    {count!s:>10}  {key}")
    elif isinstance(value, list):
        print(f"  {name}: {len(value)}")
        for item in value:
            print(f"    {item['bytes']:>10}  {item['name']}" if isinstance(item, dict) else f"    {item}")
    else:
        print(f"  {name}: {value}")
