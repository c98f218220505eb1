"""neuron-aot report: a bundle or a plan as one page of HTML."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from . import _output


def report_command(
    source: Annotated[
        str,
        typer.Argument(
            metavar="BUNDLE|PLAN",
            help="STORE@REF, STORE@BUNDLE_ID or STORE; or a file of plan --json.",
            show_default=False,
        ),
    ],
    html: Annotated[Path, typer.Option(help="The page to write.", show_default=False)],
    json_output: Annotated[bool, typer.Option("--json", help="Print the result as JSON on stdout.")] = False,
) -> None:
    """Write one self-contained page: grid, padding, when each program was made, sizes, memory."""
    from neuron_aot_runtime.store import open_bundle

    from ..files import write_text
    from ..plan_document import read_plan
    from ..report import bundle_page, plan_page, render

    path = Path(source)
    page = plan_page(read_plan(path)) if path.is_file() else bundle_page(open_bundle(source))
    text = render(page)
    write_text(html, text)
    if json_output:
        _output.data({"html": str(html), "bytes": len(text.encode()), "sections": len(page.sections)})
    else:
        print(html)
