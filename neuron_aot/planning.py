"""From a recipe and a request file to a traffic plan, and from that to a new recipe."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml
from neuron_aot_runtime.contract.manifest import Bucket

from .estimates import Sample, estimate, read_samples
from .files import write_text
from .make import Toolchain
from .pipeline import plan_shapes
from .plan.bounds import device_bytes
from .plan.choice import Buckets, TrafficPlan
from .plan.cost import device_speed
from .plan.limits import PlanLimits, Price, Pricing
from .plan.planner import TrafficPlanner
from .plan.traffic import Traffic, read_traffic
from .recipe import Recipe, load_recipe, read_document
from .store import Store
from .targets import CPU

_CHOSEN = ("num_batched_tokens_buckets", "num_seqs_buckets", "decode_context_length_buckets")

#: The largest prefill bucket that a longer max_model_len brings along; longer prompts are prefilled in segments.
_LARGEST_TOKENS = 8192

#: One program where no store says what past compiles took. cpu: measured, 135M Llama, 30 layers. Neuron: an assumption;
#: a compile of neuronx-cc takes minutes to over an hour.
_ASSUMED_CPU = Price(seconds=15, nbytes=2_000_000)
_ASSUMED_NEURON = Price(seconds=600, nbytes=100_000_000)


@dataclass(frozen=True, kw_only=True)
class Request:
    """What to plan. ``store``: whose past compiles say what a program takes. ``tflops``, ``gbytes``: the device's speed
    (TFLOP/s, GB/s), instead of the target's figures."""

    recipe: Path
    traffic: Path
    max_model_len: int | None = None
    max_num_batched_tokens: int | None = None
    limits: PlanLimits
    store: Store | None = None
    tflops: float | None = None
    gbytes: float | None = None


@dataclass(frozen=True, kw_only=True)
class Planned:
    """``recipe``: with the engine arguments that were planned for, and default buckets. ``limits``: that it keeps to.

    ``memory``: bytes of a rank's device by what they hold: weights, KV cache. ``samples``: past compiles that the
    estimates are from; 0: they are assumed.
    """

    recipe: Recipe
    engine: dict[str, int]
    traffic: Traffic
    plan: TrafficPlan
    limits: PlanLimits
    memory: dict[str, int]
    samples: int

    @property
    def load(self) -> float:
        """Work over time: above 1 the servers do not keep up with the arrivals."""
        seconds = self.traffic.seconds
        return self.plan.occupancy.busy_seconds / seconds if seconds else 0.0


def plan_traffic(request: Request, toolchain: Toolchain) -> Planned:
    """Plan buckets for recorded traffic. Raises RecipeError, UsageError, StoreError."""
    engine = _engine(request)
    recipe = load_recipe(request.recipe, engine=engine, without=_CHOSEN)
    traffic = read_traffic(request.traffic, max_model_len=recipe.serving.max_model_len)
    shapes = plan_shapes(recipe, toolchain)
    serving, layout = shapes.recipe.serving, shapes.layout
    speed = device_speed(recipe.target, serving.tensor_parallel_size, tflops=request.tflops, gbytes=request.gbytes)
    samples = read_samples(request.store, recipe.target, layout) if request.store else []
    price = _pricing(samples, recipe.target)
    planner = TrafficPlanner(serving, layout, recipe.model_config, speed, request.limits, price)
    return Planned(
        recipe=recipe,
        engine=engine,
        traffic=traffic,
        plan=planner.plan(traffic),
        limits=request.limits,
        memory=device_bytes(layout),
        samples=len(samples),
    )


def _pricing(samples: list[Sample], target: str) -> Pricing:
    def price(phase: str, bucket: Bucket) -> Price:
        if guess := estimate(samples, phase, bucket):
            return Price(guess.seconds, guess.nbytes)
        return _ASSUMED_CPU if target == CPU else _ASSUMED_NEURON

    return price


def write_recipe(planned: Planned, path: Path) -> None:
    """Write the recipe with the planned engine arguments and buckets to ``path``; comments are not carried over.

    Raises StorageFaultError; RecipeError, and leaves nothing behind, when the result would break a rule.
    """
    source = planned.recipe.path
    document = dict(read_document(source))
    model = Path(os.path.relpath(source.parent / Path(document["model"]).expanduser(), path.parent))
    document["model"] = f"./{model}" if model.parts[:1] != ("..",) else str(model)
    document["engine"] = (document.get("engine") or {}) | planned.engine
    document["neuron_config"] = _neuron_config(document.get("neuron_config") or {}, planned.plan.chosen.buckets)
    text = f"# {source.name}, with buckets planned from {len(planned.traffic)} recorded requests.\n"
    text += yaml.safe_dump(document, sort_keys=False, default_flow_style=None, width=120)
    write_text(path, text, check=load_recipe)


def _engine(request: Request) -> dict[str, int]:
    """The engine arguments that the plan depends on, spelled out: dropped bucket lists must not change them."""
    serving = load_recipe(request.recipe).serving
    longest = request.max_model_len or serving.max_model_len
    tokens = request.max_num_batched_tokens
    if tokens is None and request.max_model_len is not None:
        tokens = max(min(longest, _LARGEST_TOKENS), serving.max_num_seqs)
    return {
        "max_model_len": longest,
        "max_num_batched_tokens": tokens or serving.max_num_batched_tokens,
        "max_num_seqs": serving.max_num_seqs,
    }


def _neuron_config(options: dict[str, Any], buckets: Buckets) -> dict[str, Any]:
    merged = options | buckets.as_neuron_config()
    return {name: value for name, value in merged.items() if value is not None}
