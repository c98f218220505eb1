"""The commands of ``neuron-aot``, one module each."""

from __future__ import annotations

from typing import Annotated

import typer

from . import (
    _errors,
    buckets,
    compile,
    coverage,
    doctor,
    explain,
    inspect,
    plan,
    preflight,
    refs,
    report,
    serve,
    show,
    stores,
    transfer,
    trust,
    verify,
)

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
app.command("assemble")(_errors.border(compile.assemble_command))
app.command("plan")(_errors.border(plan.plan_command))
app.command("buckets")(_errors.border(buckets.buckets_command))
app.command("coverage")(_errors.border(coverage.coverage_command))
app.command("explain")(_errors.border(explain.explain_command))
app.command("report")(_errors.border(report.report_command))
app.command("show")(_errors.border(show.show_command))
app.command("verify")(_errors.border(verify.verify_command))
app.command("serve")(_errors.border(serve.serve_command))
app.command("preflight")(_errors.border(preflight.preflight_command))
app.command("inspect")(_errors.border(inspect.inspect_command))
app.command("reproduce")(_errors.border(inspect.reproduce_command))

for name, command in {
    "push": transfer.push_command,
    "pull": transfer.pull_command,
    "export": transfer.export_command,
    "import": transfer.import_command,
    "import-cache": transfer.import_cache_command,
    "ls": stores.ls_command,
    "diff": stores.diff_command,
    "gc": stores.gc_command,
    "purge": stores.purge_command,
    "rollback": refs.rollback_command,
    "sign": trust.sign_command,
    "doctor": doctor.doctor_command,
}.items():
    app.command(name)(_errors.border(command))

_refs = typer.Typer(help="Set, remove and look back at a store's refs.", no_args_is_help=True)
for name, command in {"set": refs.set_command, "rm": refs.rm_command, "log": refs.log_command}.items():
    _refs.command(name)(_errors.border(command))
app.add_typer(_refs, name="refs")

_keys = typer.Typer(help="Keys that sign bundles, and policies that trust them.", no_args_is_help=True)
for name, command in {
    "new": trust.new_command,
    "show": trust.show_command,
    "trust": trust.trust_command,
    "distrust": trust.distrust_command,
    "list": trust.list_command,
}.items():
    _keys.command(name)(_errors.border(command))
app.add_typer(_keys, name="keys")
