"""The bundle manifest, schema version 1: one serving configuration's programs and all that serving them needs.

Calling convention of version 1. A program is a pure function over flat, ordered, named tensors:

    arguments: every ``params`` tensor, then every ``states`` tensor, then the program's ``inputs``
    results:   the program's ``outputs``, then every ``states`` tensor (aliased: it overwrites its argument)

``params`` and ``states`` are the same for all programs of a bundle, so the manifest spells them once. Indices are
int32. A bundle's identity is the sha256 of its canonical JSON; nothing of time, host or user is in it.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, JsonValue, StringConstraints, ValidationError, model_validator

from .canonical import canonical_json, digest_bytes
from .errors import IntegrityError
from .facts import Fact

SCHEMA_VERSION = 1

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


class WeightSlice(_Record):
    """A contiguous range of one source tensor's axis: [start, stop)."""

    axis: int = Field(ge=0)
    start: int = Field(ge=0)
    stop: int = Field(ge=0)


class WeightSource(_Record):
    """One tensor of the checkpoint, by its name there, with its full shape, and this rank's slice of it (None: all)."""

    tensor: str
    shape: tuple[Dim, ...]
    rank_slices: tuple[WeightSlice | None, ...] = (None,)


class WeightEntry(_Record):
    """How one param is made: take each source (slice of the rank), transpose it, concatenate along ``axis``, cast.

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

    schema_version: Literal[1] = SCHEMA_VERSION
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
                if len(source.rank_slices) not in (1, self.world_size):
                    raise ValueError(f"{entry.param}: {len(source.rank_slices)} slices for {self.world_size} ranks")
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
        first = error.errors()[0]
        version = _schema_version(data)
        raise IntegrityError(
            f"{where} is not a bundle manifest this version can read",
            wanted=f"schema version {SCHEMA_VERSION}",
            found=f"schema version {version}" if version != SCHEMA_VERSION else "a manifest with wrong fields",
            details=[f"{'.'.join(map(str, first['loc']))}: {first['msg']}"],
            next_command="build the bundle again with this neuron-aot, or install the version that built it",
        ) from error


def _schema_version(data: bytes):
    import json

    try:
        return json.loads(data).get("schema_version")
    except (ValueError, AttributeError):
        return None
