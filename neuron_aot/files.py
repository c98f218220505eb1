"""Files that a user asked for, written whole or not at all."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

from neuron_aot_runtime.contract.errors import StorageFaultError, UsageError


def write_text(path: Path, text: str, check: Callable[[Path], object] = lambda draft: None) -> None:
    """Write ``text`` to ``path``, replacing what is there; first to a draft beside it, which ``check`` may refuse.

    Raises UsageError (a directory), StorageFaultError, and what ``check`` raises; ``path`` is as it was then.
    """
    if not path.name or path.is_dir():
        raise UsageError(f"{path} is a directory", wanted="a file to write", next_command="add a file's name to it")
    draft = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        try:
            draft.write_text(text, encoding="utf-8")
            check(draft)
            draft.replace(path)
        finally:
            draft.unlink(missing_ok=True)
    except OSError as error:
        raise StorageFaultError(f"cannot write {path}: {error.strerror}") from error
