"""Locks that die with their process: ``flock`` on a file, which is removed when the lock is released."""

from __future__ import annotations

import errno
import fcntl
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def hold_lock(path: Path, on_wait: Callable[[], None] | None = None) -> Iterator[None]:
    """Hold the lock at ``path``. Waits as long as its holder lives, and calls ``on_wait`` once before waiting."""
    path.parent.mkdir(parents=True, exist_ok=True)
    lock = try_lock(path)
    if lock is None and on_wait is not None:
        on_wait()
    while lock is None:
        path.parent.mkdir(parents=True, exist_ok=True)
        lock = _lock(path, fcntl.LOCK_EX)
    try:
        yield
    finally:
        # Removed while held: whoever waits on this very file finds its name gone and opens the next one.
        path.unlink(missing_ok=True)
        lock.close()


def try_lock(path: Path):
    """The open, locked file at ``path``, or None when another process holds it (or its directory is gone)."""
    return _lock(path, fcntl.LOCK_EX | fcntl.LOCK_NB)


def _lock(path: Path, how: int):
    try:
        file = open(path, "ab")  # noqa: SIM115 (closing it releases the lock)
    except FileNotFoundError:
        return None
    try:
        fcntl.flock(file, how)
        if _same_file(file, path):
            return file
    except OSError as error:
        file.close()
        if error.errno in (errno.EAGAIN, errno.EACCES):
            return None
        raise
    except BaseException:
        file.close()
        raise
    file.close()
    return None


def _same_file(file, path: Path) -> bool:
    """Whether ``path`` still names the file that was locked; its last holder may have removed it meanwhile."""
    try:
        return os.path.samestat(os.fstat(file.fileno()), os.stat(path))
    except FileNotFoundError:
        return False
