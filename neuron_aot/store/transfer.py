"""Push and pull: one bundle from one store to another. Only what is missing moves, and whatever moves is verified.

The order is that of every writer: blobs, records, the bundle, its signatures, the ref. So a reader of the destination
sees the old bundle or the new one, and a copy that was interrupted goes on where it stopped.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from threading import Lock

from neuron_aot_runtime.contract.errors import IntegrityError
from neuron_aot_runtime.contract.layout import is_bundle_id, program_path, signature_directory
from neuron_aot_runtime.contract.manifest import Artifact, Manifest, Program
from neuron_aot_runtime.store import (
    Bundle,
    ProgramRecord,
    RefRecord,
    StoreReader,
    parse_record,
)

from .origins import read_requests
from .store import Store
from .streams import parallel


@dataclass(frozen=True, kw_only=True)
class Report:
    """What a copy did; sizes in bytes. ``adopted``: programs for which another writer's bytes were there first.

    ``bundle`` is the id at the destination: another one than the source's when anything was adopted.
    """

    bundle: str
    source_bundle: str
    ref: str | None
    moved_blobs: int
    moved_bytes: int
    kept_blobs: int
    kept_bytes: int
    adopted: tuple[str, ...]
    seconds: float


#: (bytes that are there, bytes in all), after each blob
Progress = Callable[[int, int], None]


def copy_bundle(
    bundle: Bundle, destination: Store, *, ref: str | None = None, progress: Progress | None = None
) -> Report:
    """Copy ``bundle`` and let ``ref`` mean it there.

    Raises the StoreErrors of both stores; IntegrityError when the source is damaged, and then no bundle is published.
    """
    started = time.monotonic()
    source = getattr(bundle.reader, "remote", None) or bundle.reader  # past the cache: the destination keeps the bytes
    manifest = bundle.manifest
    programs = {program.program_key: program for program in manifest.programs}
    records = dict(zip(programs, parallel(partial(_source_record, source), programs.values()), strict=True))
    copy = _Copy(source, destination, records.values(), progress or (lambda done, total: None))
    with destination.leased(programs, copy.sizes):
        # The largest first, so that no stream is left with a long one at the end.
        largest_first = sorted(records.values(), key=lambda record: record.artifact.size, reverse=True)
        winners = {record.program_key: record for record in parallel(copy.program, largest_first)}
        manifest = _with_artifacts(manifest, winners)
        requests = read_requests(source, bundle.bundle_id, programs)
        parallel(destination.put_request, requests)
        # A bundle that was there already may be old enough for a gc to take between its publication and its ref.
        with destination.leased(bundles=[manifest.bundle_id]):
            bundle_id = destination.publish(manifest, [request.request_key for request in requests])
            if bundle_id == bundle.bundle_id:
                copy.signatures(bundle_id)
            if ref is not None:
                destination.set_ref(ref, RefRecord(bundle=bundle_id, model=bundle.ref.model if bundle.ref else None))
    return Report(
        bundle=bundle_id,
        source_bundle=bundle.bundle_id,
        ref=ref,
        moved_blobs=len(copy.moved),
        moved_bytes=sum(copy.moved.values()),
        kept_blobs=len(copy.kept),
        kept_bytes=sum(copy.kept.values()),
        adopted=tuple(
            programs[key].name for key in programs if winners[key].artifact.digest != programs[key].artifact.digest
        ),
        seconds=time.monotonic() - started,
    )


class _Copy:
    """The steps of one copy. ``sizes``, ``moved``, ``kept``: bytes by digest, of all blobs and of those done with."""

    def __init__(
        self, source: StoreReader, destination: Store, records: Iterable[ProgramRecord], progress: Progress
    ) -> None:
        self.source, self.destination, self.progress = source, destination, progress
        self.sizes = {blob.digest: blob.size for record in records for blob in record.blobs}
        self.moved: dict[str, int] = {}
        self.kept: dict[str, int] = {}
        self._locks = {digest: Lock() for digest in self.sizes}
        progress(0, sum(self.sizes.values()))

    def program(self, ours: ProgramRecord) -> ProgramRecord:
        """Copy one program; returns the record that counts, which is that of whoever was first."""
        with self.destination.lock(ours.program_key):
            winner = self.destination.put_program(ours, lambda: self.blobs(ours.blobs)).record
        # Of a program that was there already, what is damaged or lost beside the artifact is healed.
        self.blobs(blob for blob in winner.blobs if blob in ours.blobs)
        return winner

    def blobs(self, artifacts: Iterable[Artifact]) -> None:
        for artifact in artifacts:
            with self._locks[artifact.digest]:  # programs may share one
                if artifact.digest in self.moved or artifact.digest in self.kept:
                    continue
                # Of a remote destination sizes only: hashing it before each copy would cost more than the copy.
                if self.destination.is_there(artifact):
                    self.kept[artifact.digest] = artifact.size
                else:
                    self.destination.copy_blob(self.source, artifact.digest, artifact.size)
                    self.moved[artifact.digest] = artifact.size
            self.progress(sum(self.moved.values()) + sum(self.kept.values()), sum(self.sizes.values()))

    def signatures(self, bundle_id: str) -> None:
        for path in self.source.names(signature_directory(bundle_id)):
            self.destination.backend.create(path, self.source.read(path))


def _source_record(source: StoreReader, program: Program) -> ProgramRecord:
    path = program_path(program.program_key)
    where = f"{source.location}/{path}"
    record = parse_record(ProgramRecord, source.read(path), where=where)
    if (record.program_key, record.artifact) != (program.program_key, program.artifact):
        raise IntegrityError(
            f"{program.name} is recorded with another artifact than the bundle names; nothing was published",
            wanted=program.artifact.digest,
            found=f"{record.artifact.digest} in {where}",
            next_command=f"neuron-aot verify {source.location} --all",
        )
    return record


def default_ref(bundle: Bundle) -> str | None:
    """The ref that led to the bundle."""
    name = bundle.reference.name
    return None if name is None or is_bundle_id(name) else name


def _with_artifacts(manifest: Manifest, winners: dict[str, ProgramRecord]) -> Manifest:
    programs = [
        program.model_copy(update={"artifact": winners[program.program_key].artifact}) for program in manifest.programs
    ]
    return manifest.model_copy(update={"programs": tuple(programs)})
