"""NEFF files: header and table of contents. Used by the toolchain's validation and inspection, and by the device.

    header    1024 bytes, little-endian, see ``_HEADER``
    data      a tarball, gzip-compressed unless the file was built for fast loading: top-level JSON, and a folder
              sgNN for each subgraph with def.json and one JSON and one binary per engine

Source: the Neuron documentation's description of the format; the fields' order makes C alignment add no padding.
"""

from __future__ import annotations

import json
import struct
import tarfile
import zlib
from dataclasses import dataclass
from pathlib import Path

from ..contract.errors import IncompatibleArtifactError, IntegrityError

HEADER_SIZE = 1024
#: The newest that we know of. No document says which is the newest: raise these with the first newer one.
NEWEST_PACKAGE, NEWEST_MAJOR = 2, 2
_HEADER = struct.Struct("<QQQQQ128sI32s16s256sI64sQI468s")
assert _HEADER.size == HEADER_SIZE


@dataclass(frozen=True, kw_only=True)
class NeffHeader:
    """``data_size`` is that of the tarball as stored, in bytes. ``core_size``: logical core size, 0 when not said."""

    package_version: int
    header_size: int
    data_size: int
    version_major: int
    version_minor: int
    build_version: str
    num_cores: int
    hash: bytes
    uuid: bytes
    name: str
    requested_cores: int
    feature_bits: int
    core_size: int

    @property
    def version(self) -> str:
        return f"{self.version_major}.{self.version_minor}"


@dataclass(frozen=True, kw_only=True)
class Neff:
    """A whole NEFF. ``members``: (name, bytes) of each file in it, in order; ``compressed``: whether by gzip."""

    header: NeffHeader
    compressed: bool
    members: tuple[tuple[str, int], ...]

    @property
    def subgraphs(self) -> tuple[str, ...]:
        """Folders that hold a def.json."""
        return tuple(name.rpartition("/")[0] for name, _ in self.members if name.endswith("/def.json"))


def read_header(path: Path) -> NeffHeader:
    """The header of a NEFF whose size is what the header says. Raises IntegrityError, OSError."""
    size = path.stat().st_size
    with open(path, "rb") as file:
        raw = file.read(HEADER_SIZE)
    if len(raw) < HEADER_SIZE:
        raise _not_a_neff(path, f"a header of {HEADER_SIZE} bytes", f"{len(raw)} bytes in all")
    (
        package,
        header_size,
        data_size,
        major,
        minor,
        build,
        cores,
        digest,
        uuid,
        name,
        requested,
        _,
        bits,
        core_size,
        _,
    ) = _HEADER.unpack(raw)
    if header_size != HEADER_SIZE or not 1 <= package <= 99 or major > 99:
        raise _not_a_neff(path, f"a header of {HEADER_SIZE} bytes", f"something that starts with {raw[:16].hex()}")
    if size != header_size + data_size:
        raise _not_a_neff(path, f"{header_size + data_size} bytes, as its header says", f"{size} bytes")
    return NeffHeader(
        package_version=package, header_size=header_size, data_size=data_size, version_major=major, version_minor=minor,
        build_version=_text(build), num_cores=cores, hash=digest, uuid=uuid, name=_text(name),
        requested_cores=requested, feature_bits=bits, core_size=core_size,
    )  # fmt: skip


def check_version(header: NeffHeader, program: str) -> None:
    """Raise IncompatibleArtifactError for a format newer than the one that this module describes."""
    if header.package_version > NEWEST_PACKAGE or header.version_major > NEWEST_MAJOR:
        raise IncompatibleArtifactError(
            f"{program}: the NEFF's format is newer than this runtime knows",
            wanted=f"package version up to {NEWEST_PACKAGE}, format up to {NEWEST_MAJOR}.x",
            found=f"package version {header.package_version}, format {header.version}, "
            f"built by {header.build_version or 'an unnamed version'}",
            next_command="upgrade neuron-aot-runtime, or compile the bundle with an older neuronx-cc",
        )


def read_neff(path: Path) -> Neff:
    """A NEFF, read to its end: header, table of contents, checksums of the compression. Raises IntegrityError."""
    header = read_header(path)
    members = []
    try:
        with open(path, "rb") as file:
            file.seek(HEADER_SIZE)
            compressed = file.read(2) == b"\x1f\x8b"
            file.seek(HEADER_SIZE)
            with tarfile.open(fileobj=file, mode="r|gz" if compressed else "r|") as archive:
                for member in archive:
                    if member.isfile():
                        name = member.name.removeprefix("./")
                        members.append((name, member.size))
                        if name.endswith("def.json"):
                            json.load(archive.extractfile(member))
    except (tarfile.TarError, EOFError, zlib.error, ValueError, OSError) as error:
        raise _not_a_neff(path, "a whole tarball after the header", f"{type(error).__name__}: {error}") from error
    neff = Neff(header=header, compressed=compressed, members=tuple(members))
    if not neff.subgraphs:
        raise _not_a_neff(path, "a subgraph folder with a def.json", f"{len(members)} files and none")
    return neff


def _text(raw: bytes) -> str:
    return raw.partition(b"\0")[0].decode("ascii", "replace")


def _not_a_neff(path: Path, wanted: str, found: str) -> IntegrityError:
    return IntegrityError(f"{path.name} is not a whole NEFF", wanted=wanted, found=found)
