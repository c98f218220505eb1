"""Where things lie in a store (local directory, FSx, S3: the same relative paths).

    blobs/sha256/ab/abcd…         content; write-once
    programs/<program key>.json   -> blob digest, size, provenance; write-once, first writer wins
    requests/<request key>.json   -> program key
    bundles/<bundle id>.json      the canonical manifest; bundle id = its sha256; written last
    refs/<name>.json              -> bundle id; the only thing that moves
    failures/<program key>.json   what a compiler refuses, so that it is not asked again; removed when it is retried
"""

from __future__ import annotations

import re

from .errors import UsageError

REF_PATTERN = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*(/[A-Za-z0-9][A-Za-z0-9._-]*)*")
_KEY_PATTERN = re.compile(r"[0-9a-f]{64}")


def _key(value: str) -> str:
    if not _KEY_PATTERN.fullmatch(value):
        raise ValueError(f"not a key of 64 hex digits: {value!r}")
    return value


def blob_path(digest: str) -> str:
    """Relative path of a blob. Raises ValueError for anything but ``sha256:<64 hex>``: no path leaves the store."""
    algorithm, _, value = digest.partition(":")
    if algorithm != "sha256":
        raise ValueError(f"not a sha256 digest: {digest!r}")
    _key(value)
    return f"blobs/sha256/{value[:2]}/{value}"


def program_path(program_key: str) -> str:
    return f"programs/{_key(program_key)}.json"


def failure_path(program_key: str) -> str:
    return f"failures/{_key(program_key)}.json"


def request_path(request_key: str) -> str:
    return f"requests/{_key(request_key)}.json"


def bundle_path(bundle_id: str) -> str:
    return f"bundles/{_key(bundle_id)}.json"


def ref_path(name: str) -> str:
    """Relative path of a ref. Raises UsageError for a name that could leave ``refs/`` or hide."""
    if not REF_PATTERN.fullmatch(name) or len(name) > 200 or _KEY_PATTERN.fullmatch(name):
        raise UsageError(
            f"{name!r} is not a ref name",
            wanted="letters, digits, '.', '_', '-' in parts joined by '/', at most 200 characters, not a bundle id",
            found=repr(name),
        )
    return f"refs/{name}.json"


def is_bundle_id(text: str) -> bool:
    return bool(_KEY_PATTERN.fullmatch(text))
