"""A store on anything that fsspec speaks (Google Cloud Storage, Azure, SFTP, …); imported when it is asked for."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime
from functools import cached_property
from pathlib import Path

from ..contract.errors import ConfigError, NotFoundError, StorageFaultError, UnreachableError, UsageError
from .reader import CHUNK, Entry, digest_stream, refuse_absurd, storage_errors


class FsspecReader:
    """A store below an fsspec URL. OSErrors are all that its implementations share, so they are what is mapped."""

    def __init__(self, location: str) -> None:
        self.location = location.rstrip("/")

    @cached_property
    def files(self):
        """The fsspec file system. Raises UsageError for an unknown scheme, ConfigError when its package is absent."""
        try:
            import fsspec
        except ImportError as error:
            raise ConfigError(
                f"reading {self.location} needs fsspec",
                wanted="fsspec",
                found="not installed",
                next_command="pip install 'neuron-aot-runtime[fsspec]'",
            ) from error
        scheme = self.location.partition("://")[0]
        try:
            # Listings must be of now: other hosts write to the same place.
            return fsspec.filesystem(scheme, use_listings_cache=False)
        except ValueError as error:
            raise UsageError(
                f"{scheme}:// is not a kind of store",
                wanted="a directory, s3://… or a scheme of fsspec",
                found=self.location,
            ) from error
        except ImportError as error:
            raise ConfigError(f"{scheme}:// stores need another package", wanted=str(error)) from error

    def full(self, path: str) -> str:
        """The path as fsspec takes it."""
        return f"{self.files._strip_protocol(self.location)}/{path}"

    def read(self, path: str) -> bytes:
        with self.errors(path):
            refuse_absurd(self.files.size(self.full(path)) or 0, path, self.location)
            return self.files.cat_file(self.full(path))

    def stat(self, path: str) -> Entry:
        with self.errors(path):
            return self._entry(self.files.info(self.full(path)))

    def stream(self, path: str, start: int = 0) -> Iterator[bytes]:
        with self.errors(path), self.files.open(self.full(path), "rb") as file:
            file.seek(start)
            while chunk := file.read(CHUNK):
                yield chunk

    def digest(self, path: str) -> tuple[str, int]:
        return digest_stream(self.stream(path))

    def blob_file(self, digest: str, size: int, *, fresh: bool = False) -> Path:
        raise TypeError("a remote store has no local files: read it through a CachedReader")

    def list(self, directory: str) -> list[Entry]:
        with self.errors(directory):
            try:
                found = self.files.find(self.full(directory), detail=True)
            except FileNotFoundError:
                return []
        return sorted((self._entry(info) for info in found.values()), key=lambda entry: entry.path)

    def names(self, directory: str) -> list[str]:
        return [entry.path for entry in self.list(directory)]

    def errors(self, path: str):
        """The border from fsspec's errors to ours."""
        return _Border(self, path)

    def _entry(self, info: dict) -> Entry:
        modified = next(
            (info[key] for key in ("mtime", "LastModified", "last_modified", "updated", "created") if info.get(key)), 0
        )
        if isinstance(modified, str):
            modified = datetime.fromisoformat(modified)
        seconds = modified.timestamp() if isinstance(modified, datetime) else float(modified)
        return Entry(info["name"].removeprefix(self.full("")), info["size"], seconds)


class _Border:
    def __init__(self, reader: FsspecReader, path: str) -> None:
        self._reader, self._path = reader, path

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind, error, trace) -> None:
        location = self._reader.location
        if isinstance(error, FileNotFoundError):
            raise NotFoundError(f"{self._path} is not in the store {location}") from error
        if isinstance(error, (ConnectionError, TimeoutError)):
            raise UnreachableError(f"{location} cannot be reached", found=str(error)) from error
        if isinstance(error, OSError) and error.errno is None:
            raise StorageFaultError(f"the store {location} failed at {self._path}", found=str(error)) from error
        if isinstance(error, OSError):
            with storage_errors(self._path, location):
                raise error
