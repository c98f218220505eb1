"""neuron-aot coverage: does a store hold everything that a vllm serve command can reach?"""

from __future__ import annotations

import shlex
import time
from pathlib import Path
from typing import Annotated

import typer

from . import _output


def coverage_command(
    reference: Annotated[
        str, typer.Argument(help="STORE@REF, STORE@BUNDLE_ID, or STORE for its nearest bundle.", show_default=False)
    ],
    command: Annotated[list[str], typer.Argument(help="After --: vllm serve MODEL …", show_default=False)],
    model_config: Annotated[
        Path | None, typer.Option(help="The model's config.json, when MODEL is not on this machine.")
    ] = None,
    json_output: Annotated[bool, typer.Option("--json", help="Print the result as JSON on stdout.")] = False,
) -> int:
    """Compare what a vllm serve command can reach with a store. Exit code 0: complete; 3: something is missing."""
    from ..coverage import Asked, nearest_coverage
    from ..user_command import find_model_config, parse_command, read_model_config

    started = time.monotonic()
    user = parse_command(command)
    config = read_model_config(find_model_config(user, model_config))
    asked = Asked(config=config, engine=user.engine, additional_config=user.additional_config)
    found = nearest_coverage(reference, asked)
    held = len(found.reached) - len(found.missing)
    if json_output:
        _output.data(
            {
                "complete": found.complete,
                "reference": reference,
                "bundle": found.bundle.bundle_id,
                "reached": len(found.reached),
                "held": held,
                "programs": [vars(item) for item in found.reached],
                "differences": [
                    {"field": item.field, "wanted": item.wanted, "found": item.found, "text": str(item)}
                    for item in found.differences
                ],
                "misuse": list(found.misuse),
                "missing": [item.name for item in found.missing],
                "seconds": round(time.monotonic() - started, 3),
                "exit_code": found.exit_code,
            }
        )
    else:
        print(f"{'complete' if found.complete else 'incomplete'}: {held} of {len(found.reached)} programs that the "
              f"command can reach are in {found.bundle.reference}")  # fmt: skip
        for line in found.lines:
            print(f"  - {line}")
    if not found.complete:
        _output.talk(f"next: neuron-aot explain {reference} -- {shlex.join(command)}")
    return found.exit_code
