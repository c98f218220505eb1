"""Where a store's bytes come from. One small protocol, so that a remote store is one more class.

Paths are relative and come from ``contract.layout`` only, so none leaves the store.
"""

from __future__ import annotations

import errno
import os
from contextlib import contextmanager
from pathlib import Path
from typing import Protocol

from ..contract.errors import AccessDeniedError, NeuronAotError, NotFoundError, StorageFaultError

_ABSENT = (errno.ENOENT, errno.ENOTDIR, errno.EISDIR, errno.ENAMETOOLONG)
_DENIED = (errno.EACCES, errno.EPERM, errno.EROFS)


class StoreReader(Protocol):
    """``location`` is how users name the store. Every method raises AccessDeniedError and StorageFaultError."""

    location: str

    def read(self, path: str) -> bytes:
        """The whole of a record or manifest. Raises NotFoundError."""

    def local_path(self, path: str) -> Path:
        """A local file with the bytes of ``path``, fetched if need be, not verified. Raises NotFoundError."""

    def names(self, directory: str) -> list[str]:
        """The relative paths of all files below ``directory``, sorted; empty when there is no such directory."""


class LocalReader:
    """A store in a directory: local disk, FSx, NFS, any mount."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.location = str(root)

    def read(self, path: str) -> bytes:
        with storage_errors(path, self.location):
            return (self.root / path).read_bytes()

    def local_path(self, path: str) -> Path:
        local = self.root / path
        with storage_errors(path, self.location), open(local, "rb"):
            return local

    def names(self, directory: str) -> list[str]:
        found = []
        with storage_errors(directory, self.location):
            for parent, _, files in os.walk(self.root / directory, onerror=_unless_absent):
                found += [Path(parent, name).relative_to(self.root).as_posix() for name in files]
        return sorted(found)


@contextmanager
def storage_errors(path: str, location: str):
    """The one border from OSError to our errors: absent, denied and failed are three different things."""
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
    return StorageFaultError(f"the store {location} failed at {path}", found=error.strerror or str(error))


def _unless_absent(error: OSError) -> None:
    if error.errno != errno.ENOENT:
        raise error
