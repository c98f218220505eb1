"""Where a store's bytes come from: one small protocol, and its first implementation, a directory.

Paths are relative and come from ``contract.layout`` only, so none leaves the store.
"""

from __future__ import annotations

import errno
import hashlib
import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from ..contract.canonical import digest_file
from ..contract.errors import (
    AccessDeniedError,
    FullDiskError,
    IntegrityError,
    NeuronAotError,
    NotFoundError,
    StorageFaultError,
)
from ..contract.layout import blob_path

#: Bytes. Records and manifests are read whole, so an absurd one must not fill the memory.
RECORD_LIMIT = 64 << 20
CHUNK = 1 << 18

_ABSENT = (errno.ENOENT, errno.ENOTDIR, errno.EISDIR, errno.ENAMETOOLONG)
_DENIED = (errno.EACCES, errno.EPERM, errno.EROFS)
_FULL = (errno.ENOSPC, errno.EDQUOT)


@dataclass(frozen=True)
class Entry:
    """One stored object: its relative path, size in bytes, and when it was last written, in seconds since 1970."""

    path: str
    size: int
    modified: float


class StoreReader(Protocol):
    """``location`` is how users name the store. Every method raises the StoreErrors that its storage can meet."""

    location: str

    def read(self, path: str) -> bytes:
        """The whole of a record or manifest. Raises NotFoundError; IntegrityError above RECORD_LIMIT."""

    def stat(self, path: str) -> Entry:
        """Size and age without the content. Raises NotFoundError."""

    def stream(self, path: str, start: int = 0) -> Iterator[bytes]:
        """The content from byte ``start`` on, in pieces; at most a few are in memory. Raises NotFoundError."""

    def digest(self, path: str) -> tuple[str, int]:
        """The sha256 and the size in bytes of the content, all of which is read. Raises NotFoundError."""

    def blob_file(self, digest: str, size: int, *, fresh: bool = False) -> Path:
        """A local file with a blob of ``size`` bytes; whoever reads it verifies it. Raises NotFoundError.

        ``fresh``: what was handed out before is damaged; a reader with another source fetches it again.
        """

    def list(self, directory: str) -> list[Entry]:
        """All objects below ``directory``, by path; empty when there is no such directory."""

    def names(self, directory: str) -> list[str]:
        """The relative paths of all objects below ``directory``, sorted."""


class LocalReader:
    """A store in a directory: local disk, FSx, NFS, any mount."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.location = str(root)

    def read(self, path: str) -> bytes:
        with storage_errors(path, self.location), open(self.root / path, "rb") as file:
            refuse_absurd(os.fstat(file.fileno()).st_size, path, self.location)
            return file.read()

    def stat(self, path: str) -> Entry:
        with storage_errors(path, self.location):
            found = os.stat(self.root / path)
        return Entry(path, found.st_size, found.st_mtime)

    def stream(self, path: str, start: int = 0) -> Iterator[bytes]:
        with storage_errors(path, self.location), open(self.root / path, "rb") as file:
            file.seek(start)
            while chunk := file.read(CHUNK):
                yield chunk

    def digest(self, path: str) -> tuple[str, int]:
        with storage_errors(path, self.location):
            return digest_file(self.root / path), os.stat(self.root / path).st_size

    def blob_file(self, digest: str, size: int, *, fresh: bool = False) -> Path:
        local = self.root / blob_path(digest)
        with storage_errors(blob_path(digest), self.location), open(local, "rb"):
            return local

    def list(self, directory: str) -> list[Entry]:
        found = []
        for path in self.names(directory):
            try:
                found.append(self.stat(path))
            except NotFoundError:
                continue  # removed since it was listed
        return found

    def names(self, directory: str) -> list[str]:
        found = []
        with storage_errors(directory, self.location):
            for parent, _, files in os.walk(self.root / directory, onerror=_unless_absent):
                found += [Path(parent, name).relative_to(self.root).as_posix() for name in files]
        return sorted(found)


def digest_stream(chunks: Iterable[bytes]) -> tuple[str, int]:
    """The sha256 and the size in bytes of what a ``stream`` gives."""
    state, size = hashlib.sha256(), 0
    for chunk in chunks:
        state.update(chunk)
        size += len(chunk)
    return "sha256:" + state.hexdigest(), size


def refuse_absurd(size: int, path: str, location: str) -> None:
    """Raises IntegrityError for a record of more bytes than any record has."""
    if size > RECORD_LIMIT:
        raise IntegrityError(
            f"{path} in the store {location} is absurdly large; it was not read",
            wanted=f"at most {RECORD_LIMIT} bytes",
            found=f"{size} bytes",
        )


@contextmanager
def storage_errors(path: str, location: str):
    """The one border from OSError to our errors: absent, denied, full and failed are four different things."""
    try:
        yield
    except OSError as error:
        raise storage_error(error, path, location) from error


def storage_error(error: OSError, path: str, location: str) -> NeuronAotError:
    """Our error for an OSError met at ``path`` of the store at ``location``."""
    if error.errno in _ABSENT:
        return NotFoundError(f"{path} is not in the store {location}", found=error.strerror)
    if error.errno in _DENIED:
        return AccessDeniedError(
            f"access to {path} in the store {location} is denied",
            found=error.strerror,
            next_command=f"check the permissions of {location} for this user; nothing is known about what it holds",
        )
    if error.errno in _FULL:
        return FullDiskError(
            f"no space is left at {location}: {path} was not written",
            found=error.strerror,
            next_command=f"free space there (neuron-aot gc {location} --dry-run lists what could go), then run it again",
        )
    return StorageFaultError(f"the store {location} failed at {path}", found=error.strerror or str(error))


def _unless_absent(error: OSError) -> None:
    if error.errno != errno.ENOENT:
        raise error
