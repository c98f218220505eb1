"""The ``xla-cpu`` artifact: a serialized PJRT executable behind a header that says where it may run.

    magic       8 bytes   b"NAOTXLA1"
    length      4 bytes   little-endian size of the header
    header      JSON      {"jaxlib": version, "cpu_features": "avx2,…", "signature": digest of what it takes and gives}
    payload               what ``PjRtClient.serialize_executable`` wrote

XLA only logs a mismatch of version or CPU features and then may crash, so the header is checked by us before the
payload reaches it. Integrity is the store's business: it has verified the whole file's digest.
"""

from __future__ import annotations

import json
import re
import struct
from collections.abc import Iterable
from pathlib import Path

from ..contract.canonical import canonical_json, digest_json
from ..contract.errors import IntegrityError

MAGIC = b"NAOTXLA1"
_FEATURES = re.compile(rb"[+-][a-z0-9._-]+(?:,[+-][a-z0-9._-]+){16,}")
_HEADER_NAMES = ("jaxlib", "cpu_features", "signature")

TensorType = tuple[str, tuple[int, ...]]  # (dtype name, shape)


def pack(payload: bytes, *, jaxlib: str, signature: str) -> bytes:
    """An artifact of an executable. Raises ValueError when the payload states no CPU features."""
    features = ",".join(used_features(payload))
    header = canonical_json({"jaxlib": jaxlib, "cpu_features": features, "signature": signature})
    return MAGIC + struct.pack("<I", len(header)) + header + payload


def unpack(path: Path) -> tuple[dict[str, str], bytes]:
    """(header, payload) of an artifact file. Raises IntegrityError, naming the file, for anything that is not one."""
    data = path.read_bytes()
    try:
        if data[:8] != MAGIC:
            raise ValueError(f"it starts with {data[:8]!r}, not {MAGIC!r}")
        (length,) = struct.unpack_from("<I", data, 8)
        header = json.loads(data[12 : 12 + length])
        return {name: str(header[name]) for name in _HEADER_NAMES}, data[12 + length :]
    except (ValueError, KeyError, TypeError, struct.error) as error:
        raise IntegrityError(f"{path.name} is not a whole xla-cpu artifact", found=str(error)) from error


def signature_digest(arguments: Iterable[TensorType], results: Iterable[TensorType]) -> str:
    """The digest of the flat, ordered tensor types that a program takes and gives."""
    return digest_json([[[dtype, list(shape)] for dtype, shape in side] for side in (arguments, results)])


def used_features(payload: bytes) -> tuple[str, ...]:
    """The CPU features that an executable's code may use, sorted: its compile target's, as XLA wrote them."""
    found = {match.decode() for match in _FEATURES.findall(payload)}
    if len(found) != 1:
        raise ValueError(f"expected one list of CPU features in the executable, found {len(found)}")
    return tuple(sorted(item[1:] for item in found.pop().split(",") if item[0] == "+"))
