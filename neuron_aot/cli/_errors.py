"""The one border where exceptions become messages and exit codes (see ``contract.errors`` for the codes)."""

from __future__ import annotations

import functools
from collections.abc import Callable

import typer
from neuron_aot_runtime.contract.errors import NeuronAotError

from . import _output

INTERRUPTED = 130

#: Set by ``neuron-aot --debug``.
show_tracebacks = False


def border(command: Callable[..., int | None]) -> Callable[..., None]:
    """``command`` with its errors told on stderr (and, with ``--json``, as data on stdout) and its exit code set.

    A command returns its exit code, or None for success. A bug of ours keeps its traceback.
    """

    @functools.wraps(command)
    def run(*args, **options) -> None:
        try:
            code = command(*args, **options)
        except NeuronAotError as error:
            if show_tracebacks:
                raise
            _tell(error, as_json=options.get("json_output", False))
            code = error.exit_code
        except KeyboardInterrupt as stop:
            if show_tracebacks:
                raise
            _output.talk(_interrupted(stop))
            code = INTERRUPTED
        except BrokenPipeError:
            _output.discard_stdout()  # the reader (head, say) has seen enough
            code = 0
        if code:
            raise typer.Exit(code)

    return run


def _tell(error: NeuronAotError, *, as_json: bool) -> None:
    first, _, rest = str(error).partition("\n")
    _output.talk(f"error: {first}", style="bold red")
    if rest:
        _output.talk(rest)
    if as_json:
        _output.data(error.as_dict())


def _interrupted(stop: KeyboardInterrupt) -> str:
    from ..compiling import Interrupted

    if isinstance(stop, Interrupted):
        return (
            f"interrupted: {stop.kept} of {stop.programs} programs are in the store and are kept; "
            "run the same command again for the rest"
        )
    return "interrupted"
