"""Writing to a local directory (or FSx, NFS, any mount): written aside, synced, then linked or renamed."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from neuron_aot_runtime.store import LocalReader
from neuron_aot_runtime.store.reader import storage_errors

from . import files


class LocalBackend(LocalReader):
    """A store in a directory, open for writing; the directory is made when it is written to."""

    atomic_create = True

    def create(self, path: str, data: bytes) -> bool:
        return self._write(path, data, files.place)

    def create_file(self, path: str, source: Path) -> bool:
        return self._move(path, source, files.place)

    def replace(self, path: str, data: bytes) -> None:
        self._write(path, data, files.replace)

    def replace_file(self, path: str, source: Path, *, durable: bool = True) -> None:
        self._move(path, source, files.replace, durable)

    def delete(self, path: str) -> None:
        with storage_errors(path, self.location), suppress(FileNotFoundError):
            (self.root / path).unlink()

    def _write(self, path: str, data: bytes, give_name: Callable[[Path, Path], bool | None]):
        with storage_errors(path, self.location), files.scratch(self.root) as directory:
            files.write_synced(directory / "record", data)
            return give_name(directory / "record", self.root / path)

    def _move(self, path: str, source: Path, give_name: Callable[[Path, Path], bool | None], durable: bool = True):
        with storage_errors(path, self.location):
            if durable:
                files.sync_file(source)
            return give_name(source, self.root / path)
