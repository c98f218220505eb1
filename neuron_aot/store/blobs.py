"""The blobs of a store: written under their digest, verified, and never the same bytes moved or hashed twice."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from neuron_aot_runtime.contract.canonical import digest_file
from neuron_aot_runtime.contract.errors import IntegrityError, NotFoundError
from neuron_aot_runtime.contract.layout import blob_path
from neuron_aot_runtime.contract.manifest import Artifact
from neuron_aot_runtime.store import Entry
from neuron_aot_runtime.store.cache import Cache, download
from neuron_aot_runtime.store.locks import hold_lock
from neuron_aot_runtime.store.reader import LocalReader, StoreReader, storage_errors

from . import files
from .backend import Backend


class BlobStore:
    """``work``: a local directory for unfinished files and locks; ``cache``: this host's, in front of a remote store.

    Every method raises the StoreErrors of the back end; nothing with a final name is ever incomplete.
    """

    def __init__(self, backend: Backend, work: Path, cache: Cache | None = None) -> None:
        self.backend, self.work, self.cache = backend, work, cache
        self.location = backend.location
        #: What this object has read or written as it should be, by digest: it counts until the file is another.
        self._verified: dict[str, Entry] = {}

    @property
    def root(self) -> Path:
        """The directory of a local store."""
        return self.backend.root

    @property
    def remote(self) -> bool:
        """Whether reading a blob means fetching it."""
        return self.cache is not None

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

    def lock(self, key: str, on_wait: Callable[[], None] | None = None):
        """The lock of a request or program key (a context manager): one writer per key among this host's processes."""
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
        self._remember(digest)
        if self.remote:
            with suppress(OSError):  # the next reader on this host need not fetch it
                self.cache.blob(digest).parent.mkdir(parents=True, exist_ok=True)
                os.replace(source, self.cache.blob(digest))
        return digest, size

    def copy_blob(self, reader: StoreReader, digest: str, size: int) -> None:
        """Store a blob of another store; it is verified on the way and a damaged one never stored.

        A local store goes on with what an interrupted copy left. Raises what ``reader`` raises, IntegrityError.
        """
        path, name, local = blob_path(digest), digest.removeprefix("sha256:"), isinstance(reader, LocalReader)
        if self.remote and local:
            source = reader.blob_file(digest, size)
            with storage_errors(path, reader.location):
                if (found := digest_file(source)) != digest:
                    raise _damaged(path, reader, digest, found)
            self.backend.replace_file(path, source)
            return
        # Not a program's lock, whatever key a bundle may claim: a writer holds that one around this.
        lock = self.work / "locks" / f"blob-{name}.lock"
        with storage_errors(path, str(self.work)), hold_lock(lock):
            partial = self.work / "partial" / name
            partial.parent.mkdir(parents=True, exist_ok=True)
            download(reader, digest, size, partial)
            # What a remote store has as well can be brought again after a power cut, so nobody waits for the disk.
            self.backend.replace_file(path, partial, durable=local)
            partial.unlink(missing_ok=True)
            self._remember(digest)

    def is_whole(self, artifact: Artifact) -> bool:
        """Whether the artifact's blob is there with the right size and sha256; reads all of it."""
        path = blob_path(artifact.digest)
        try:
            if self.backend.stat(path).size != artifact.size:
                return False
            whole = self.backend.digest(path) == (artifact.digest, artifact.size)
        except NotFoundError:
            return False
        if whole:
            self._remember(artifact.digest)
        return whole

    def is_there(self, artifact: Artifact) -> bool:
        """``is_whole`` where reading is cheap, and once per file; of a remote blob only its size, for whoever loads it
        verifies it."""
        try:
            entry = self.backend.stat(blob_path(artifact.digest))
        except NotFoundError:
            return False
        if self.remote or self._verified.get(artifact.digest) == entry:
            return entry.size == artifact.size
        return self.is_whole(artifact)

    def _remember(self, digest: str) -> None:
        if not self.remote:
            self._verified[digest] = self.backend.stat(blob_path(digest))


def _damaged(path: str, reader: StoreReader, wanted: str, found: str) -> IntegrityError:
    return IntegrityError(
        f"{path} in the store {reader.location} is damaged; it was not copied",
        wanted=wanted,
        found=found,
        next_command=f"neuron-aot verify {reader.location} --all --repair OTHER_STORE",
    )
