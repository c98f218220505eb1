"""A store in a local directory (or FSx, NFS, any mount), open for writing."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from neuron_aot_runtime.contract.canonical import digest_file
from neuron_aot_runtime.contract.errors import IntegrityError, NotFoundError, UsageError
from neuron_aot_runtime.contract.layout import (
    blob_path,
    bundle_path,
    failure_path,
    program_path,
    ref_path,
    request_path,
)
from neuron_aot_runtime.contract.manifest import Artifact, Manifest
from neuron_aot_runtime.store import FailureRecord, LocalReader, ProgramRecord, RefRecord, RequestRecord, parse_record
from neuron_aot_runtime.store.reader import storage_errors

from . import files
from .locks import hold_lock


@dataclass(frozen=True)
class Stored:
    """What a put left in the store. ``record``: ours, or that of the writer who was first (``adopted``)."""

    record: ProgramRecord
    adopted: bool = False


class LocalStore(LocalReader):
    """Every method raises AccessDeniedError and StorageFaultError; nothing with a final name is ever incomplete."""

    @contextmanager
    def scratch(self) -> Iterator[Path]:
        """A directory to make artifacts in; removed at the end."""
        with storage_errors("tmp", self.location):
            manager = files.scratch(self.root)
            directory = manager.__enter__()
        try:
            yield directory
        finally:
            manager.__exit__(None, None, None)

    def clean_litter(self) -> int:
        """Remove the unfinished files of killed processes; returns how many directories."""
        with storage_errors("tmp", self.location):
            return files.clean_litter(self.root)

    def lock(self, key: str, on_wait: Callable[[], None] | None = None):
        """The lock of a request or program key (a context manager): one compile per key among processes."""
        with storage_errors("locks", self.location):
            return hold_lock(self.root / "locks" / f"{key}.lock", on_wait)

    def put_blob(self, source: Path) -> tuple[str, int]:
        """Store the file ``source`` (in a scratch directory; it is moved) under its digest; returns (digest, size).

        An existing blob of that digest is verified, and replaced when it is damaged.
        """
        with storage_errors("blobs", self.location):
            files.sync_file(source)
            digest, size = digest_file(source), source.stat().st_size
            final = self.root / blob_path(digest)
            if not files.place(source, final) and digest_file(final) != digest:
                files.replace(source, final)
        return digest, size

    def is_whole(self, artifact: Artifact) -> bool:
        """Whether the artifact's blob is there with the right size and sha256."""
        path = self.root / blob_path(artifact.digest)
        with storage_errors(blob_path(artifact.digest), self.location):
            try:
                return path.stat().st_size == artifact.size and digest_file(path) == artifact.digest
            except FileNotFoundError:
                return False

    def program(self, key: str) -> ProgramRecord | None:
        """The record of a program, or None. Raises IntegrityError for a damaged one."""
        return self._record(ProgramRecord, program_path(key))

    def request(self, key: str) -> RequestRecord | None:
        """The record of a request, or None. Raises IntegrityError for a damaged one."""
        return self._record(RequestRecord, request_path(key))

    def find(self, request_key: str) -> tuple[RequestRecord, ProgramRecord] | None:
        """What a request led to, its artifact verified; None when any of it is missing or the artifact is damaged."""
        request = self.request(request_key)
        record = self.program(request.program_key) if request else None
        return (request, record) if request and record and self.is_whole(record.artifact) else None

    def put_program(self, record: ProgramRecord) -> Stored:
        """Store a program's record; its blob must be there. The first writer wins, the loser adopts its artifact.

        A record whose own blob is lost or damaged cannot win: it is replaced.
        """
        self._require_blob(record)
        path = program_path(record.program_key)
        while not self._place(path, record.to_json()):
            first = self.program(record.program_key)
            if first is None:
                continue  # purged in between
            if first.artifact == record.artifact:
                return Stored(first)
            if self.is_whole(first.artifact):
                return Stored(first, adopted=True)
            self._replace(path, record.to_json())
            break
        return Stored(record)

    def put_request(self, record: RequestRecord) -> None:
        """Store what a request lowers to. Raises IntegrityError when it is stored with another program."""
        path = request_path(record.request_key)
        if self._place(path, record.to_json()):
            return
        first = self.request(record.request_key)
        if first != record:
            raise IntegrityError(
                f"lowering is not deterministic: the request {record.request_key} led to another program before",
                wanted=first.program_key if first else None,
                found=record.program_key,
                next_command=f"report this; to go on, remove {self.location}/{path}",
            )

    def failure(self, program_key: str) -> FailureRecord | None:
        """What is remembered of a program that its compiler refuses, or None."""
        return self._record(FailureRecord, failure_path(program_key))

    def put_failure(self, record: FailureRecord) -> None:
        """Remember that a compiler refuses a program; the last writer wins."""
        self._replace(failure_path(record.program_key), record.to_json())

    def drop_failure(self, program_key: str) -> None:
        """Forget what :meth:`put_failure` remembered."""
        path = failure_path(program_key)
        with storage_errors(path, self.location):
            (self.root / path).unlink(missing_ok=True)

    def publish(self, manifest: Manifest) -> str:
        """Store a bundle; every record and blob it names is verified first. Returns the bundle id.

        Raises NotFoundError or IntegrityError, and stores nothing, when anything is missing or damaged.
        """
        for program in manifest.programs:
            record = self.program(program.program_key)
            if record is None:
                raise NotFoundError(
                    f"{program.name} has no record in the store {self.location}: no bundle was published",
                    wanted=program_path(program.program_key),
                )
            if record.artifact != program.artifact:
                raise IntegrityError(
                    f"{program.name} is recorded with another artifact: no bundle was published",
                    wanted=program.artifact.digest,
                    found=record.artifact.digest,
                )
            self._require_blob(record)
        data, bundle_id = manifest.to_json(), manifest.bundle_id
        path = bundle_path(bundle_id)
        if not self._place(path, data) and self.read(path) != data:
            self._replace(path, data)  # its name says what it must hold
        return bundle_id

    def set_ref(self, name: str, record: RefRecord) -> None:
        """Let a ref mean a bundle, at one stroke. Raises UsageError (bad name), NotFoundError (no such bundle)."""
        path = ref_path(name)
        with storage_errors(bundle_path(record.bundle), self.location):
            os.stat(self.root / bundle_path(record.bundle))
        try:
            if self.read(path) == record.to_json():
                return
        except NotFoundError:
            pass
        self._replace(path, record.to_json())

    def _require_blob(self, record: ProgramRecord) -> None:
        if not self.is_whole(record.artifact):
            raise IntegrityError(
                f"the artifact of program {record.program_key} is missing or damaged in the store {self.location}",
                wanted=f"{record.artifact.digest}, {record.artifact.size} bytes",
                next_command="run neuron-aot compile again: it makes the artifact anew",
            )

    def _record(self, schema, path: str):
        try:
            data = self.read(path)
        except NotFoundError:
            return None
        return parse_record(schema, data, where=f"{self.location}/{path}")

    def _place(self, path: str, data: bytes) -> bool:
        return self._write(path, data, files.place)

    def _replace(self, path: str, data: bytes) -> None:
        self._write(path, data, files.replace)

    def _write(self, path: str, data: bytes, give_name: Callable[[Path, Path], bool | None]):
        with storage_errors(path, self.location), files.scratch(self.root) as directory:
            files.write_synced(directory / "record", data)
            return give_name(directory / "record", self.root / path)


def open_store(location: str) -> LocalStore:
    """The store at ``location``, made when it is written to. Raises UsageError for what cannot be a store."""
    if "://" in location:
        raise UsageError("remote stores are not supported yet", wanted="a directory", found=location)
    root = Path(location).expanduser()
    if root.exists() and not root.is_dir():
        raise UsageError(f"{location} is not a store", wanted="a directory", found="a file")
    return LocalStore(root)
