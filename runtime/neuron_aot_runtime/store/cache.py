"""The cache in front of remote stores: one directory a host, shared by its ranks and processes, bounded in size.

blobs/sha256/ab/abcd…      verified before they get their name; shared by all remote stores
partial/<digest>           a fetch that was interrupted goes on from here
stores/<of the URL>/…      bundles, and the last that was seen of everything that can change
locks/                     one fetch per blob: whoever comes second waits and finds it
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from ..contract.canonical import digest_file
from ..contract.errors import AccessDeniedError, IntegrityError, NotFoundError, OfflineError
from ..contract.layout import blob_path
from ..settings import CACHE, read_store_settings
from .locks import hold_lock
from .reader import CHUNK, Entry, LocalReader, StoreReader, digest_stream, storage_errors

#: Seconds. What was used in this time is not evicted: a process may be about to open it.
_IN_USE = 600


class Cache:
    """The directory. It may be read-only as long as nothing has to be fetched."""

    def __init__(self, root: Path, limit: int) -> None:
        self.root, self.limit = root, limit

    def blob(self, digest: str) -> Path:
        """Where a blob lies, or would lie."""
        return self.root / blob_path(digest)

    def records(self, location: str) -> LocalReader:
        """What is kept of a store's records."""
        return LocalReader(self.root / "stores" / hashlib.sha256(location.encode()).hexdigest()[:32])

    def keep(self, location: str, path: str, data: bytes | None) -> None:
        """Remember a record, at one stroke; None: that there is none. A cache that cannot be written to is left alone."""
        final = self.records(location).root / path
        with contextlib.suppress(OSError):
            if data is None:
                final.unlink(missing_ok=True)
                return
            final.parent.mkdir(parents=True, exist_ok=True)
            descriptor, name = tempfile.mkstemp(dir=final.parent, prefix=".new-")
            with open(descriptor, "wb") as file:
                file.write(data)
            os.replace(name, final)

    def fetch(self, reader: StoreReader, digest: str, size: int, *, fresh: bool = False) -> Path:
        """The blob's file, fetched and verified unless it is there; one process fetches, the others wait for it.

        ``fresh``: the file that is there is damaged. Raises what ``reader`` raises, IntegrityError, FullDiskError.
        """
        final = self.blob(digest)
        if not fresh and self._use(final):
            return final
        self._require_writable()
        key = digest.removeprefix("sha256:")
        with storage_errors(blob_path(digest), str(self.root)), hold_lock(self.root / "locks" / f"{key}.lock"):
            if final.exists() and not (fresh and digest_file(final) != digest):
                return final
            self._make_room(size)
            partial = self.root / "partial" / key
            partial.parent.mkdir(parents=True, exist_ok=True)
            download(reader, digest, size, partial)
            final.parent.mkdir(parents=True, exist_ok=True)
            os.replace(partial, final)
        return final

    def _use(self, final: Path) -> bool:
        with storage_errors(str(final), str(self.root)):
            try:
                modified = final.stat().st_mtime
            except FileNotFoundError:
                return False
        if time.time() - modified > _IN_USE / 2:
            with contextlib.suppress(OSError):  # a read-only cache evicts nothing either
                os.utime(final)
        return True

    def _require_writable(self) -> None:
        try:
            self.root.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryFile(dir=self.root):
                pass
        except OSError as error:
            raise AccessDeniedError(
                f"the cache {self.root} cannot be written to, and something has to be fetched",
                wanted="a directory of this user",
                found=error.strerror,
                next_command=f"{CACHE}=DIRECTORY …, or fetch as a user who may write there",
            ) from error

    def _make_room(self, size: int) -> None:
        """Evict what was used longest ago until ``size`` more bytes fit."""
        files = []
        for entry in LocalReader(self.root).list("blobs"):
            files.append((entry.modified, entry.size, entry.path))
        total = sum(item[1] for item in files) + size
        for modified, freed, path in sorted(files):
            if total <= self.limit or time.time() - modified < _IN_USE:
                break
            (self.root / path).unlink(missing_ok=True)
            total -= freed


