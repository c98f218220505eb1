"""The plain data that the pipeline hands from stage to stage."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from neuron_aot_runtime.contract.buckets import program_name
from neuron_aot_runtime.contract.facts import Fact
from neuron_aot_runtime.contract.manifest import Bucket, KVCacheSpec, ModelSpec, TensorSpec, WeightEntry


@dataclass(frozen=True, kw_only=True)
class ModelPlan:
    """What every program of one bundle has in common; all of it decides what is computed.

    ``dtype`` is the weights' and activations' (float32, bfloat16), ``kv_dtype`` the cache's logical element type.
    ``greedy``: programs end in an argmax over the vocabulary instead of logits. ``sequence_parallel``: the ranks of a
    prefill divide its tokens between projections.
    """

    target: str
    architecture: str
    facts: tuple[Fact, ...]
    dtype: str
    kv_dtype: str
    block_size: int
    num_blocks: int
    world_size: int = 1
    greedy: bool = False
    sequence_parallel: bool = False


@dataclass(frozen=True, kw_only=True)
class ProgramPlan:
    """One program to make: a phase of a model at a bucket."""

    model: ModelPlan
    phase: str
    bucket: Bucket

    @property
    def name(self) -> str:
        return program_name(self.phase, self.bucket)


@dataclass(frozen=True, kw_only=True)
class ModelLayout:
    """A model's tensors as one rank's programs and the runtime see them; ordered as the calling convention wants."""

    spec: ModelSpec
    params: tuple[TensorSpec, ...]
    states: tuple[TensorSpec, ...]
    weight_map: tuple[WeightEntry, ...]
    kv_cache: KVCacheSpec

    @property
    def weight_bytes(self) -> int:
        """Of one rank."""
        return sum(spec.nbytes for spec in self.params)


@dataclass(frozen=True, kw_only=True)
class LoweredProgram:
    """One program as the compiler sees it. ``hlo``: a normalised, serialized ``HloModuleProto``.

    ``origins``: instruction id -> model line, where lowering was asked for it; never part of a key.
    """

    hlo: bytes
    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
    origins: Mapping[int, str] = field(default_factory=dict)
