"""Writing through fsspec."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

from neuron_aot_runtime.contract.errors import NotFoundError
from neuron_aot_runtime.store.generic import FsspecReader


class FsspecBackend(FsspecReader):
    """A store below an fsspec URL, open for writing.

    Not every file system of fsspec can create conditionally: some look first and then write. So two writers of one
    name may both win, the later one's bytes stay, and each checks what it finds there (``Store.put_program``).
    """

    atomic_create = False

    def create(self, path: str, data: bytes) -> bool:
        with self.errors(path):
            if self.files.exists(self.full(path)):
                return False
            self._write(path, data)
        return self.read(path) == data

    def create_file(self, path: str, source: Path) -> bool:
        with suppress(NotFoundError):
            if self.stat(path).size == source.stat().st_size:
                return False
        self.replace_file(path, source)
        return True

    def replace(self, path: str, data: bytes) -> None:
        with self.errors(path):
            self._write(path, data)

    def replace_file(self, path: str, source: Path, *, durable: bool = True) -> None:
        with self.errors(path):
            self.files.makedirs(self.full(path).rpartition("/")[0], exist_ok=True)
            self.files.put_file(str(source), self.full(path))

    def delete(self, path: str) -> None:
        with suppress(NotFoundError), self.errors(path):
            self.files.rm_file(self.full(path))

    def _write(self, path: str, data: bytes) -> None:
        self.files.makedirs(self.full(path).rpartition("/")[0], exist_ok=True)
        self.files.pipe_file(self.full(path), data)
