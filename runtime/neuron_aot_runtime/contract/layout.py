"""Where things lie in a store (local directory, FSx, S3: the same relative paths).

blobs/sha256/ab/abcd…         content; write-once
programs/<program key>.json   -> blob digest, size, provenance; write-once, first writer wins
requests/<request key>.json   -> program key
bundles/<bundle id>.json      the canonical manifest; bundle id = its sha256; written last
origins/<bundle id>.json      -> the request keys that led to its programs, so that a copy brings their records
refs/<name>.json              -> bundle id; the only thing that moves
failures/<program key>.json   what a compiler refuses, so that it is not asked again; removed when it is retried
history/<name>@/<n>.json      what a ref was set to, in order; write-once, so no two writers share a number
signatures/<bundle id>/<key id>.json   detached ed25519 signatures over the bundle id; write-once
differences/<program key>/<digest>.json   artifacts that lost to a first writer's: the compiler is not deterministic
leases/<kind>-<id>.json       what a running push, writer of a program, or gc announces to the others
"""

from __future__ import annotations

import re

from .errors import UsageError

REF_PATTERN = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*(/[A-Za-z0-9][A-Za-z0-9._-]*)*")
_KEY_PATTERN = re.compile(r"[0-9a-f]{64}")
_PATHS = (
    re.compile(r"blobs/sha256/([0-9a-f]{2})/\1[0-9a-f]{62}"),
    re.compile(r"(programs|requests|bundles|origins|failures)/[0-9a-f]{64}\.json"),
    re.compile(r"signatures/[0-9a-f]{64}/[0-9a-f]{16}\.json"),
    re.compile(r"differences/[0-9a-f]{64}/[0-9a-f]{64}\.json"),
    re.compile(rf"refs/{REF_PATTERN.pattern}\.json"),
    re.compile(rf"history/{REF_PATTERN.pattern}@/[0-9]{{8}}\.json"),
)


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


def origin_path(bundle_id: str) -> str:
    return f"origins/{_key(bundle_id)}.json"


def ref_path(name: str) -> str:
    """Relative path of a ref. Raises UsageError for a name that could leave ``refs/`` or hide."""
    if not REF_PATTERN.fullmatch(name) or len(name) > 200 or _KEY_PATTERN.fullmatch(name):
        raise UsageError(
            f"{name!r} is not a ref name",
            wanted="letters, digits, '.', '_', '-' in parts joined by '/', at most 200 characters, not a bundle id",
            found=repr(name),
        )
    return f"refs/{name}.json"


def history_directory(name: str) -> str:
    """Where a ref's history lies; ``@`` is in no ref name, so no history lies inside another. Raises UsageError."""
    return ref_path(name).replace("refs/", "history/", 1).removesuffix(".json") + "@"


def history_path(name: str, number: int) -> str:
    return f"{history_directory(name)}/{number:08d}.json"


def signature_directory(bundle_id: str) -> str:
    return f"signatures/{_key(bundle_id)}"


def signature_path(bundle_id: str, key_id: str) -> str:
    """``key_id``: the first 16 hex digits of the sha256 of the public key."""
    if not re.fullmatch(r"[0-9a-f]{16}", key_id):
        raise ValueError(f"not a key id of 16 hex digits: {key_id!r}")
    return f"{signature_directory(bundle_id)}/{key_id}.json"


def difference_path(program_key: str, digest: str) -> str:
    return f"differences/{_key(program_key)}/{_key(digest.removeprefix('sha256:'))}.json"


def is_store_path(path: str) -> bool:
    """Whether ``path`` is one that this module gives out, byte for byte."""
    return any(pattern.fullmatch(path) for pattern in _PATHS)


def is_bundle_id(text: str) -> bool:
    return bool(_KEY_PATTERN.fullmatch(text))
