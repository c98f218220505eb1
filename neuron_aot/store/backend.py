"""What writing needs of a storage, and which class offers it for which location.

A back end reads (see the runtime's ``StoreReader``) and writes whole objects: nothing with a final name is ever
incomplete, and of two that create one name, one wins. Every method raises the StoreErrors its storage can meet.
"""

from __future__ import annotations

from pathlib import Path
from typing import Protocol

from neuron_aot_runtime.contract.errors import UsageError
from neuron_aot_runtime.store import StoreReader, is_remote


class Backend(StoreReader, Protocol):
    """``atomic_create``: whether ``create`` is decided by the storage; else two writers may both be told that they won."""

    atomic_create: bool

    def create(self, path: str, data: bytes) -> bool:
        """Store ``data`` unless ``path`` is taken. Returns whether it was stored."""

    def create_file(self, path: str, source: Path) -> bool:
        """The same for a file, which is not held in memory. It may be moved, and must not be written to afterwards."""

    def replace(self, path: str, data: bytes) -> None:
        """Store ``data`` whatever ``path`` held, at one stroke."""

    def replace_file(self, path: str, source: Path, *, durable: bool = True) -> None:
        """The same for a file, which may be moved. ``durable``: it returns when the content survives a power cut."""

    def delete(self, path: str) -> None:
        """Remove ``path``; that it is gone already is no error."""


def open_backend(location: str) -> Backend:
    """The back end for a location; nothing is written or contacted yet. Raises UsageError for what cannot be a store."""
    if location.startswith("s3://"):
        from .s3 import S3Backend

        return S3Backend(location)
    if is_remote(location):
        from .generic import FsspecBackend

        return FsspecBackend(location)
    from .local import LocalBackend

    root = Path(location).expanduser()
    if root.exists() and not root.is_dir():
        raise UsageError(f"{location} is not a store", wanted="a directory or a URL", found="a file")
    return LocalBackend(root)
