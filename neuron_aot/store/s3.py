"""Writing to S3: conditional puts (If-None-Match) for records, multipart uploads for large blobs."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

from neuron_aot_runtime.contract.errors import NotFoundError
from neuron_aot_runtime.store.objects import ObjectReader

#: Bytes. Memory of one upload: _PART * _PARTS_AT_ONCE.
_PART, _PARTS_AT_ONCE = 8 << 20, 2


class S3Backend(ObjectReader):
    """A store below ``s3://bucket/prefix``, open for writing."""

    atomic_create = True

    def create(self, path: str, data: bytes) -> bool:
        import obstore

        try:
            with self.errors(path, passing=(obstore.exceptions.AlreadyExistsError,)):
                obstore.put(self.client, path, data, mode="create", use_multipart=False)
        except obstore.exceptions.AlreadyExistsError:
            return False
        return True

    def create_file(self, path: str, source: Path) -> bool:
        # Blobs only: whoever else writes this name writes the same bytes, so a multipart upload needs no condition.
        try:
            if self.stat(path).size == source.stat().st_size:
                return False
        except NotFoundError:
            pass
        self.replace_file(path, source)
        return True

    def replace(self, path: str, data: bytes) -> None:
        import obstore

        with self.errors(path):
            obstore.put(self.client, path, data, use_multipart=False)

    def replace_file(self, path: str, source: Path, *, durable: bool = True) -> None:
        import obstore

        with self.errors(path), open(source, "rb") as file:
            obstore.put(self.client, path, file, chunk_size=_PART, max_concurrency=_PARTS_AT_ONCE)

    def delete(self, path: str) -> None:
        import obstore

        with suppress(NotFoundError), self.errors(path):
            obstore.delete(self.client, path)
