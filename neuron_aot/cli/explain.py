"""neuron-aot explain: why a store misses."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from . import _output


def explain_command(
    reference: Annotated[
        str, typer.Argument(help="STORE@REF, STORE@BUNDLE_ID, or STORE for its nearest bundle.", show_default=False)
    ],
    wanted: Annotated[
        list[str], typer.Argument(help="A RECIPE, another bundle, or after -- vllm serve MODEL …", show_default=False)
    ],
    model_config: Annotated[
        Path | None, typer.Option(help="The model's config.json, when MODEL is not on this machine.")
    ] = None,
    json_output: Annotated[bool, typer.Option("--json", help="Print the result as JSON on stdout.")] = False,
) -> int:
    """Say field by field how the nearest bundle differs from what is wanted. Exit code 0: it does not; 3: it does."""
    from ..explain import explain

    found = explain(reference, wanted, model_config=model_config)
    coverage = found.coverage
    if json_output:
        _output.data(
            {
                "bundle": coverage.bundle.bundle_id,
                "reference": str(coverage.bundle.reference),
                "same": coverage.complete,
                "differences": [
                    {"field": item.field, "wanted": item.wanted, "found": item.found, "text": str(item)}
                    for item in coverage.differences
                ],
                "misuse": list(coverage.misuse),
                "missing": [item.name for item in coverage.missing],
                "built_with": [{"library": name, "here": here, "found": held} for name, here, held in found.built_with],
                "estimated_seconds": found.making and found.making.seconds,
                "next": found.next_command,
                "exit_code": coverage.exit_code,
            }
        )
        return coverage.exit_code
    print(f"nearest    {coverage.bundle.reference}, bundle {coverage.bundle.bundle_id[:16]}")
    for line in (*coverage.lines, *([str(found.making)] if found.making else [])):
        print(f"  - {line}")
    for name, here, held in found.built_with:
        print(f"built with {name} {held}, here is {here}: a compile makes the programs again")
    if coverage.complete:
        print("it serves what is wanted: no field differs")
        return 0
    print(f"next       {found.next_command}")
    return coverage.exit_code
