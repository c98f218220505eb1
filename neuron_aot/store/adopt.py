"""Adopting the programs of an existing Neuron compile cache, whatever its folders are called.

A cache entry is a folder with one NEFF, the HLO module it was compiled from, and perhaps the compiler's flags. Each file
is recognised by its content, and an entry is taken only when the NEFF is as long as its header says: an entry that a
killed compile left is not. The key of an adopted program is made of the module, the flags and the compiler's build.
"""

from __future__ import annotations

import gzip
import json
import os
import re
import shutil
import struct
from dataclasses import dataclass
from pathlib import Path

from neuron_aot_runtime.contract.canonical import digest_bytes, digest_file, digest_json
from neuron_aot_runtime.contract.errors import IntegrityError, NeuronAotError, NotFoundError
from neuron_aot_runtime.contract.manifest import Artifact
from neuron_aot_runtime.device.neff import HEADER_SIZE, read_header
from neuron_aot_runtime.store import ProgramRecord, Provenance
from neuron_aot_runtime.store.reader import storage_errors
from neuron_aot_runtime.store.records import now

from .store import Store

_FLAGS_LIMIT, _MODULE_LIMIT = 1 << 20, 4 << 30


@dataclass(frozen=True)
class Adopted:
    """One folder. ``record`` None: not adopted, and ``error`` says why; ``known``: the store had it already."""

    folder: str
    record: ProgramRecord | None = None
    known: bool = False
    error: NeuronAotError | None = None


def adopt_cache(directory: Path, store: Store) -> list[Adopted]:
    """Adopt every entry below ``directory``; one that is damaged does not stop the others.

    Raises NotFoundError (no such directory, or nothing in it that looks like an entry), StoreError of the store.
    """
    if not directory.is_dir():
        raise NotFoundError(f"there is no directory {directory}", next_command="name the compile cache's directory")
    outcomes = []
    for parent, folders, files in os.walk(directory):
        folders.sort()
        try:
            entry = _recognise(Path(parent), sorted(files))
        except IntegrityError as error:
            outcomes.append(Adopted(parent, error=error))
            continue
        if entry is not None:
            outcomes.append(_adopt(entry, store, parent))
    if not outcomes:
        raise NotFoundError(
            f"{directory} holds no entry of a Neuron compile cache",
            wanted="folders with a NEFF and the HLO module it was made from",
        )
    return outcomes


@dataclass(frozen=True)
class _Entry:
    neff: Path
    build: str
    module: str
    flags: object


def _recognise(folder: Path, names: list[str]) -> _Entry | None:
    """The entry in ``folder``; None when no file there is a NEFF or claims to be. Raises IntegrityError."""
    neffs, modules, flags = [], [], []
    with storage_errors(str(folder), str(folder)):
        for path in (folder / name for name in names):
            if path.is_symlink() or not path.is_file():
                continue
            with open(path, "rb") as file:
                head = file.read(HEADER_SIZE)
            if _is_neff(head):
                neffs.append(path)
            elif path.suffix == ".neff":
                raise _damaged(
                    path, "a NEFF", f"{path.stat().st_size} bytes that start with {head[:8].hex() or 'nothing'}"
                )
            elif (data := _json(path)) is not None:
                flags.append(data)
            elif (digest := _module_digest(path)) is not None:
                modules.append(digest)
    if not neffs:
        return None
    if len(neffs) != 1 or len(modules) != 1 or len(flags) > 1:
        found = f"{len(neffs)} NEFFs, {len(modules)} HLO modules, {len(flags)} flag files"
        raise _damaged(folder, "one NEFF, one HLO module, at most one file of flags", found)
    try:
        with storage_errors(str(neffs[0]), str(folder)):
            build = read_header(neffs[0]).build_version
    except IntegrityError as error:
        raise _damaged(neffs[0], error.wanted, error.found) from error
    return _Entry(neffs[0], build, modules[0], flags[0] if flags else [])


def _adopt(entry: _Entry, store: Store, folder: str) -> Adopted:
    generator = {
        "compiler": "neuronx-cc",
        "version": entry.build,
        "module": entry.module,
        "flags": json.dumps(entry.flags),
    }
    target = re.search(r"--target[= \", ]+(inf2|trn[0-9]\w*)", json.dumps(entry.flags))
    with store.scratch() as directory:
        copy = directory / "neff"
        with storage_errors(str(entry.neff), folder):
            shutil.copyfile(entry.neff, copy)
        record = ProgramRecord(
            program_key=digest_json({"adopted": generator}).removeprefix("sha256:"),
            artifact=Artifact(format="neff", digest=digest_file(copy), size=copy.stat().st_size),
            target=target[1] if target else "unknown",
            code_generator=generator,
            provenance=Provenance(built_at=now(), lower_ms=0, generate_ms=0, peak_memory_mb=0, versions={}),
        )
        known = store.program(record.program_key) is not None
        with store.lock(record.program_key):
            return Adopted(folder, store.put_program(record, lambda: store.put_blob(copy)).record, known)


def _is_neff(head: bytes) -> bool:
    """Whether it starts as one; ``read_header`` says whether it is whole."""
    if len(head) < HEADER_SIZE:
        return False
    package, header = struct.unpack_from("<QQ", head)
    return header == HEADER_SIZE and 1 <= package <= 99


def _json(path: Path):
    if path.stat().st_size > _FLAGS_LIMIT:
        return None
    try:
        data = json.loads(path.read_bytes())
    except ValueError:
        return None
    return data if isinstance(data, (list, dict)) else None


def _module_digest(path: Path) -> str | None:
    """The digest of a serialized HloModuleProto (gzip or not): a message of known field types to its last byte."""
    if not 0 < path.stat().st_size < _MODULE_LIMIT:
        return None
    data = path.read_bytes()
    if data[:2] == b"\x1f\x8b":
        try:
            data = gzip.decompress(data)
        except (OSError, EOFError):
            return None
    return digest_bytes(data) if _is_module(data) else None


def _is_module(data: bytes) -> bool:
    """Its name (field 1) and entry computation (2) come first, and at least one computation (3) follows."""
    position, fields = 0, []
    while position < len(data):
        tag, position = _varint(data, position)
        kind = tag & 7
        if kind == 2:
            length, position = _varint(data, position)
            position += length
        elif kind == 0:
            _, position = _varint(data, position)
        else:
            return False
        fields.append(tag >> 3)
    return position == len(data) and fields[:2] == [1, 2] and 3 in fields


def _varint(data: bytes, position: int) -> tuple[int, int]:
    value = shift = 0
    while position < len(data) and shift < 64:
        byte = data[position]
        value |= (byte & 127) << shift
        position, shift = position + 1, shift + 7
        if byte < 128:
            return value, position
    return 0, len(data) + 1  # cut off: no message ends here


def _damaged(path: Path, wanted: str, found: str) -> IntegrityError:
    return IntegrityError(
        f"{path} is incomplete or damaged; it was not adopted", wanted=wanted, found=found,
        next_command="compile that program again",
    )  # fmt: skip
