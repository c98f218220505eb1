"""Push and pull: one bundle from one store to another. Only what is missing moves, and whatever moves is verified.

The order is that of every writer: blobs, records, the bundle, its signatures, the ref. So a reader of the destination
sees the old bundle or the new one, and a copy that was interrupted goes on where it stopped.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from pathlib import Path

from neuron_aot_runtime.contract.errors import IntegrityError, NotFoundError
from neuron_aot_runtime.contract.layout import blob_path, is_bundle_id, program_path, signature_directory
from neuron_aot_runtime.contract.manifest import Artifact, Manifest
from neuron_aot_runtime.store import (
    Bundle,
    LocalReader,
    ProgramRecord,
    RefRecord,
    RequestRecord,
    StoreReader,
    parse_record,
)

from .store import STREAMS, Store


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
    copy = _Copy(source, destination, progress or (lambda done, total: None))
    manifest = bundle.manifest
    programs = {program.program_key: program for program in manifest.programs}
    records = dict(zip(programs, copy.each(copy.source_record, programs.values()), strict=True))
    with destination.leased(programs, {blob.digest for record in records.values() for blob in record.blobs}):
        first = dict(zip(programs, copy.each(destination.program, programs), strict=True))
        winners = {key: copy.settle(records[key], first[key]) for key in programs}
        copy.blobs({blob.digest: blob for key, record in winners.items() for blob in _needed(record, records[key])})
        stored = copy.each(destination.put_program, winners.values())
        winners = {item.record.program_key: item.record for item in stored}
        manifest = _with_artifacts(manifest, winners)
        copy.requests(set(programs))
        bundle_id = destination.publish(manifest)
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
    """The steps of one copy; each works on many objects at a time."""

    def __init__(self, source: StoreReader, destination: Store, progress: Progress) -> None:
        self.source, self.destination, self.progress = source, destination, progress
        self.moved: dict[str, int] = {}
        self.kept: dict[str, int] = {}

    def each(self, work: Callable, items) -> list:
        """``work`` on every item, at most STREAMS at a time; the first error ends it."""
        with ThreadPoolExecutor(STREAMS) as pool:
            waiting = [pool.submit(work, item) for item in items]
            try:
                for done in as_completed(waiting):
                    done.result()
            except BaseException:
                pool.shutdown(wait=True, cancel_futures=True)
                raise
            return [future.result() for future in waiting]

    def source_record(self, program) -> ProgramRecord:
        path = program_path(program.program_key)
        where = f"{self.source.location}/{path}"
        record = parse_record(ProgramRecord, self.source.read(path), where=where)
        if (record.program_key, record.artifact) != (program.program_key, program.artifact):
            raise IntegrityError(
                f"{program.name} is recorded with another artifact than the bundle names; nothing was published",
                wanted=program.artifact.digest,
                found=f"{record.artifact.digest} in {where}",
                next_command=f"neuron-aot verify {self.source.location} --all",
            )
        return record

    def settle(self, ours: ProgramRecord, first: ProgramRecord | None) -> ProgramRecord:
        """Whose artifact counts for a program: that of the first writer, as long as it is there."""
        if first is not None and first.artifact == ours.artifact:
            return first  # with its own attachments: what compilers log differs each time
        if first is None or not self.destination.is_whole(first.artifact):
            return ours
        self.destination.note_difference(first, ours.artifact)
        return first

    def blobs(self, artifacts: dict[str, Artifact]) -> None:
        total, done = sum(artifact.size for artifact in artifacts.values()), 0
        there = dict(zip(artifacts, self.each(self._has, artifacts.values()), strict=True))
        done += sum(artifacts[digest].size for digest, has in there.items() if has)
        self.kept |= {
            digest: artifacts[digest].size for digest, has in there.items() if has and digest not in self.moved
        }

        def move(artifact: Artifact) -> None:
            nonlocal done
            self.destination.copy_blob(self.source, artifact.digest, artifact.size)
            self.moved[artifact.digest] = artifact.size
            done += artifact.size
            self.progress(done, total)

        self.progress(done, total)
        # The largest first, so that no stream is left with a long one at the end.
        missing = [artifacts[digest] for digest, has in there.items() if not has]
        self.each(move, sorted(missing, key=lambda artifact: artifact.size, reverse=True))

    def _has(self, artifact: Artifact) -> bool:
        # Its size only: hashing a whole destination before each copy would cost more than the copy. ``verify`` does.
        try:
            return self.destination.backend.stat(blob_path(artifact.digest)).size == artifact.size
        except NotFoundError:
            return False

    def requests(self, programs: set[str]) -> None:
        """From a local store: so that a compile against the destination finds the programs without lowering.

        Nothing leads from a program back to its requests, and reading all requests of a remote store costs too much.
        """
        if not isinstance(self.source, LocalReader):
            return
        for path in self.source.names("requests"):
            record = parse_record(RequestRecord, self.source.read(path), where=f"{self.source.location}/{path}")
            if record.program_key in programs and record.request_key == Path(path).stem:
                self.destination.put_request(record)

    def signatures(self, bundle_id: str) -> None:
        for path in self.source.names(signature_directory(bundle_id)):
            self.destination.backend.create(path, self.source.read(path))


def default_ref(bundle: Bundle) -> str | None:
    """The ref that led to the bundle."""
    name = bundle.reference.name
    return None if name is None or is_bundle_id(name) else name


def _needed(winner: ProgramRecord, ours: ProgramRecord) -> list[Artifact]:
    """The blobs that must be there: the artifact, and those attachments that the source has as well."""
    return [winner.artifact, *(blob for blob in winner.attachments.values() if blob in ours.blobs)]


def _with_artifacts(manifest: Manifest, winners: dict[str, ProgramRecord]) -> Manifest:
    programs = [
        program.model_copy(update={"artifact": winners[program.program_key].artifact}) for program in manifest.programs
    ]
    return manifest.model_copy(update={"programs": tuple(programs)})
