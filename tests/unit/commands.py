"""Commands run in this process."""

from __future__ import annotations

import json

from typer.testing import CliRunner


def invoke(*arguments: str, code: int = 0):
    """Run ``neuron-aot`` with ``arguments`` and check its exit code; the result has ``stdout`` and ``stderr``."""
    from neuron_aot.cli import _output
    from neuron_aot.cli.app import app

    _output.console.cache_clear()  # it holds on to the stderr of the run before
    result = CliRunner().invoke(app, list(arguments))
    assert result.exit_code == code, (result.stdout, result.stderr, result.exception)
    assert "Traceback" not in result.stderr
    return result


def answer(result) -> dict:
    """What ``--json`` printed."""
    return json.loads(result.stdout.splitlines()[-1])
