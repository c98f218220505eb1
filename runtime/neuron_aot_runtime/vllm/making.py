"""What it takes to make the programs that a bundle lacks: the same words in a server's error and in
``neuron-aot explain``."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ..contract.buckets import bucket_distance
from ..contract.errors import StoreError
from ..contract.manifest import Bucket, Manifest, Program
from ..store import Bundle, read_program


@dataclass(frozen=True)
class Making:
    """``seconds``: the work of all, as long as the nearest programs of the bundle took; None when that is not known."""

    programs: int
    seconds: float | None

    def __str__(self) -> str:
        took = "unknown work" if self.seconds is None else f"about {self.seconds:.0f} s of work"
        return f"to make: {self.programs} program{'' if self.programs == 1 else 's'}, {took}"


def nearest_program(manifest: Manifest, phase: str, bucket: Bucket) -> Program | None:
    """The program of the phase whose bucket is the nearest, by ratio; None when the bundle has none of the phase."""
    held = (program for program in manifest.programs if program.phase == phase)
    return min(held, key=lambda program: bucket_distance(program.bucket, bucket), default=None)


def making(bundle: Bundle, missing: Sequence[tuple[str, Bucket]]) -> Making:
    """What making ``missing``, (phase, bucket) each, takes. Raises nothing: a record that cannot be read says nothing."""
    nearest = [nearest_program(bundle.manifest, *item) for item in missing]
    seconds = {program.program_key: _seconds(bundle, program.program_key) for program in nearest if program is not None}
    took = [None if program is None else seconds[program.program_key] for program in nearest]
    return Making(len(missing), None if None in took else sum(took))


def _seconds(bundle: Bundle, program_key: str) -> float | None:
    try:
        record = read_program(bundle.reader, program_key)
    except StoreError:
        return None
    return (record.provenance.lower_ms + record.provenance.generate_ms) / 1000 if record else None
