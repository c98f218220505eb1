"""A serving configuration's grid of programs: every reachable bucket, and why the others are not made."""

from __future__ import annotations

from dataclasses import dataclass

from neuron_aot_runtime.contract.buckets import program_name, round_up
from neuron_aot_runtime.contract.manifest import Bucket
from neuron_aot_runtime.contract.serving import ServingConfig

from ..program import ModelPlan, ProgramPlan


@dataclass(frozen=True, kw_only=True)
class ReasonedDrop:
    """A shape that the bucket lists spell but that no step can ask for."""

    name: str
    reason: str


@dataclass(frozen=True, kw_only=True)
class Grid:
    """The programs to make, prefill first, each phase from small to large."""

    programs: tuple[ProgramPlan, ...]
    dropped: tuple[ReasonedDrop, ...]


def plan_programs(serving: ServingConfig, model: ModelPlan) -> Grid:
    """Every program of ``serving``, in the order the manifest will list them."""
    phases = (("prefill", serving.prefill_buckets()), ("decode", serving.decode_buckets()))
    programs = [ProgramPlan(model=model, phase=phase, bucket=bucket) for phase, buckets in phases for bucket in buckets]
    return Grid(programs=tuple(programs), dropped=tuple(_dropped(serving)))


def _dropped(serving: ServingConfig):
    made = set(serving.prefill_buckets())
    contexts = sorted({round_up(context, serving.block_size) for context in serving.prefill_contexts()})
    for tokens in serving.neuron_config.num_batched_tokens_buckets:
        own = round_up(tokens, serving.block_size)
        for context in sorted({own, *contexts}):
            bucket = Bucket(size=tokens, context=context)
            if bucket in made:
                continue
            if context < own:
                reason = f"its {tokens} tokens do not fit a context of {context}"
            else:
                reason = f"a smaller token bucket already holds max_model_len ({serving.max_model_len})"
            yield ReasonedDrop(name=program_name("prefill", bucket), reason=reason)
