"""neuron-aot serve: vLLM's OpenAI-compatible server on a bundle."""

from __future__ import annotations

import os
import sys
from typing import Annotated

import typer

from . import _output


def serve_command(
    reference: Annotated[str, typer.Argument(help="STORE@REF, STORE@BUNDLE_ID or STORE.", show_default=False)],
    vllm_args: Annotated[
        list[str] | None, typer.Argument(help="After --: more arguments for vllm serve.", show_default=False)
    ] = None,
    model: Annotated[
        str | None, typer.Option(help="The checkpoint directory; default: where the bundle's recipe found the model.")
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print the command and stop.")] = False,
    json_output: Annotated[bool, typer.Option("--json", help="Print the command as JSON on stdout.")] = False,
) -> None:
    """Serve a bundle: vllm serve, with every engine argument taken from the bundle."""
    import importlib.util

    from neuron_aot_runtime.contract.errors import UsageError
    from neuron_aot_runtime.store import open_bundle

    from ..serving_command import server_command, server_environment

    bundle = open_bundle(reference)
    command = server_command(bundle, model=model, extra=vllm_args or [])
    environment = server_environment(bundle, os.environ)
    if json_output:
        _output.data(
            {
                "bundle": bundle.bundle_id,
                "command": command,
                "environment": {name: value for name, value in environment.items() if os.environ.get(name) != value},
            }
        )
    if dry_run:
        if not json_output:
            print(f"NEURON_COMPILED_ARTIFACTS={environment['NEURON_COMPILED_ARTIFACTS']} {_quoted(command)}")
        return
    if importlib.util.find_spec("vllm") is None:
        raise UsageError("vLLM is not installed in this environment", next_command="pip install 'vllm==0.32.*'")
    sys.stdout.flush()
    # Replaced, not spawned: signals, exit codes and the terminal are vLLM's own.
    os.execve(sys.executable, [sys.executable, *command[1:]], environment)


def _quoted(command: list[str]) -> str:
    import shlex

    return shlex.join(command)
