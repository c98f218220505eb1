"""A store open for writing: what is written, in which order, and who wins. Where it lies is the back end's affair."""

from __future__ import annotations

import hashlib
import os
import uuid
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass

from neuron_aot_runtime.contract.errors import IntegrityError, NotFoundError
from neuron_aot_runtime.contract.layout import (
    bundle_path,
    difference_path,
    failure_path,
    origin_path,
    program_path,
    request_path,
)
from neuron_aot_runtime.contract.manifest import Artifact, Manifest
from neuron_aot_runtime.settings import read_store_settings
from neuron_aot_runtime.store import (
    Entry,
    FailureRecord,
    OriginRecord,
    ProgramRecord,
    RefRecord,
    RequestRecord,
    is_remote,
    open_reader,
    parse_record,
)
from neuron_aot_runtime.store.cache import default_cache
from neuron_aot_runtime.store.reader import storage_errors
from neuron_aot_runtime.store.records import Difference, now

from . import claims, files, leases, refs
from .backend import open_backend
from .blobs import BlobStore
from .streams import parallel


@dataclass(frozen=True)
class Stored:
    """What a put left in the store. ``record``: ours, or that of the writer who was first (``adopted``)."""

    record: ProgramRecord
    adopted: bool = False


class Store(BlobStore):
    """The records of a store, over its blobs."""

    @property
    def address(self) -> str:
        """``location`` for another process, whose working directory may be another (a Ray worker's)."""
        return self.location if is_remote(self.location) else os.path.abspath(self.location)

    def read(self, path: str) -> bytes:
        return self.backend.read(path)

    def names(self, directory: str) -> list[str]:
        return self.backend.names(directory)

    def list(self, directory: str) -> list[Entry]:
        return self.backend.list(directory)

    def require_writable(self) -> None:
        """Find out whether the store can be written to, before hours of work rather than after."""
        with self.scratch():
            pass
        if self.remote:
            with leases.held(self.backend, "push"):
                pass

    def program(self, key: str) -> ProgramRecord | None:
        """The record of a program, or None. Raises IntegrityError for a damaged one."""
        return self._record(ProgramRecord, program_path(key))

    def request(self, key: str) -> RequestRecord | None:
        """The record of a request, or None. Raises IntegrityError for a damaged one."""
        return self._record(RequestRecord, request_path(key))

    def find(self, request_key: str) -> tuple[RequestRecord, ProgramRecord] | None:
        """What a request led to; None when any of it is missing or the artifact is damaged (see ``is_there``)."""
        request = self.request(request_key)
        record = self.program(request.program_key) if request else None
        return (request, record) if request and record and self.is_there(record.artifact) else None

    def find_all(self, request_keys: Iterable[str]) -> dict[str, tuple[RequestRecord, ProgramRecord]]:
        """``find`` for many keys, those found only."""
        keys = list(request_keys)
        return {key: hit for key, hit in zip(keys, parallel(self.find, keys), strict=True) if hit}

    def put_program(self, record: ProgramRecord, bring: Callable[[], object] = lambda: None) -> Stored:
        """Store a program; the caller holds ``lock(program_key)``. ``bring`` puts the record's blobs into this store.

        The first writer wins: ``bring`` is not called when another was first, and its artifact is adopted; ours is noted
        as a difference, for the compiler is not deterministic. A record whose own blob is lost or damaged cannot win: it
        is replaced. Raises what ``bring`` raises, and IntegrityError when the artifact is not there after it.
        """
        path = program_path(record.program_key)
        if winner := self._winner(record):
            return winner
        with claims.claimed(self.backend, record.program_key, self._host()) if self.remote else nullcontext():
            if winner := self._winner(record):
                return winner
            bring()
            self._require_blob(record)
            while not self.backend.create(path, record.to_json()):
                if winner := self._winner(record):
                    return winner
                if self.program(record.program_key) is not None:
                    self.backend.replace(path, record.to_json())
                    break
        return Stored(record)

    def _winner(self, record: ProgramRecord) -> Stored | None:
        """What another writer has stored of the program, if it is whole."""
        first = self.program(record.program_key)
        if first is None:
            return None
        if first.artifact == record.artifact:
            # With its own attachments: what compilers log differs each time.
            return Stored(first) if self.is_there(first.artifact) else None
        if not self.is_whole(first.artifact):
            return None
        self.note_difference(first, record.artifact)
        return Stored(first, adopted=True)

    def _host(self) -> str:
        """An identity that the processes share which share this store's locks."""
        path = self.work / "host"
        with storage_errors("host", str(self.work)):
            if not path.exists():
                with files.scratch(self.work) as directory:
                    files.write_synced(directory / "host", uuid.uuid4().hex.encode())
                    files.place(directory / "host", path)
            return path.read_text()

    def note_difference(self, winner: ProgramRecord, loser: Artifact) -> None:
        """Remember that a compiler gave other bytes than the first writer's for the same program."""
        seen = Difference(
            program_key=winner.program_key, winner=winner.artifact, loser=loser, seen_at=now()
        )  # fmt: skip
        self.backend.create(difference_path(winner.program_key, loser.digest), seen.to_json())

    def put_request(self, record: RequestRecord) -> None:
        """Store what a request lowers to. Raises IntegrityError when it is stored with another program."""
        path = request_path(record.request_key)
        if self.backend.create(path, record.to_json()):
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
        self.backend.replace(failure_path(record.program_key), record.to_json())

    def drop_failure(self, program_key: str) -> None:
        """Forget what :meth:`put_failure` remembered."""
        self.backend.delete(failure_path(program_key))

    def publish(self, manifest: Manifest, requests: Iterable[str] = ()) -> str:
        """Store a bundle; every record and blob it names is verified first. Returns the bundle id.

        ``requests``: the keys of the requests that led to its programs; a copy of the bundle brings their records.
        Raises NotFoundError or IntegrityError, and stores nothing, when anything is missing or damaged.
        """
        parallel(self._require_program, manifest.programs)
        data, bundle_id = manifest.to_json(), manifest.bundle_id
        if origin := tuple(sorted(requests)):
            self.backend.replace(origin_path(bundle_id), OriginRecord(bundle=bundle_id, requests=origin).to_json())
        path = bundle_path(bundle_id)
        if not self.backend.create(path, data) and self.read(path) != data:
            self.backend.replace(path, data)  # its name says what it must hold
        return bundle_id

    def set_ref(self, name: str, record: RefRecord) -> RefRecord:
        """Let a ref mean a bundle, at one stroke. Raises UsageError (bad name), NotFoundError (no such bundle)."""
        return refs.set_ref(self.backend, name, record)

    @contextmanager
    def leased(
        self, programs: Iterable[str] = (), blobs: Iterable[str] = (), bundles: Iterable[str] = ()
    ) -> Iterator[None]:
        """Until its end no gc takes these, whatever their age. Waits for a gc that runs already."""
        with leases.held(self.backend, "push", programs, blobs, bundles) as lease:
            leases.wait_for_gc(self.backend, lease)
            yield

    def _require_program(self, program) -> None:
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

    def _require_blob(self, record: ProgramRecord) -> None:
        if not self.is_there(record.artifact):
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


def open_store(location: str) -> Store:
    """The store at ``location``, made when it is written to. Raises UsageError for what cannot be a store."""
    backend = open_backend(location)
    if not is_remote(location):
        return Store(backend, backend.root)
    of_url = hashlib.sha256(backend.location.encode()).hexdigest()[:32]
    return Store(backend, read_store_settings().cache / "work" / of_url, default_cache())


def open_existing(location: str) -> Store:
    """``open_store`` for what only makes sense of a store that is there. Raises NotFoundError too."""
    if not is_remote(location):
        open_reader(location)
    return open_store(location)
