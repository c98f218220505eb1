"""The commands of ``neuron-aot``, one module each."""

from __future__ import annotations

from typing import Annotated

import typer

from . import _errors, buckets, compile, coverage, explain, inspect, plan, preflight, serve, show, verify

app = typer.Typer(
    name="neuron-aot",
    help="Compile a model's programs ahead of time into a store, and serve them through vLLM.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)


def _print_version(value: bool) -> None:
    if value:
        from .. import __version__

        print(f"neuron-aot {__version__}")
        raise typer.Exit


@app.callback()
def options(
    debug: Annotated[bool, typer.Option("--debug", help="Show the traceback of an error.")] = False,
    version: Annotated[bool, typer.Option("--version", callback=_print_version, is_eager=True)] = False,
) -> None:
    _errors.show_tracebacks = debug


app.command("compile")(_errors.border(compile.compile_command))
app.command("plan")(_errors.border(plan.plan_command))
app.command("buckets")(_errors.border(buckets.buckets_command))
app.command("coverage")(_errors.border(coverage.coverage_command))
app.command("explain")(_errors.border(explain.explain_command))
app.command("show")(_errors.border(show.show_command))
app.command("verify")(_errors.border(verify.verify_command))
app.command("serve")(_errors.border(serve.serve_command))
app.command("preflight")(_errors.border(preflight.preflight_command))
app.command("inspect")(_errors.border(inspect.inspect_command))
app.command("reproduce")(_errors.border(inspect.reproduce_command))
