"""A store open for writing: what is written, in which order, and who wins. Where it lies is the back end's affair."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from neuron_aot_runtime.contract.canonical import digest_file
from neuron_aot_runtime.contract.errors import IntegrityError, NotFoundError
from neuron_aot_runtime.contract.layout import (
    blob_path,
    bundle_path,
    difference_path,
    failure_path,
    program_path,
    request_path,
)
from neuron_aot_runtime.contract.manifest import Artifact, Manifest
from neuron_aot_runtime.settings import read_store_settings
from neuron_aot_runtime.store import (
    Entry,
    FailureRecord,
    ProgramRecord,
    RefRecord,
    RequestRecord,
    is_remote,
    open_reader,
    parse_record,
)
from neuron_aot_runtime.store.cache import Cache, default_cache, download
from neuron_aot_runtime.store.locks import hold_lock
from neuron_aot_runtime.store.reader import LocalReader, StoreReader, storage_errors
from neuron_aot_runtime.store.records import Difference

from . import files, leases, refs
from .backend import Backend, open_backend

#: Requests or transfers at the same time against a remote store.
STREAMS = 8


@dataclass(frozen=True)
class Stored:
    """What a put left in the store. ``record``: ours, or that of the writer who was first (``adopted``)."""

    record: ProgramRecord
    adopted: bool = False


class Store:
    """``work``: a local directory for unfinished files and locks; ``cache``: this host's, in front of a remote store.

    Every method raises the StoreErrors of the back end; nothing with a final name is ever incomplete.
    """

    def __init__(self, backend: Backend, work: Path, cache: Cache | None = None) -> None:
        self.backend, self.work, self.cache = backend, work, cache
        self.location = backend.location

    @property
    def root(self) -> Path:
        """The directory of a local store."""
        return self.backend.root

    @property
    def remote(self) -> bool:
        """Whether reading a blob means fetching it."""
        return self.cache is not None

    def read(self, path: str) -> bytes:
        return self.backend.read(path)

    def names(self, directory: str) -> list[str]:
        return self.backend.names(directory)

    def list(self, directory: str) -> list[Entry]:
        return self.backend.list(directory)

    @contextmanager
    def scratch(self) -> Iterator[Path]:
        """A directory to make artifacts in; removed at the end."""
        with storage_errors("tmp", str(self.work)):
            manager = files.scratch(self.work)
            directory = manager.__enter__()
        try:
            yield directory
        finally:
            manager.__exit__(None, None, None)

    def clean_litter(self) -> int:
        """Remove the unfinished files of killed processes; returns how many directories."""
        with storage_errors("tmp", str(self.work)):
            return files.clean_litter(self.work)

    def require_writable(self) -> None:
        """Find out whether the store can be written to, before hours of work rather than after."""
        with self.scratch():
            pass
        if self.remote:
            with leases.held(self.backend, "push"):
                pass

    def lock(self, key: str, on_wait: Callable[[], None] | None = None):
        """The lock of a request or program key (a context manager): one compile per key among this host's processes."""
        with storage_errors("locks", str(self.work)):
            return hold_lock(self.work / "locks" / f"{key}.lock", on_wait)

    def put_blob(self, source: Path) -> tuple[str, int]:
        """Store the file ``source`` (in a scratch directory; it is moved) under its digest; returns (digest, size).

        An existing blob of that digest is verified, and replaced when it is damaged.
        """
        with storage_errors("blobs", str(self.work)):
            digest, size = digest_file(source), source.stat().st_size
        path = blob_path(digest)
        if not self.backend.create_file(path, source) and not self.is_whole(
            Artifact(format="", digest=digest, size=size)
        ):
            self.backend.replace_file(path, source)
        if self.remote:
            with suppress(OSError):  # the next reader on this host need not fetch it
                self.cache.blob(digest).parent.mkdir(parents=True, exist_ok=True)
                os.replace(source, self.cache.blob(digest))
        return digest, size

    def copy_blob(self, reader: StoreReader, digest: str, size: int) -> None:
        """Store a blob of another store; it is verified on the way and a damaged one never stored.

        A local store goes on with what an interrupted copy left. Raises what ``reader`` raises, IntegrityError.
        """
        path, name = blob_path(digest), digest.removeprefix("sha256:")
        if self.remote and isinstance(reader, LocalReader):
            source = reader.blob_file(digest, size)
            with storage_errors(path, reader.location):
                if (found := digest_file(source)) != digest:
                    raise _damaged(path, reader, digest, found)
            self.backend.replace_file(path, source)
            return
        with storage_errors(path, str(self.work)), hold_lock(self.work / "locks" / f"{name}.lock"):
            partial = self.work / "partial" / name
            partial.parent.mkdir(parents=True, exist_ok=True)
            download(reader, digest, size, partial)
            self.backend.replace_file(path, partial)
            partial.unlink(missing_ok=True)

    def is_whole(self, artifact: Artifact) -> bool:
        """Whether the artifact's blob is there with the right size and sha256; reads all of it."""
        path, state, size = blob_path(artifact.digest), hashlib.sha256(), 0
        try:
            if self.backend.stat(path).size != artifact.size:
                return False
            for chunk in self.backend.stream(path):
                state.update(chunk)
                size += len(chunk)
        except NotFoundError:
            return False
        return size == artifact.size and "sha256:" + state.hexdigest() == artifact.digest

    def is_there(self, artifact: Artifact) -> bool:
        """``is_whole`` where reading is cheap; of a remote blob only its size, for whoever loads it verifies it."""
        if not self.remote:
            return self.is_whole(artifact)
        try:
            return self.backend.stat(blob_path(artifact.digest)).size == artifact.size
        except NotFoundError:
            return False

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
        if self.remote:
            with ThreadPoolExecutor(STREAMS) as pool:
                hits = list(pool.map(self.find, keys))
        else:
            hits = map(self.find, keys)
        return {key: hit for key, hit in zip(keys, hits, strict=True) if hit}

    def put_program(self, record: ProgramRecord) -> Stored:
        """Store a program's record; its blob must be there. The first writer wins, the loser adopts its artifact.

        A record whose own blob is lost or damaged cannot win: it is replaced. The loser's artifact is noted as a
        difference: the compiler is not deterministic.
        """
        self._require_blob(record)
        path = program_path(record.program_key)
        while not self.backend.create(path, record.to_json()):
            first = self.program(record.program_key)
            if first is None:
                continue  # purged in between
            if first.artifact == record.artifact:
                return Stored(first)
            if self.is_whole(first.artifact):
                self.note_difference(first, record.artifact)
                return Stored(first, adopted=True)
            self.backend.replace(path, record.to_json())
            break
        return Stored(record)

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

    def publish(self, manifest: Manifest) -> str:
        """Store a bundle; every record and blob it names is verified first. Returns the bundle id.

        Raises NotFoundError or IntegrityError, and stores nothing, when anything is missing or damaged.
        """
        with ThreadPoolExecutor(STREAMS if self.remote else 1) as pool:
            for _ in pool.map(self._require_program, manifest.programs):
                pass
        data, bundle_id = manifest.to_json(), manifest.bundle_id
        path = bundle_path(bundle_id)
        if not self.backend.create(path, data) and self.read(path) != data:
            self.backend.replace(path, data)  # its name says what it must hold
        return bundle_id

    def set_ref(self, name: str, record: RefRecord) -> RefRecord:
        """Let a ref mean a bundle, at one stroke. Raises UsageError (bad name), NotFoundError (no such bundle)."""
        return refs.set_ref(self.backend, name, record)

    @contextmanager
    def leased(self, programs: Iterable[str] = (), blobs: Iterable[str] = ()) -> Iterator[None]:
        """Until its end no gc takes these, whatever their age. Waits for a gc that runs already."""
        with leases.held(self.backend, "push", programs, blobs):
            leases.wait_for_gc(self.backend)
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


def now() -> str:
    """The time, for records that people read."""
    return datetime.now(UTC).isoformat(timespec="seconds")


def _damaged(path: str, reader: StoreReader, wanted: str, found: str) -> IntegrityError:
    return IntegrityError(
        f"{path} in the store {reader.location} is damaged; it was not copied",
        wanted=wanted,
        found=found,
        next_command=f"neuron-aot verify {reader.location} --all --repair OTHER_STORE",
    )
