"""Whether what a store holds is what its names say, byte for byte; and repairing it from another store."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

from neuron_aot_runtime.contract.errors import IntegrityError, NeuronAotError, NotFoundError, StoreError
from neuron_aot_runtime.contract.layout import blob_path, bundle_path, is_store_path, program_path
from neuron_aot_runtime.contract.manifest import Artifact, Manifest, Program
from neuron_aot_runtime.store import (
    FailureRecord,
    OriginRecord,
    ProgramRecord,
    RefRecord,
    RequestRecord,
    StoreReader,
    parse_record,
    read_manifest,
)
from neuron_aot_runtime.store.records import Difference
from neuron_aot_runtime.store.trust import Signature, require_content

from .store import Store
from .streams import parallel

_SCHEMAS = {
    "programs": (ProgramRecord, "program_key"),
    "requests": (RequestRecord, "request_key"),
    "failures": (FailureRecord, "program_key"),
    "origins": (OriginRecord, "bundle"),
    "refs": (RefRecord, None),
    "history": (RefRecord, None),
    "signatures": (Signature, None),
    "differences": (Difference, None),
}


@dataclass(frozen=True)
class Problem:
    """What is wrong at one path of a store. ``subject``: what people call it."""

    path: str
    subject: str
    error: NeuronAotError


def check_programs(store: Store, manifest: Manifest) -> list[Problem]:
    """Every blob and record that a bundle names."""
    found = parallel(lambda program: _program(store, program), manifest.programs)
    return [problem for problems in found for problem in problems]


def check_store(store: Store, progress: Callable[[int], None] = lambda nbytes: None) -> list[Problem]:
    """Every object: blobs by digest, records by schema and name, and that nothing names what is not there.

    ``progress`` is told the bytes of each blob that has been read.
    """
    entries = {entry.path: entry for kind in ("blobs", "bundles", *_SCHEMAS) for entry in store.list(kind)}

    def check(path: str) -> list[Problem]:
        try:
            if not is_store_path(path):
                raise IntegrityError(f"{path} is no name that a store gives", found=f"{store.location}/{path}")
            if path.startswith("blobs/"):
                _blob(store, Artifact(format="", digest=f"sha256:{Path(path).name}", size=entries[path].size))
                progress(entries[path].size)
            elif path.startswith("bundles/"):
                return _bundle(store, path, entries)
            else:
                return _record(store, path, entries)
        except StoreError as error:
            _raise_unless_about_content(error)
            return [Problem(path, path, error)]
        return []

    return [problem for problems in parallel(check, entries) for problem in problems]


def repair(store: Store, problems: Iterable[Problem], source: StoreReader) -> list[Problem]:
    """Bring what is damaged or missing from another store, verified; returns the problems that are left."""
    left, done = [], set()
    for problem in problems:
        path = problem.path
        if path in done:
            continue
        try:
            if path.startswith("blobs/"):
                digest = f"sha256:{Path(path).name}"
                store.copy_blob(source, digest, source.stat(path).size)
            else:
                data = source.read(path)
                _require_same(path, data, source)
                store.backend.replace(path, data)
            done.add(path)
        except StoreError:
            left.append(problem)
    return left


def _program(store: Store, program: Program) -> list[Problem]:
    problems = []
    record_path, path = program_path(program.program_key), blob_path(program.artifact.digest)
    try:
        _blob(store, program.artifact, f"the artifact of {program.name}")
    except StoreError as error:
        _raise_unless_about_content(error)
        problems.append(Problem(path, program.name, error))
    try:
        record = store.program(program.program_key)
        if record is None:
            raise NotFoundError(f"{program.name} has no record in the store", wanted=record_path)
        if record.artifact != program.artifact:
            raise IntegrityError(
                f"{program.name} is recorded with another artifact than the bundle names",
                wanted=program.artifact.digest,
                found=record.artifact.digest,
            )
    except StoreError as error:
        _raise_unless_about_content(error)
        return [*problems, Problem(record_path, program.name, error)]
    for name, blob in record.attachments.items():
        try:
            _blob(store, blob, f"the {name} kept with {program.name}")
        except StoreError as error:
            _raise_unless_about_content(error)
            problems.append(Problem(blob_path(blob.digest), program.name, error))
    return problems


def _blob(store: Store, artifact: Artifact, subject: str | None = None) -> None:
    path = blob_path(artifact.digest)
    subject = subject or path
    help_ = f"neuron-aot verify {store.location} --all --repair OTHER_STORE, or compile it again"
    try:
        found, size = store.backend.digest(path)
    except NotFoundError as error:
        raise NotFoundError(
            f"{subject} is missing from the store {store.location}",
            wanted=artifact.digest,
            found="no such blob",
            next_command=help_,
        ) from error
    if found != artifact.digest:
        if not size or size != artifact.size:
            what = "another size" if size else "empty"
        else:
            what = "other bytes" if any(any(chunk[:64]) for chunk in store.backend.stream(path)) else "zeroed"
        raise IntegrityError(
            f"{subject} is damaged ({what})",
            wanted=f"{artifact.digest}, {artifact.size} bytes",
            found=f"{found}, {size} bytes",
            next_command=help_,
        )


def _bundle(store: Store, path: str, entries: dict) -> list[Problem]:
    """The manifest, and that all it names is there; the blobs' bytes are checked as blobs."""
    problems = []
    manifest = read_manifest(store.backend, Path(path).stem)
    for program in manifest.programs:
        blob, record = blob_path(program.artifact.digest), program_path(program.program_key)
        for needed in (blob, record):
            if needed not in entries:
                error = NotFoundError(
                    f"bundle {Path(path).stem} is incomplete: {program.name} is missing", wanted=needed
                )
                problems.append(Problem(needed, program.name, error))
        if blob in entries and entries[blob].size != program.artifact.size:
            error = IntegrityError(
                f"the artifact of {program.name} in bundle {Path(path).stem} has another size",
                wanted=f"{program.artifact.size} bytes",
                found=f"{entries[blob].size} bytes",
            )
            problems.append(Problem(blob, program.name, error))
    return problems