class CachedReader:
    """A remote store behind the cache. ``remote`` None: offline, or ``refetch`` (another process) brings the blobs.

    Bundles never change, so they are asked for once; of all else the last that was seen answers only offline.
    """

    def __init__(
        self, location: str, cache: Cache, remote: StoreReader | None, refetch: Callable[[str], None] | None = None
    ) -> None:
        self.location, self.cache, self.remote, self._refetch = location.rstrip("/"), cache, remote, refetch
        self._kept = cache.records(self.location)

    def read(self, path: str) -> bytes:
        if path.startswith("bundles/"):
            with contextlib.suppress(NotFoundError):
                data = self._kept.read(path)
                if hashlib.sha256(data).hexdigest() == Path(path).stem:
                    return data
        if self.remote is None:
            return self._seen(lambda: self._kept.read(path), path)
        try:
            data = self.remote.read(path)
        except NotFoundError:
            self.cache.keep(self.location, path, None)
            raise
        self.cache.keep(self.location, path, data)
        return data

    def stat(self, path: str) -> Entry:
        return self.remote.stat(path) if self.remote else self._seen(lambda: self._kept.stat(path), path)

    def stream(self, path: str, start: int = 0):
        if self.remote is not None:
            return self.remote.stream(path, start)
        return self._seen(lambda: LocalReader(self.cache.root).stream(path, start), path)

    def digest(self, path: str) -> tuple[str, int]:
        return digest_stream(self.stream(path))

    def list(self, directory: str) -> list[Entry]:
        return self.remote.list(directory) if self.remote else self._kept.list(directory)

    def names(self, directory: str) -> list[str]:
        return self.remote.names(directory) if self.remote else self._kept.names(directory)

    def blob_file(self, digest: str, size: int, *, fresh: bool = False) -> Path:
        if self.remote is not None:
            return self.cache.fetch(self.remote, digest, size, fresh=fresh)
        final = self.cache.blob(digest)
        if fresh or not final.exists():
            if self._refetch is None:
                raise self._offline(blob_path(digest)) from None
            self._refetch(digest)
        self.cache._use(final)
        return final

    def _seen(self, read: Callable, path: str):
        try:
            return read()
        except NotFoundError as error:
            raise self._offline(path) from error

    def _offline(self, path: str) -> OfflineError:
        return OfflineError(
            f"offline, and the cache does not have {path} of {self.location}",
            wanted=path,
            found=f"not in {self.cache.root}",
            next_command="fetch it with the network on: neuron-aot pull, or start once without NEURON_AOT_OFFLINE",
        )


def default_cache() -> Cache:
    """The cache that the settings name."""
    settings = read_store_settings()
    return Cache(settings.cache, settings.cache_size)


def download(reader: StoreReader, digest: str, size: int, partial: Path) -> None:
    """Fetch a blob into ``partial``, which may hold its beginning; verified at the end, not synced.

    Raises what ``reader`` raises and OSError; IntegrityError, with ``partial`` removed, when the bytes are not the blob.
    """
    try:
        _go_on(reader, digest, size, partial)
    except IntegrityError:
        begun = partial.stat().st_size if partial.exists() else 0
        partial.unlink(missing_ok=True)
        if not begun:
            raise
        # Perhaps it was the old beginning that was damaged.
        try:
            _go_on(reader, digest, size, partial)
        except IntegrityError:
            partial.unlink(missing_ok=True)
            raise


def _go_on(reader: StoreReader, digest: str, size: int, partial: Path) -> None:
    state, path = hashlib.sha256(), blob_path(digest)
    with open(partial, "a+b") as file:
        file.seek(0)
        done = 0
        while chunk := file.read(CHUNK):
            state.update(chunk)
            done += len(chunk)
        if done < size or size == 0:
            for chunk in reader.stream(path, done):
                done += len(chunk)
                if done > size:
                    break
                state.update(chunk)
                file.write(chunk)
    if done != size or "sha256:" + state.hexdigest() != digest:
        raise IntegrityError(
            f"{path} in the store {reader.location} is damaged; it was not kept",
            wanted=f"{digest}, {size} bytes",
            found="more bytes" if done > size else f"sha256:{state.hexdigest()}, {done} bytes",
            next_command=f"neuron-aot verify {reader.location} --repair OTHER_STORE",
        )
