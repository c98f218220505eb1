"""The bundle manifest, schema version 2: one serving configuration's programs and all that serving them needs.

Calling convention of version 2. A program is a pure function over flat, ordered, named tensors:

    arguments: every ``params`` tensor, then every ``states`` tensor, then the program's ``inputs``
    results:   the program's ``outputs``, then every ``states`` tensor (aliased: it overwrites its argument)

``params`` and ``states`` are the same for all programs of a bundle, so the manifest spells them once. Indices are
int32. All shapes are those of one rank. With ``world_size`` > 1 every rank runs the same programs, and the last input
of each is ``rank``, int32 [1], which the device writes (it knows its rank), and no caller passes.

A bundle's identity is the sha256 of its canonical JSON; nothing of time, host or user is in it.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, JsonValue, StringConstraints, ValidationError, model_validator

from .canonical import canonical_json, digest_bytes
from .errors import IntegrityError
from .facts import Fact

SCHEMA_VERSION = 2  # 1: one rank only, no shards
RANK_INPUT = "rank"

DTYPE_BYTES = {
    "float32": 4, "bfloat16": 2, "float16": 2, "float8_e4m3fn": 1, "float8_e5m2": 1,
    "int64": 8, "int32": 4, "int8": 1, "uint16": 2, "uint8": 1, "bool": 1,
}  # fmt: skip

Digest = Annotated[str, StringConstraints(pattern=r"^sha256:[0-9a-f]{64}$")]
Key = Annotated[str, StringConstraints(pattern=r"^[0-9a-f]{64}$")]
Dtype = Literal[tuple(DTYPE_BYTES)]
Dim = Annotated[int, Field(ge=0, lt=1 << 40)]


class _Record(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class TensorSpec(_Record):
    """One tensor of a signature. ``role``: param | state | input | output."""

    name: str = Field(min_length=1, max_length=256)
    role: Literal["param", "state", "input", "output"]
    shape: tuple[Dim, ...]
    dtype: Dtype

    @property
    def nbytes(self) -> int:
        """Size in bytes."""
        return math.prod(self.shape) * DTYPE_BYTES[self.dtype]


class Artifact(_Record):
    """The compiled bytes of a program. ``format``: ``xla-cpu`` (see device/cpu.py) or ``neff``; size in bytes."""

    format: str
    digest: Digest
    size: int = Field(ge=0)


class Bucket(_Record):
    """One static shape. ``size`` is prompt tokens for prefill and sequences for decode; ``context`` in tokens."""

    size: int = Field(ge=1)
    context: int = Field(ge=1)


class Program(_Record):
    """One phase at one bucket."""

    name: str = Field(pattern=r"^[a-z0-9_]{1,64}$")
    phase: Literal["prefill", "decode"]
    bucket: Bucket
    program_key: Key
    artifact: Artifact
    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]


class Shard(_Record):
    """How one tensor of the checkpoint is divided over the ranks along ``axis``; every rank gets ``size`` of it.

    Rank r takes [r * size, (r + 1) * size), cut to the tensor; or ``ranges[r]``, [start, stop), where the parts do not
    follow one another (KV heads that several ranks share, uneven groups of query heads). What a part lacks of ``size``
    is zeros at its end.
    """

    axis: int = Field(ge=0)
    size: int = Field(ge=1)
    ranges: tuple[tuple[Dim, Dim], ...] | None = None

    def range(self, rank: int, length: int) -> tuple[int, int]:
        """[start, stop) of ``rank`` on an axis of ``length``; empty where nothing is left for it."""
        if self.ranges is not None:
            return self.ranges[rank]
        return min(rank * self.size, length), min((rank + 1) * self.size, length)

    def problem(self, shape: tuple[int, ...], world_size: int) -> str | None:
        """Why this does not divide a tensor of ``shape`` over ``world_size`` ranks, or None."""
        if self.axis >= len(shape):
            return f"axis {self.axis} of a tensor of {len(shape)} axes"
        length = shape[self.axis]
        if self.ranges is not None and len(self.ranges) != world_size:
            return f"{len(self.ranges)} ranges for {world_size} ranks"
        parts = [self.range(rank, length) for rank in range(world_size)]
        for start, stop in parts:
            if not start <= stop <= length or stop - start > self.size:
                return f"the range [{start}, {stop}) for a size of {self.size} out of {length}"
        covered = 0
        for start, stop in sorted(parts):
            if start > covered:
                break
            covered = max(covered, stop)
        return None if covered == length else f"no rank takes what follows {covered} of {length}"


class WeightSource(_Record):
    """One tensor of the checkpoint, by its name there, with its full shape. ``shard`` None: every rank takes all of it."""

    tensor: str
    shape: tuple[Dim, ...]
    shard: Shard | None = None


class WeightEntry(_Record):
    """How one param is made: take each source (its rank's part), transpose it, concatenate along ``axis``, cast.

    ``transpose``: the last two axes of every source are swapped before concatenation.
    The result must have the shape and dtype of the param of the same name.
    """

    param: str
    sources: tuple[WeightSource, ...] = Field(min_length=1)
    axis: int = 0
    transpose: bool = False


class KVCacheSpec(_Record):
    """The paged KV cache of one rank: per layer a K and a V state of [num_blocks, num_kv_heads, block_size, head_size].

    ``dtype`` is the logical element type; the state tensors may carry it as raw bits (uint16 for bfloat16 on
    cpu). Block 0 is vLLM's null block: padding rows write there and nothing reads it.
    """

    num_layers: int = Field(ge=1)
    num_blocks: int = Field(ge=2)
    block_size: int = Field(ge=1)
    num_kv_heads: int = Field(ge=1)
    head_size: int = Field(ge=1)
    dtype: Dtype


class ModelSpec(_Record):
    """Which model the programs compute: architecture (as in config.json's ``architectures``) and its facts."""

    architecture: str
    facts: tuple[Fact, ...]
    vocab_size: int = Field(ge=1)
    hidden_size: int = Field(ge=1)


class MemoryBudget(_Record):
    """Device memory of one rank, as it was divided at compile time; all sizes in bytes.

    ``budget_bytes``: device memory times gpu_memory_utilization. ``sized_by``: what decided the number of KV blocks,
    ``memory`` or ``num_gpu_blocks_override``. The serving side reports it and computes none of it again.
    """

    device_bytes: int
    budget_bytes: int
    weights_bytes: int
    kv_available_bytes: int
    kv_bytes: int
    block_bytes: int
    num_blocks: int
    sized_by: Literal["memory", "num_gpu_blocks_override"]

    @property
    def left_bytes(self) -> int:
        """What weights and KV cache leave of the device's memory, for programs and their scratch space."""
        return self.device_bytes - self.weights_bytes - self.kv_bytes


class Serving(_Record):
    """The serving configuration, fully resolved: vLLM's engine arguments under vLLM's names, and neuron_config."""

    engine: dict[str, JsonValue]
    neuron_config: dict[str, JsonValue]


class Manifest(_Record):
    """One bundle. ``requires`` is what the target must offer (cpu: jaxlib version and CPU features).

    ``memory``: how a device's memory was divided; None on cpu.
    """

    schema_version: Literal[2] = SCHEMA_VERSION
    target: str
    world_size: int = Field(ge=1)
    model: ModelSpec
    serving: Serving
    kv_cache: KVCacheSpec
    params: tuple[TensorSpec, ...]
    states: tuple[TensorSpec, ...]
    weight_map: tuple[WeightEntry, ...]
    programs: tuple[Program, ...] = Field(min_length=1)
    requires: dict[str, str]
    toolchain: dict[str, str]
    memory: MemoryBudget | None = None

    @model_validator(mode="after")
    def _consistent(self) -> Manifest:
        for what, names in (
            ("program", [program.name for program in self.programs]),
            ("bucket", [(program.phase, program.bucket) for program in self.programs]),
            ("tensor", [tensor.name for tensor in self.params + self.states]),
        ):
            twice = {str(name) for name in names if names.count(name) > 1} if len(set(names)) < len(names) else ()
            if twice:
                raise ValueError(f"duplicate {what}: {', '.join(sorted(twice))}")
        if [tensor.name for tensor in self.params] != [entry.param for entry in self.weight_map]:
            raise ValueError("weight_map and params must name the same tensors in the same order")
        for entry in self.weight_map:
            for source in entry.sources:
                if source.shard and (problem := source.shard.problem(source.shape, self.world_size)):
                    raise ValueError(f"{entry.param}: {source.tensor}: {problem}")
        for program in self.programs:
            last = program.inputs[-1].name if program.inputs else None
            if (self.world_size > 1) != (last == RANK_INPUT):
                raise ValueError(f"{program.name}: its last input is {last} in a bundle of {self.world_size} ranks")
        return self

    def arguments(self, program: Program) -> Iterator[TensorSpec]:
        """The flat arguments of ``program``, in order."""
        yield from self.params
        yield from self.states
        yield from program.inputs

    def results(self, program: Program) -> Iterator[TensorSpec]:
        """The flat results of ``program``, in order."""
        yield from program.outputs
        yield from self.states

    def program(self, name: str) -> Program:
        """The program of that name. Raises KeyError."""
        for program in self.programs:
            if program.name == name:
                return program
        raise KeyError(name)

    def to_json(self) -> bytes:
        """Canonical bytes: what is stored, and what the bundle id is the sha256 of."""
        return canonical_json(self.model_dump(mode="json"))

    @property
    def bundle_id(self) -> str:
        """64 hex digits."""
        return digest_bytes(self.to_json()).removeprefix("sha256:")


def parse_manifest(data: bytes, *, where: str) -> Manifest:
    """Parse and check a manifest's bytes. Raises IntegrityError naming ``where`` and what is wrong."""
    try:
        return Manifest.model_validate_json(data)
    except ValidationError as error:
        version = _schema_version(data)
        if isinstance(version, int) and version != SCHEMA_VERSION:
            raise IntegrityError(
                f"{where} was written by {'an earlier' if version < SCHEMA_VERSION else 'a later'} version of neuron-aot",
                wanted=f"manifest schema version {SCHEMA_VERSION}",
                found=f"schema version {version}",
                next_command="compile the recipe again with this neuron-aot, or install the version that wrote it",
            ) from error
        first = error.errors()[0]
        raise IntegrityError(
            f"{where} is not a bundle manifest this version can read",
            found="a manifest with wrong fields",
            details=[f"{'.'.join(map(str, first['loc']))}: {first['msg']}"],
            next_command="compile the recipe again with this neuron-aot, or install the version that wrote it",
        ) from error


def _schema_version(data: bytes):
    import json

    try:
        return json.loads(data).get("schema_version")
    except (ValueError, AttributeError):
        return None
