"""neuron-aot compile: a recipe into a bundle."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Annotated

import typer

from . import _output


def compile_command(
    recipe: Annotated[
        Path | None, typer.Argument(help="The recipe, a YAML file; with --from-command, what to start from.")
    ] = None,
    from_command: Annotated[
        str | None, typer.Option(help="A vllm serve command, in quotes: its options are the recipe.")
    ] = None,
    model_config: Annotated[
        Path | None,
        typer.Option(help="With --from-command: the model's config.json, when MODEL is not on this machine."),
    ] = None,
    target: Annotated[str | None, typer.Option(help="Compile for this target instead of the recipe's.")] = None,
    store: Annotated[str, typer.Option(help="The store to compile into.")] = "./store",
    ref: Annotated[str | None, typer.Option(help="A name for the bundle, as in smollm2/demo; it is moved.")] = None,
    jobs: Annotated[int | None, typer.Option(min=1, help="Worker processes; default: one per core.")] = None,
    executor: Annotated[str, typer.Option(help="Where programs are made: local, or ray for a cluster.")] = "local",
    shard: Annotated[
        str | None,
        typer.Option(help="Make only part i of n of the programs, as in 3/8; `assemble` publishes the bundle."),
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Also make what is estimated not to fit into memory.")] = False,
    lnc: Annotated[int | None, typer.Option(help="Logical core size of a Neuron target, 1 or 2.")] = None,
    retry_failed: Annotated[
        bool, typer.Option("--retry-failed", help="Ask the compiler again about programs that it refused before.")
    ] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Say what would be made; write nothing.")] = False,
    json_output: Annotated[bool, typer.Option("--json", help="Print the result as JSON on stdout.")] = False,
) -> int | None:
    """Compile every program of RECIPE that the store does not have, and publish the bundle."""
    from neuron_aot_runtime.contract.errors import UsageError

    from ..make import default_toolchain
    from ..pipeline import compile_recipe
    from ..schedule.executor import EXECUTORS, open_executor
    from ..schedule.shards import parse_shard
    from ..settings import read_settings
    from ..store import open_store
    from ._progress import compile_progress
    from ._recipe import command_recipe

    if from_command is None and recipe is None:
        raise UsageError("there is nothing to compile", wanted="a RECIPE, or --from-command 'vllm serve MODEL …'")
    if executor not in EXECUTORS:
        raise UsageError("--executor is unknown", wanted=" | ".join(EXECUTORS), found=executor)
    part = parse_shard(shard) if shard else None
    finish = _command("assemble", recipe, from_command, model_config, store, target, lnc)
    if part and ref:
        raise UsageError(
            "a shard publishes no bundle, so --ref names nothing",
            found=f"--shard {part} --ref {ref}",
            next_command=f"leave --ref out, then: {finish} --ref {ref}",
        )
    loaded = command_recipe(recipe, command=from_command, target=target, lnc=lnc, model_config=model_config)
    opened, jobs = open_store(store), jobs or read_settings().workers
    if dry_run:
        return _dry_run(loaded, opened, part, open_executor(executor), json_output)
    with compile_progress() as progress:
        report = compile_recipe(
            loaded, opened, default_toolchain(), ref=ref, progress=progress, jobs=jobs, retry_failed=retry_failed,
            force=force, shard=part, executor=open_executor(executor),
        )  # fmt: skip
    if part:
        _output.talk(
            f"shard {part}: {report.programs} programs, {report.compiled} compiled, {report.seconds:.2f} s; "
            f"when all shards are done: {finish}"
        )
    else:
        _tell(report, store)
    if json_output:
        _output.data(_as_data(report))
    elif report.bundle:
        print(f"{store}@{ref or report.bundle}")
    return None


def assemble_command(
    recipe: Annotated[Path | None, typer.Argument(help="The recipe that the shards compiled.")] = None,
    from_command: Annotated[str | None, typer.Option(help="As for compile.")] = None,
    model_config: Annotated[Path | None, typer.Option(help="As for compile.")] = None,
    target: Annotated[str | None, typer.Option(help="As for compile.")] = None,
    store: Annotated[str, typer.Option(help="The store that the shards compiled into.")] = "./store",
    ref: Annotated[str | None, typer.Option(help="A name for the bundle; it is moved.")] = None,
    lnc: Annotated[int | None, typer.Option(help="As for compile.")] = None,
    json_output: Annotated[bool, typer.Option("--json", help="Print the result as JSON on stdout.")] = False,
) -> None:
    """Publish the bundle of a recipe whose programs are all in the store; compile nothing. Exit code 3 when some miss."""
    from neuron_aot_runtime.contract.errors import UsageError

    from ..make import default_toolchain
    from ..pipeline import assemble
    from ..store import open_existing
    from ._recipe import command_recipe

    if from_command is None and recipe is None:
        raise UsageError("there is nothing to assemble", wanted="a RECIPE, or --from-command 'vllm serve MODEL …'")
    loaded = command_recipe(recipe, command=from_command, target=target, lnc=lnc, model_config=model_config)
    again = _command("compile", recipe, from_command, model_config, store, target, lnc)
    again += f" --ref {ref}" if ref else ""
    report = assemble(loaded, open_existing(store), default_toolchain(), ref=ref, again=again)
    _tell(report, store)
    if json_output:
        _output.data(_as_data(report))
    else:
        print(f"{store}@{ref or report.bundle}")


def _tell(report, store: str) -> None:
    name = f"{store}@{report.ref or report.bundle}"
    _output.talk(
        f"{name}: {report.programs} programs, {report.compiled} compiled, {report.seconds:.2f} s; "
        f"next: neuron-aot serve {name}"
    )


def _as_data(report) -> dict:
    return {
        "bundle": report.bundle,
        "ref": report.ref,
        "programs": report.programs,
        "compiled": report.compiled,
        "hits": report.hits,
        "seconds": round(report.seconds, 3),
        "not_reproducible": list(report.adopted),
    }


def _command(verb: str, recipe, from_command, model_config, store, target, lnc) -> str:
    options = {
        "--from-command": from_command,
        "--model-config": model_config,
        "--target": target,
        "--lnc": lnc,
        "--store": store,
    }
    words = [word for name, value in options.items() if value is not None for word in (name, str(value))]
    return shlex.join(["neuron-aot", verb, *([str(recipe)] if recipe else []), *words])


def _dry_run(recipe, store, shard, executor, json_output: bool) -> None:
    from ..compiling import doomed, estimated_memory
    from ..make import default_toolchain
    from ..pipeline import make_plan
    from ..plan import budget_lines

    plan = make_plan(recipe, store, default_toolchain())
    if shard is not None:
        plan = plan.only(shard)
    needs = estimated_memory(plan, store)
    host = executor.memory()
    refused = doomed(needs, host)
    if json_output:
        programs = [
            {
                "name": program.name,
                "phase": program.phase,
                "bucket": program.bucket.model_dump(),
                "request_key": plan.request_keys[program.name],
                "in_store": program.name not in needs,
                "estimated_memory_mb": needs.get(program.name),
            }
            for program in plan.grid.programs
        ]
        dropped = [{"name": drop.name, "reason": drop.reason} for drop in plan.grid.dropped]
        memory = plan.memory.model_dump() | {"left_bytes": plan.memory.left_bytes} if plan.memory else None
        _output.data(
            {
                "programs": programs,
                "dropped": dropped,
                "missing": len(needs),
                "memory": memory,
                "host_memory_mb": host.total,
                "refused": sorted(refused),
            }
        )
        return
    rows = [
        [
            program.name,
            f"to make, {needs[program.name]} MB" if program.name in needs else "in the store",
            plan.request_keys[program.name][:16],
        ]
        for program in plan.grid.programs
    ]
    rows += [[drop.name, f"not made: {drop.reason}", ""] for drop in plan.grid.dropped]
    _output.table(
        f"{len(plan.grid.programs)} programs, {len(needs)} to make", ["program", "state", "request key"], rows
    )
    if plan.memory is not None:
        print("\n" + "\n".join(budget_lines(plan.memory)))
    if refused:
        print(f"\nwould be refused without --force: {len(refused)} programs are estimated to need up to "
              f"{max(refused.values())} MB, the host has {host.total} MB")  # fmt: skip