def _record(store: Store, path: str, entries: dict) -> list[Problem]:
    """The record itself, and that what it names is there."""
    schema, key = _SCHEMAS[path.partition("/")[0]]
    record = parse_record(schema, store.read(path), where=f"{store.location}/{path}")
    if key is not None and getattr(record, key) != Path(path).stem:
        raise IntegrityError(f"{path} is damaged: it is the record of another", found=getattr(record, key))
    needed, kept = None, {}
    if isinstance(record, ProgramRecord):
        needed, kept = blob_path(record.artifact.digest), record.attachments
    elif isinstance(record, FailureRecord):
        kept = {"log": record.log} if record.log else {}
    elif isinstance(record, RequestRecord):
        needed = program_path(record.program_key)
    elif isinstance(record, RefRecord) and path.startswith("refs/"):
        needed = bundle_path(record.bundle)
    problems = []
    for name, blob in kept.items():
        if (attached := blob_path(blob.digest)) not in entries:
            # Named by the blob's path: that is what a repair brings.
            error = NotFoundError(f"the {name} that {path} names is not there", wanted=attached)
            problems.append(Problem(attached, path, error))
    if needed is not None and needed not in entries:
        error = NotFoundError(
            f"{path} is dangling: what it names is not there",
            wanted=needed,
            next_command=f"neuron-aot verify {store.location} --all --repair OTHER_STORE, or remove {path}",
        )
        problems.append(Problem(path, path, error))
    return problems


def _require_same(path: str, data: bytes, source: StoreReader) -> None:
    where, kind = f"{source.location}/{path}", path.partition("/")[0]
    if kind == "bundles":
        require_content(data, Path(path).stem, where)
    else:
        parse_record(_SCHEMAS[kind][0], data, where=where)


def _raise_unless_about_content(error: StoreError) -> None:
    """A store that cannot be reached or read is no finding about what it holds."""
    if not isinstance(error, (NotFoundError, IntegrityError)):
        raise error
