"""One bundle as one tar file, for places without a network.

The names in the file are those of the store, in the order of every writer. Reading takes nothing on trust: names that
no store gives, links, directories, duplicates, absurd sizes, and bytes that are not what their name says are refused.
"""

from __future__ import annotations

import io
import os
import tarfile
import tempfile
from collections.abc import Iterable
from pathlib import Path

from neuron_aot_runtime.contract.errors import IntegrityError, NotFoundError, UsageError
from neuron_aot_runtime.contract.layout import (
    blob_path,
    bundle_path,
    is_store_path,
    origin_path,
    program_path,
    request_path,
    signature_directory,
)
from neuron_aot_runtime.contract.manifest import Artifact, Program
from neuron_aot_runtime.store import (
    Bundle,
    LocalReader,
    OriginRecord,
    ProgramRecord,
    Reference,
    open_bundle,
    parse_record,
)
from neuron_aot_runtime.store.reader import CHUNK, RECORD_LIMIT, storage_errors

from .origins import read_requests
from .store import Store
from .transfer import Progress, Report, copy_bundle

_BLOB_LIMIT = 1 << 40


def export_bundle(bundle: Bundle, file: Path) -> int:
    """Write the bundle, its records and its signatures to ``file``; returns its size in bytes. No blob unverified.

    Two exports of one bundle are the same bytes. Raises StoreError; UsageError when ``file`` exists.
    """
    if file.exists():
        raise UsageError(f"{file} exists already", wanted="a new file", next_command=f"rm {file}, or another name")
    with storage_errors(str(file), str(file.parent)):
        descriptor, unfinished = tempfile.mkstemp(dir=file.parent or ".", prefix=f".{file.name}-")
        try:
            with open(descriptor, "wb") as out, tarfile.open(fileobj=out, mode="w", format=tarfile.PAX_FORMAT) as tar:
                _write(bundle, tar)
                out.flush()
                os.fsync(out.fileno())
            os.chmod(unfinished, 0o644)
            os.replace(unfinished, file)
        except BaseException:
            Path(unfinished).unlink(missing_ok=True)
            raise
    return file.stat().st_size


def _write(bundle: Bundle, tar: tarfile.TarFile) -> None:
    programs = sorted(bundle.manifest.programs, key=lambda program: program.program_key)
    for digest, (artifact, subject) in _blobs(bundle, programs).items():
        with open(bundle.verified_blob(artifact, subject), "rb") as blob:
            tar.addfile(_member(blob_path(digest), artifact.size), blob)
    records = [program_path(program.program_key) for program in programs]
    records += bundle.reader.names(signature_directory(bundle.bundle_id))
    requests = read_requests(bundle.reader, bundle.bundle_id, {program.program_key for program in programs})
    origin = OriginRecord(bundle=bundle.bundle_id, requests=tuple(request.request_key for request in requests))
    for path, data in (
        *((path, bundle.reader.read(path)) for path in records),
        *((request_path(request.request_key), request.to_json()) for request in requests),
        (origin_path(bundle.bundle_id), origin.to_json()),
        (bundle_path(bundle.bundle_id), bundle.manifest.to_json()),
    ):
        tar.addfile(_member(path, len(data)), io.BytesIO(data))


def _blobs(bundle: Bundle, programs: Iterable[Program]) -> dict[str, tuple[Artifact, str]]:
    """Digest -> (blob, what it is called), of artifacts and attachments. Raises NotFoundError for a missing record."""
    found = {}
    for program in programs:
        path = program_path(program.program_key)
        record = parse_record(ProgramRecord, bundle.reader.read(path), where=f"{bundle.store_root}/{path}")
        found.setdefault(program.artifact.digest, (program.artifact, f"the artifact of {program.name}"))
        for name, blob in record.attachments.items():
            found.setdefault(blob.digest, (blob, f"the {name} kept with {program.name}"))
    return found


def import_bundle(
    file: Path, destination: Store, *, ref: str | None = None, progress: Progress | None = None
) -> Report:
    """Verify all of ``file`` and then store the bundle in it, as a push would. Nothing is stored when anything is wrong.

    Raises UsageError (no tar file), IntegrityError naming the member, UntrustedError, StoreError.
    """
    with destination.scratch() as directory:
        try:
            with storage_errors(str(file), str(file.parent)), tarfile.open(file, mode="r:") as tar:
                bundles = _extract(tar, directory / "store", file)
        except tarfile.TarError as error:
            raise UsageError(
                f"{file} is not a bundle file", wanted="a file of neuron-aot export", found=str(error)
            ) from error
        if len(bundles) != 1:
            raise IntegrityError(f"{file} must hold one bundle", wanted="1", found=str(len(bundles)))
        reader = LocalReader(directory / "store")
        reader.location = str(file)
        bundle = open_bundle(Reference(str(file), bundles[0]), reader=reader)
        for program in bundle.manifest.programs:
            try:
                for blob, subject in _blobs(bundle, [program]).values():
                    bundle.verified_blob(blob, subject)
            except NotFoundError as error:
                raise _hostile(file, program.name, "its artifact, record or attachment is not in the file") from error
        return copy_bundle(bundle, destination, ref=ref, progress=progress)


def _extract(tar: tarfile.TarFile, root: Path, file: Path) -> list[str]:
    seen, bundles = set(), []
    for member in tar:
        name, limit = member.name, _BLOB_LIMIT if member.name.startswith("blobs/") else RECORD_LIMIT
        if not is_store_path(name) or name.startswith(("refs/", "history/", "failures/")):
            raise _hostile(file, name, "a name that no bundle file has")
        if not member.isreg():
            raise _hostile(file, name, "not a plain file")
        if name in seen:
            raise _hostile(file, name, "the name occurs twice")
        if member.size > limit:
            raise _hostile(file, name, f"an absurd size of {member.size} bytes")
        seen.add(name)
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        source = tar.extractfile(member)
        with open(root / name, "xb") as out:
            while chunk := source.read(CHUNK):
                out.write(chunk)
        if (root / name).stat().st_size != member.size:
            raise _hostile(file, name, "the file ends within it")
        if name.startswith("bundles/"):
            bundles.append(Path(name).stem)
    return bundles


def _member(path: str, size: int) -> tarfile.TarInfo:
    member = tarfile.TarInfo(path)
    member.size, member.mode, member.mtime = size, 0o644, 0
    return member


def _hostile(file: Path, name: str, found: str) -> IntegrityError:
    return IntegrityError(
        f"{file} is damaged or hostile; nothing of it was stored",
        wanted="a file of neuron-aot export",
        found=f"{name!r}: {found}",
        next_command="export it again from a store that verifies",
    )
