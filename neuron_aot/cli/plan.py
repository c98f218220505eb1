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
        int | None, typer.Option(min=1, help="At most so many prefill token buckets; default: as powers of two have.")
    ] = None,
    max_programs: Annotated[int | None, typer.Option(min=1, help="At most so many programs.")] = None,
    replicas: Annotated[
        int | None, typer.Option(min=1, help="Servers that share the traffic; default: as many as keep up with it.")
    ] = None,
    tflops: Annotated[float | None, typer.Option(min=1e-6, help="The device's speed, TFLOP/s sustained.")] = None,
    gbytes_per_second: Annotated[float | None, typer.Option(min=1e-6, help="The device's memory, GB/s.")] = None,
    write: Annotated[Path | None, typer.Option(help="Write a recipe with the choice.", show_default=False)] = None,
    json_output: Annotated[bool, typer.Option("--json", help="Print the result as JSON on stdout.")] = False,
) -> None:
    """Choose the buckets that serve recorded requests with the least padded work."""
    from ..make import default_toolchain
    from ..plan.planner import PlanLimits
    from ..planning import Request, plan_traffic, write_recipe

    request = Request(
        recipe=recipe,
        traffic=traffic,
        max_model_len=max_model_len,
        max_num_batched_tokens=max_num_batched_tokens,
        limits=PlanLimits(max_prefill_buckets=max_prefill_buckets, max_programs=max_programs, replicas=replicas),
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
        _output.data(_as_data(planned))
    else:
        _tell(planned)


def _as_data(planned) -> dict:
    plan, occupancy = planned.plan, planned.plan.occupancy
    held_out = None
    if plan.held_out is not None:
        held_out = {"default": _score(plan.held_out[0]), "chosen": _score(plan.held_out[1])}
    return {
        **_score(plan.chosen),
        "engine": planned.engine,
        "default": _score(plan.default),
        "held_out": held_out,
        "requests": len(planned.traffic),
        "clipped": planned.traffic.num_clipped,
        "mean_decode_batch": round(occupancy.mean_batch, 3),
        "replicas": occupancy.replicas,
        "load": round(_load(planned), 4),
        "least_decode_work": round(plan.least_decode_work),
    }


def _score(score) -> dict:
    return {
        **{name: list(sizes) for name, sizes in vars(score.buckets).items()},
        "padding": {name: round(share, 6) for name, share in score.padding.items()},
        "programs": score.programs,
        "prefill_work": round(score.prefill_work),
        "decode_work": round(score.decode_work),
    }


def _load(planned) -> float:
    """Work over time: above 1 the servers do not keep up with the arrivals."""
    seconds = planned.traffic.seconds
    return planned.plan.occupancy.busy_seconds / seconds if seconds else 0.0


def _tell(planned) -> None:
    plan = planned.plan
    load = _load(planned)
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


def _less(before: float, after: float) -> str:
    return f"{after / before - 1:+.1%}" if before else "none"
