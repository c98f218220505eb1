"""Which reader reads which kind of store."""

from __future__ import annotations

from pathlib import Path

from ..contract.errors import NotFoundError
from ..settings import read_store_settings
from .cache import CachedReader, default_cache
from .generic import FsspecReader
from .objects import ObjectReader
from .reader import LocalReader, StoreReader, storage_errors


def is_remote(store: str) -> bool:
    """Whether a store is named by a URL."""
    return "://" in store


def remote_reader(store: str) -> StoreReader:
    """The reader of a remote store, without the cache. Raises UsageError for a malformed URL."""
    return ObjectReader(store) if store.startswith("s3://") else FsspecReader(store)


def open_reader(store: str) -> StoreReader:
    """The reader for a store; a remote one behind this host's cache. Raises UsageError, NotFoundError, ConfigError."""
    if is_remote(store):
        remote = remote_reader(store)
        return CachedReader(store, default_cache(), None if read_store_settings().offline else remote)
    root = Path(store).expanduser()
    with storage_errors(".", store):
        if not root.is_dir():
            raise NotFoundError(
                f"there is no store at {store}",
                found="a file" if root.exists() else "no such directory",
                next_command=f"neuron-aot compile RECIPE --store {store}, or mend the path",
            )
    return LocalReader(root)
