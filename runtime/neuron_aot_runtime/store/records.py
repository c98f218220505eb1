"""The JSON records of a store. Their schemas are part of the store's contract; foreign fields are refused."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from ..contract.errors import IntegrityError
from ..contract.manifest import Artifact, Bucket, Digest, Key, TensorSpec

Record = TypeVar("Record", bound=BaseModel)


class _Record(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)

    def to_json(self) -> bytes:
        """The bytes to store."""
        return (self.model_dump_json(indent=1) + "\n").encode()


class Compiled(_Record):
    """What an artifact was first made for. ``weight_bytes``: of one rank."""

    phase: str
    bucket: Bucket
    num_layers: int = Field(ge=1)
    weight_bytes: int = Field(ge=0)


class Provenance(_Record):
    """How an artifact was made. Told to people, learned from; never part of a key or an identity.

    ``compiled``: None of an artifact that was adopted.
    """

    built_at: str
    lower_ms: int = Field(ge=0)
    generate_ms: int = Field(ge=0)
    peak_memory_mb: int = Field(ge=0)
    versions: dict[str, str]
    compiled: Compiled | None = None


class ProgramRecord(_Record):
    """``programs/<program key>.json``: what the compiler made of one program.

    ``attachments``: further blobs by name: ``hlo``, what was compiled, and ``log``, what the compiler said.
    """

    program_key: Key
    artifact: Artifact
    target: str
    code_generator: dict[str, str]
    provenance: Provenance
    attachments: dict[str, Artifact] = {}

    @property
    def blobs(self) -> tuple[Artifact, ...]:
        """Every blob that the record names; the artifact is the first."""
        return (self.artifact, *self.attachments.values())


class FailureRecord(_Record):
    """``failures/<program key>.json``: a failure that would happen again with the same compiler (the key has its
    version). ``log``: what the compiler said, a blob."""

    program_key: Key
    code: str
    message: str
    found: str | None = None
    next_command: str | None = None
    log: Artifact | None = None
    failed_at: str


class RequestRecord(_Record):
    """``requests/<request key>.json``: the program that a request lowers to, and its signature."""

    request_key: Key
    program_key: Key
    phase: str
    bucket: Bucket
    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]


class OriginRecord(_Record):
    """``origins/<bundle id>.json``: the requests that led to a bundle's programs when it was last compiled."""

    bundle: Key
    requests: tuple[Key, ...]


class RefRecord(_Record):
    """``refs/<name>.json``. ``model``: where the recipe found the model; a hint for ``serve``, trusted by nothing.

    ``number`` and ``set_at``: its entry in the ref's history, 0 and None before the first.
    """

    bundle: Key
    model: str | None = None
    number: int = Field(default=0, ge=0)
    set_at: str | None = None


class Difference(_Record):
    """``differences/<program key>/<digest>.json``: bytes that lost to the first writer's; the compiler is not
    deterministic."""

    program_key: Key
    winner: Artifact
    loser: Artifact
    seen_at: str


class Lease(_Record):
    """``leases/<kind>-<id>.json``: what a running writer needs, which program it is about to store, or that a gc is
    running. ``owner``: the host, of a claim."""

    kind: Literal["push", "gc", "claim"]
    started_at: str
    owner: str | None = None
    programs: tuple[Key, ...] = ()
    blobs: tuple[Digest, ...] = ()
    bundles: tuple[Key, ...] = ()


def now() -> str:
    """The time, for records that people read."""
    return datetime.now(UTC).isoformat(timespec="seconds")


def parse_record(schema: type[Record], data: bytes, *, where: str) -> Record:
    """Parse a record's bytes. Raises IntegrityError naming ``where`` and what is wrong."""
    try:
        return schema.model_validate_json(data)
    except ValidationError as error:
        first = error.errors()[0]
        raise IntegrityError(
            f"{where} is damaged, or was written by another version",
            wanted=f"a {schema.__name__}",
            details=[f"{'.'.join(map(str, first['loc'])) or 'content'}: {first['msg']}"],
            next_command=f"remove {where} and run neuron-aot compile again",
        ) from error
