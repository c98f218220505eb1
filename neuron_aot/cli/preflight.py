"""neuron-aot preflight: what the Neuron compiler would refuse, before it is asked."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Annotated

import typer

from . import _output


def preflight_command(
    recipe: Annotated[Path, typer.Argument(help="The recipe, a YAML file.", show_default=False)],
    target: Annotated[str | None, typer.Option(help="Check for this target instead of the recipe's.")] = None,
    lnc: Annotated[int | None, typer.Option(help="Logical core size, 1 or 2.")] = None,
    jobs: Annotated[int, typer.Option(min=1, help="Worker processes.")] = 1,
    json_output: Annotated[bool, typer.Option("--json", help="Print the result as JSON on stdout.")] = False,
) -> int:
    """Lower every program of RECIPE and check it against the compiler's documented rules. No compiler is needed.

    Where one is installed, its own list of operators counts as well.
    """
    from neuron_aot_runtime.contract.errors import CompileError, LoweringError

    from ..make import default_toolchain
    from ..preflight import preflight_recipe, unlisted_operators
    from ._recipe import command_recipe

    started = time.monotonic()
    loaded = command_recipe(recipe, target=target, lnc=lnc)
    unlisted = None
    try:
        unlisted = unlisted_operators(loaded)
    except CompileError as error:
        _output.talk(f"{error.message}: only the documented list of operators counts")
    results, violations, code = [], [], 0
    for name, found, error in preflight_recipe(
        loaded, default_toolchain(), jobs=jobs, unlisted=unlisted or frozenset()
    ):
        if error is not None:
            _output.talk(f"{name}: {error}", style="red")
            code = max(code, error.exit_code)
        else:
            _output.talk(f"{name}  {f'{len(found)} violations' if found else 'clean'}")
            violations += found
        results.append({"program": name, "violations": len(found), "error": error.as_dict() if error else None})
    if violations:
        code = max(code, LoweringError.exit_code)
    seconds = time.monotonic() - started
    if json_output:
        _output.data(
            {
                "target": loaded.target,
                "ok": code == 0,
                "unlisted_operators": None if unlisted is None else sorted(unlisted),
                "programs": results,
                "violations": [violation.as_dict() for violation in violations],
                "seconds": round(seconds, 3),
            }
        )
    else:
        for violation in violations:
            print(violation)
        print(f"{len(results)} programs for {loaded.target}: {'refused' if code else 'clean'}, {seconds:.1f} s")
    return code
