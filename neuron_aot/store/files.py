"""Files that appear whole or not at all: written aside, synced, then given their name.

Unfinished files lie under ``tmp/``, each in a directory whose owner holds a lock in it, so litter of a killed
process is told apart from work in progress and nothing with a final name is ever incomplete.
"""

from __future__ import annotations

import errno
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from neuron_aot_runtime.store.locks import hold_lock, try_lock

_NO_LINKS = (errno.EPERM, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK)
_OWNER = "owner.lock"


@contextmanager
def scratch(root: Path) -> Iterator[Path]:
    """A directory for unfinished files, on the store's own file system; removed at the end."""
    (root / "tmp").mkdir(parents=True, exist_ok=True)
    # The lock comes first: a cleaner that runs right now sees either no directory or an owned one.
    lock = None
    while lock is None:
        directory = Path(tempfile.mkdtemp(dir=root / "tmp", prefix="work-"))
        lock = try_lock(directory / _OWNER)
    try:
        yield directory
    finally:
        shutil.rmtree(directory, ignore_errors=True)
        lock.close()


def clean_litter(root: Path) -> int:
    """Remove what killed processes left under ``tmp/`` and ``locks/``; returns how many directories."""
    removed = 0
    for directory in sorted((root / "tmp").glob("work-*")):
        lock = try_lock(directory / _OWNER)
        if lock is None:
            continue  # its owner lives, or it is gone by now
        shutil.rmtree(directory, ignore_errors=True)
        lock.close()
        removed += 1
    for path in sorted((root / "locks").glob("*.lock")):
        if lock := try_lock(path):
            path.unlink(missing_ok=True)  # while held, as hold_lock does
            lock.close()
    return removed


def sync_file(path: Path) -> None:
    """Return when the file's content is on the disk."""
    with open(path, "rb") as file:
        os.fsync(file.fileno())


def write_synced(path: Path, data: bytes) -> None:
    """Write ``data`` to a new file and return when it is on the disk."""
    with open(path, "xb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())


def place(source: Path, final: Path) -> bool:
    """Give the synced file ``source`` its final name unless that is taken. Returns whether it was given."""
    final.parent.mkdir(parents=True, exist_ok=True)
    try:
        os.link(source, final)
    except FileExistsError:
        return False
    except OSError as error:
        if error.errno not in _NO_LINKS:
            raise
        # A file system without hard links: the caller's lock on the key keeps others of this kind out.
        with hold_lock(final.with_name(final.name + ".lock")):
            if final.exists():
                return False
            os.rename(source, final)
    _sync_directory(final.parent)
    return True


def replace(source: Path, final: Path) -> None:
    """Give the synced file ``source`` its final name, whatever had it before."""
    final.parent.mkdir(parents=True, exist_ok=True)
    os.replace(source, final)
    _sync_directory(final.parent)


def _sync_directory(directory: Path) -> None:
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        with suppress(OSError):  # some network file systems cannot sync a directory, and need not
            os.fsync(descriptor)
    finally:
        os.close(descriptor)
