"""neuron-aot verify: whether a bundle is what it says."""

from __future__ import annotations

from typing import Annotated

import typer

from . import _output


def verify_command(
    reference: Annotated[str, typer.Argument(help="STORE@REF, STORE@BUNDLE_ID or STORE.", show_default=False)],
    execute: Annotated[
        bool, typer.Option("--execute", help="Run every program and compare it with the model's definition.")
    ] = False,
    recompute: Annotated[
        bool, typer.Option("--recompute", help="Lower every program again and compare its keys.")
    ] = False,
    jobs: Annotated[int, typer.Option(min=1, help="Worker processes for --recompute.")] = 1,
    json_output: Annotated[bool, typer.Option("--json", help="Print the result as JSON on stdout.")] = False,
) -> int:
    """Verify a bundle: every digest, every record, and that no program is missing."""
    from neuron_aot_runtime.store import open_bundle

    from .. import verify
    from ..make import default_toolchain

    bundle = open_bundle(reference)
    programs = bundle.manifest.programs
    problems = verify.verify_stored(bundle)
    checks = [f"{len(programs)} programs verified"]
    # What is damaged must not be executed.
    if execute and not problems:
        problems += _tell_each("executed", verify.execute(bundle, default_toolchain()))
        checks.append("executed")
    if recompute and not problems:
        problems += _tell_each("lowered again", verify.recompute(bundle, default_toolchain(), jobs=jobs))
        checks.append("lowered again")
    for name, error in problems:
        _output.talk(f"{name}: {error}", style="red")
    if json_output:
        _output.data(
            {
                "bundle": bundle.bundle_id,
                "ok": not problems,
                "programs": len(programs),
                "bytes": sum(program.artifact.size for program in programs),
                "executed": execute,
                "recomputed": recompute,
                "problems": [{"program": name, **error.as_dict()} for name, error in problems],
            }
        )
    elif not problems:
        print(f"{bundle.bundle_id}: {', '.join(checks)}: ok")
    # The most alarming code when there are several: damaged says more than absent.
    return max((error.exit_code for _, error in problems), default=0)


def _tell_each(word: str, outcomes) -> list:
    problems = []
    for outcome in outcomes:
        found = "equal" if outcome.error is None else outcome.error.message
        _output.talk(f"{outcome.program}  {word}: {found}" + (f" ({outcome.measured})" if outcome.measured else ""))
        if outcome.error is not None:
            problems.append((outcome.program, outcome.error))
    return problems
