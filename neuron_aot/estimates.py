"""What compiling will take, learned from a store's provenance records."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import mean, median

from neuron_aot_runtime.contract.buckets import bucket_distance
from neuron_aot_runtime.contract.errors import IntegrityError
from neuron_aot_runtime.contract.manifest import Bucket

from .program import ProgramPlan
from .store import Store, parallel
from .targets import CPU

#: Requests in the records that are read at most; a store may hold years of them.
_MOST_RECORDS = 2000
_NEIGHBOURS = 3

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


def read_samples(store: Store, target: str) -> list[Sample]:
    """Past compiles for ``target``; damaged records are passed over. Raises AccessDeniedError, StorageFaultError."""

    def sample(path: str) -> Sample | None:
        key = path.rpartition("/")[2].removesuffix(".json")
        try:
            request = store.request(key)
            record = store.program(request.program_key) if request else None
        except IntegrityError:
            return None
        if record is None or record.target != target:
            return None
        made = record.provenance
        seconds = (made.lower_ms + made.generate_ms) / 1000
        return Sample(request.phase, request.bucket, seconds, made.peak_memory_mb, record.artifact.size)

    found = parallel(sample, store.names("requests")[:_MOST_RECORDS])
    return [item for item in found if item is not None]


def estimate(samples: Iterable[Sample], phase: str, bucket: Bucket) -> Estimate | None:
    """The median of the nearest past compiles of the phase, by bucket; None without any.

    Of whatever model: time follows the number of operators, so a store that holds one family estimates best.
    """
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


def memory_needs(store: Store, programs: Sequence[ProgramPlan], target: str) -> list[int]:
    """MB at the peak of making each program, learned from the store's past compiles, else the stated default."""
    samples = read_samples(store, target)
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
