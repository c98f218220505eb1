"""Canonical JSON and sha256 digests: what every key and every identity is made of.

Canonical JSON: UTF-8, keys sorted, no white space, no floats (two writers may print one float differently), no
NaN. A number that a model's configuration states as a float is stored by :func:`exact_number`.
"""

from __future__ import annotations

import hashlib
import json
import re
from pathlib import Path

DIGEST_PATTERN = re.compile(r"sha256:[0-9a-f]{64}")


def canonical_json(value) -> bytes:
    """The one byte string for ``value``. Raises TypeError for floats, sets and other things without one."""
    _refuse_floats(value, "$")
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False).encode()


def _refuse_floats(value, path: str) -> None:
    if isinstance(value, float):
        raise TypeError(f"{path}: a float ({value!r}) has no canonical form; use exact_number()")
    if isinstance(value, dict):
        for key, item in value.items():
            if not isinstance(key, str):
                raise TypeError(f"{path}: key {key!r} is not a string")
            _refuse_floats(item, f"{path}.{key}")
    elif isinstance(value, (list, tuple)):
        for index, item in enumerate(value):
            _refuse_floats(item, f"{path}[{index}]")
    elif not (value is None or isinstance(value, (str, int, bool))):
        raise TypeError(f"{path}: {type(value).__name__} has no canonical form")


def exact_number(value):
    """``value`` with each float replaced by an int (when it is one) or by its shortest decimal string.

    So 10000.0 and 10000 are the same fact, and 1e-05 becomes ``"1e-05"``. Lists and dicts are walked.
    """
    if isinstance(value, bool) or value is None or isinstance(value, (int, str)):
        return value
    if isinstance(value, float):
        return int(value) if value.is_integer() else repr(value)
    if isinstance(value, (list, tuple)):
        return [exact_number(item) for item in value]
    if isinstance(value, dict):
        return {str(key): exact_number(item) for key, item in value.items()}
    raise TypeError(f"{type(value).__name__} has no exact form")


def digest_bytes(data: bytes) -> str:
    """``sha256:<64 hex digits>`` of ``data``."""
    return "sha256:" + hashlib.sha256(data).hexdigest()


def digest_json(value) -> str:
    """The digest of ``value``'s canonical JSON."""
    return digest_bytes(canonical_json(value))


def digest_file(path: Path) -> str:
    """The digest of a file's content, read through one small buffer. Raises OSError.

    Not mapped: of a mapped file, a failing disk or a truncation meanwhile would kill the process.
    """
    with open(path, "rb", buffering=0) as file:
        return "sha256:" + hashlib.file_digest(file, "sha256").hexdigest()
