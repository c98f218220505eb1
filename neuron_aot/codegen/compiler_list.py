"""The installed compiler's own list of operators."""

from __future__ import annotations

from neuron_aot_runtime.contract.errors import CompileError

from .neuronx_cc import PROGRAM, ask_compiler, find_compiler


def listed_operators() -> list[str]:
    """What ``neuronx-cc list-operators`` prints: a name a line, XlaBuilder's.

    Raises CompileError when there is no compiler, or what it prints is no such list.
    """
    command = ("list-operators", "--framework", "XLA")
    said = ask_compiler(find_compiler(), *command)
    names = said.stdout.split()
    if said.returncode != 0 or "add" not in {name.lower() for name in names}:
        raise CompileError(
            f"{PROGRAM} does not list its operators",
            found=f"exit code {said.returncode}: {(said.stdout + said.stderr).strip()[:300]}",
            next_command=" ".join([PROGRAM, *command]),
        )
    return names
