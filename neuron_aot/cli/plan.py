"""neuron-aot plan: buckets from recorded traffic."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from . import _output


def plan_command(
    recipe: Annotated[Path, typer.Argument(help="The recipe, a YAML file.", show_default=False)],
    traffic: Annotated[
        Path, typer.Option(help="A CSV file of requests: timestamp, prompt_tokens, output_tokens.", show_default=False)
    ],
    max_model_len: Annotated[
        int | None, typer.Option(min=1, help="Plan for this limit, with prefill up to it (at most 8192 at once).")
    ] = None,
    max_num_batched_tokens: Annotated[int | None, typer.Option(min=1, help="The largest prefill bucket.")] = None,
    max_prefill_buckets: Annotated[
        int | None,
        typer.Option(min=1, max=64, help="At most so many prefill token buckets; default: as powers of two have."),
    ] = None,
    max_programs: Annotated[int | None, typer.Option(min=1, help="At most so many programs.")] = None,
    max_compile_minutes: Annotated[
        float | None,
        typer.Option(min=0.01, max=1e9, help="At most so long a compile of all programs."),
    ] = None,
    max_hbm: Annotated[
        float | None,
        typer.Option(min=0.01, max=1e9, help="At most so many GiB a rank: weights, KV cache and programs."),
    ] = None,
    store: Annotated[str | None, typer.Option(help="A store whose past compiles say what a program takes.")] = None,
    jobs: Annotated[int | None, typer.Option(min=1, help="Worker processes that compile.")] = None,
    replicas: Annotated[
        int | None, typer.Option(min=1, help="Servers that share the traffic; default: as many as keep up with it.")
    ] = None,
    tflops: Annotated[
        float | None,
        typer.Option(min=1e-6, max=1e9, help="The device's speed, TFLOP/s sustained."),
    ] = None,
    gbytes_per_second: Annotated[
        float | None, typer.Option(min=1e-6, max=1e9, help="The device's memory, GB/s.")
    ] = None,
    write: Annotated[Path | None, typer.Option(help="Write a recipe with the choice.", show_default=False)] = None,
    json_output: Annotated[bool, typer.Option("--json", help="Print the result as JSON on stdout.")] = False,
) -> None:
    """Choose the buckets that serve recorded requests with the least padded work."""
    from ..make import default_toolchain
    from ..plan.limits import GIB, PlanLimits
    from ..plan_document import plan_document
    from ..planning import Request, plan_traffic, write_recipe
    from ..schedule.local import default_jobs
    from ..store import open_existing

    request = Request(
        recipe=recipe,
        traffic=traffic,
        max_model_len=max_model_len,
        max_num_batched_tokens=max_num_batched_tokens,
        limits=PlanLimits(
            max_prefill_buckets=max_prefill_buckets,
            max_programs=max_programs,
            max_compile_seconds=max_compile_minutes and max_compile_minutes * 60,
            max_hbm_bytes=max_hbm and int(max_hbm * GIB),
            jobs=jobs or default_jobs(),
            replicas=replicas,
        ),
        store=open_existing(store) if store is not None else None,
        tflops=tflops,
        gbytes=gbytes_per_second,
    )
    planned = plan_traffic(request, default_toolchain())
    if clipped := planned.traffic.num_clipped:
        longest = planned.engine["max_model_len"]
        _output.talk(
            f"{clipped} of {len(planned.traffic)} requests are longer than {longest} tokens: counted as that long"
        )
    if write is not None:
        write_recipe(planned, write)
        _output.talk(f"written: {write}; next: neuron-aot compile {write}")
    if json_output:
        _output.data(plan_document(planned))
    else:
        _tell(planned)


def _tell(planned) -> None:
    plan = planned.plan
    load = planned.load
    print(
        f"{len(planned.traffic)} requests in {planned.traffic.seconds:.0f} s on {planned.recipe.target}, shared by "
        f"{plan.occupancy.replicas} servers: {load:.0%} load, {plan.occupancy.mean_batch:.1f} sequences in a decode step"
        + (" (too few: requests queue)" if load > 1 else "")
    )
    default, chosen = plan.default, plan.chosen
    rows = []
    for name in vars(chosen.buckets):
        for label, score in (("default", default), ("chosen", chosen)):
            sizes = ", ".join(map(str, getattr(score.buckets, name))) or "max_model_len only"
            rows.append([name if label == "default" else "", label, f"{score.padding[name]:.1%}", sizes])
    _output.table("padding, as a share of the real tokens", ["option", "", ">padding", "buckets"], rows)
    print(f"programs   {default.programs} -> {chosen.programs}")
    print(_compile_line(planned))
    print(_memory_line(planned))
    for line in _limit_lines(planned):
        print(line)
    print(f"work       {_less(default.work, chosen.work)} (prefill {_less(default.prefill_work, chosen.prefill_work)}, "
          f"decode {_less(default.decode_work, chosen.decode_work)})")  # fmt: skip
    if plan.least_decode_work:
        print(
            f"bound      no decode buckets save more than {1 - plan.least_decode_work / chosen.decode_work:.1%} of these"
        )
    if plan.held_out is not None:
        before, after = (score.padding["num_batched_tokens_buckets"] for score in plan.held_out)
        print(
            f"held out   planned from the first half of the requests, the second half pads {after:.1%} of its prompt "
            f"tokens (default {before:.1%}) and takes {_less(plan.held_out[0].work, plan.held_out[1].work)} work"
        )


def _compile_line(planned) -> str:
    default, chosen = (_minutes(score.taken.seconds) for score in (planned.plan.default, planned.plan.chosen))
    source = f"{planned.samples} past compiles in the store" if planned.samples else "assumed: give --store to learn it"
    return f"compile    {default} -> {chosen} with {planned.limits.jobs} jobs ({source})"


def _memory_line(planned) -> str:
    held = ", ".join(f"{_output.size(nbytes)} of {name.replace('_', ' ')}" for name, nbytes in planned.memory.items())
    programs = planned.plan.chosen.taken.hbm_bytes - sum(planned.memory.values())
    return f"memory     {held}, {_output.size(programs)} of programs on each rank"


def _limit_lines(planned):
    plan, limits = planned.plan, planned.limits
    for option in limits.given:
        if option not in plan.binding:
            yield f"limit      {limits.told(option)}: not binding"
            continue
        free = plan.unlimited
        yield (
            f"limit      {limits.told(option)}: binding; without limits {free.programs} programs, "
            f"{_minutes(free.taken.seconds)}, {free.taken.hbm_bytes / (1 << 30):.2f} GiB, "
            f"{_less(plan.chosen.work, free.work)} work"
        )


def _minutes(seconds: float) -> str:
    return f"{seconds / 60:.1f} min"


def _less(before: float, after: float) -> str:
    return f"{after / before - 1:+.1%}" if before else "none"
