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
    everything: Annotated[
        bool, typer.Option("--all", help="Verify every object of the store rather than one bundle.")
    ] = False,
    repair: Annotated[
        str | None, typer.Option(help="Fetch what is damaged or missing from this store.", show_default=False)
    ] = None,
    json_output: Annotated[bool, typer.Option("--json", help="Print the result as JSON on stdout.")] = False,
) -> int:
    """Verify a bundle: every digest, every record, and that no program is missing."""
    if everything or repair is not None:
        return _verify_store(reference, repair, json_output)
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


def _verify_store(reference: str, repair_from: str | None, json_output: bool) -> int:
    from neuron_aot_runtime.store import open_reader, parse_reference

    from ..store import open_existing
    from ..store.check import check_store, repair

    store = open_existing(parse_reference(reference).store)
    read: list[int] = []
    problems = check_store(store, progress=read.append)
    for problem in problems:
        _output.talk(f"{problem.path}: {problem.error}", style="red")
    found = len({problem.path for problem in problems})
    if repair_from is not None and problems:
        source = open_reader(repair_from)
        repair(store, problems, getattr(source, "remote", None) or source)
        # What was repaired may have been hiding something else, so it is all looked at again.
        problems = check_store(store)
        left = len({problem.path for problem in problems})
        _output.talk(f"{found - left} of {found} repaired from {repair_from}")
        for problem in problems:
            _output.talk(f"still wrong: {problem.path}: {problem.error.message}", style="red")
    if json_output:
        _output.data(
            {
                "store": store.location,
                "ok": not problems,
                "blobs": len(read),
                "bytes": sum(read),
                "found": found,
                "problems": [{"path": problem.path, **problem.error.as_dict()} for problem in problems],
            }
        )
    elif not problems:
        print(f"{store.location}: {len(read)} blobs, {_output.size(sum(read))}, every record and bundle verified: ok")
    return max((problem.error.exit_code for problem in problems), default=0)


def _tell_each(word: str, outcomes) -> list:
    problems = []
    for outcome in outcomes:
        found = "equal" if outcome.error is None else outcome.error.message
        _output.talk(f"{outcome.program}  {word}: {found}" + (f" ({outcome.measured})" if outcome.measured else ""))
        if outcome.error is not None:
            problems.append((outcome.program, outcome.error))
    return problems
