"""What compiling will take, learned from a store's provenance records of models alike.

Time follows the number of operators, so the layers, and memory the sizes of their operands too: what a model of another
size took says nothing.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import mean, median

from neuron_aot_runtime.contract.buckets import bucket_distance
from neuron_aot_runtime.contract.errors import IntegrityError
from neuron_aot_runtime.contract.manifest import Bucket
from neuron_aot_runtime.store import Entry

from .program import ModelLayout, ProgramPlan
from .store import Store, parallel
from .targets import CPU

#: Records that are read at most, the newest; a store may hold years of them, and of other compilers.
_MOST_RECORDS = 500
_NEIGHBOURS = 3
#: How many times the layers, or the weights of a rank, of a model that is alike.
_ALIKE = 2

#: MB of one compile where the store knows none like it: a worker's imports and a small model's program; for Neuron what
#: its compiler is documented to take at least.
DEFAULT_MEMORY_MB = {CPU: 1500}
DEFAULT_NEURON_MEMORY_MB = 8000


@dataclass(frozen=True)
class Sample:
    """One past compile. ``seconds`` of lowering and generating; ``memory_mb`` at the peak; ``nbytes`` of artifact."""

    phase: str
    bucket: Bucket
    seconds: float
    memory_mb: int
    nbytes: int


@dataclass(frozen=True)
class Estimate:
    """Of one compile; the units of Sample."""

    seconds: float
    memory_mb: int
    nbytes: int


def read_samples(store: Store, target: str, layout: ModelLayout) -> list[Sample]:
    """Past compiles for ``target`` of models like that of ``layout``; damaged records are passed over.

    Raises AccessDeniedError, StorageFaultError.
    """

    def sample(entry: Entry) -> Sample | None:
        try:
            record = store.program(entry.path.rpartition("/")[2].removesuffix(".json"))
        except IntegrityError:
            return None
        if record is None or record.target != target or (of := record.provenance.compiled) is None:
            return None
        if not (_alike(of.num_layers, layout.kv_cache.num_layers) and _alike(of.weight_bytes, layout.weight_bytes)):
            return None
        made = record.provenance
        seconds = (made.lower_ms + made.generate_ms) / 1000
        return Sample(of.phase, of.bucket, seconds, made.peak_memory_mb, record.artifact.size)

    newest = sorted(store.list("programs"), key=lambda entry: (-entry.modified, entry.path))[:_MOST_RECORDS]
    return [item for item in parallel(sample, newest) if item is not None]


def _alike(one: int, other: int) -> bool:
    return max(one, other) <= _ALIKE * min(one, other)


def estimate(samples: Iterable[Sample], phase: str, bucket: Bucket) -> Estimate | None:
    """The median of the nearest past compiles of the phase, by bucket; None without any."""
    near = sorted(
        (item for item in samples if item.phase == phase), key=lambda item: bucket_distance(item.bucket, bucket)
    )
    if not near:
        return None
    near = near[:_NEIGHBOURS]
    return Estimate(
        seconds=median(item.seconds for item in near),
        memory_mb=round(median(item.memory_mb for item in near)),
        nbytes=round(median(item.nbytes for item in near)),
    )


def memory_needs(store: Store, programs: Sequence[ProgramPlan], target: str, layout: ModelLayout) -> list[int]:
    """MB at the peak of making each program, learned from the store's past compiles, else the stated default."""
    samples = read_samples(store, target, layout)
    default = DEFAULT_MEMORY_MB.get(target, DEFAULT_NEURON_MEMORY_MB)
    guesses = [estimate_memory(samples, program.phase, program.bucket) for program in programs]
    return [default if guess is None else guess for guess in guesses]


def estimate_memory(samples: Iterable[Sample], phase: str, bucket: Bucket) -> int | None:
    """The most that the nearest past compiles of the phase took, scaled to the bucket; None without any.

    The scale is what the samples themselves show: memory as a power, between 0 and 1, of tokens times context.
    """
    known = [item for item in samples if item.phase == phase and item.memory_mb]
    near = sorted(known, key=lambda item: bucket_distance(item.bucket, bucket))[:_NEIGHBOURS]
    if not near:
        return None
    power = _power([(math.log(_volume(item.bucket)), math.log(item.memory_mb)) for item in known])
    return round(max(item.memory_mb * (_volume(bucket) / _volume(item.bucket)) ** power for item in near))


def _power(points: Sequence[tuple[float, float]]) -> float:
    """The slope of the least-squares line through the points, kept between 0 and 1; 0 when all lie over one place."""
    middle_x, middle_y = mean(x for x, _ in points), mean(y for _, y in points)
    spread = sum((x - middle_x) ** 2 for x, _ in points)
    if spread < 1e-9:
        return 0.0
    return min(max(sum((x - middle_x) * (y - middle_y) for x, y in points) / spread, 0.0), 1.0)


def _volume(bucket: Bucket) -> int:
    return bucket.size * bucket.context
