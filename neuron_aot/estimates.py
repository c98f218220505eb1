"""What compiling will take, learned from a store's provenance records."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from statistics import median

from neuron_aot_runtime.contract.buckets import bucket_distance
from neuron_aot_runtime.contract.errors import IntegrityError
from neuron_aot_runtime.contract.manifest import Bucket

from .store import Store, parallel

#: Requests in the records that are read at most; a store may hold years of them.
_MOST_RECORDS = 2000
_NEIGHBOURS = 3


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
