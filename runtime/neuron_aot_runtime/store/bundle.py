"""A bundle, opened for reading: its manifest has been verified, and each artifact is when it is asked for."""

from __future__ import annotations

import difflib
import os
from dataclasses import dataclass, field
from pathlib import Path

from ..contract.canonical import digest_file
from ..contract.errors import IntegrityError, NotFoundError, OfflineError, UsageError
from ..contract.layout import blob_path, bundle_path, is_bundle_id, program_path, ref_path
from ..contract.manifest import Artifact, Manifest, Program, parse_manifest
from ..settings import read_store_settings
from .reader import StoreReader, storage_errors
from .readers import open_reader
from .records import ProgramRecord, RefRecord, parse_record
from .reference import Reference, parse_reference
from .trust import check_trusted, read_policy, require_content


@dataclass(frozen=True, kw_only=True)
class Bundle:
    """``reference`` is what the user named; ``ref`` the ref's record when a ref led here.

    ``signers``: the trusted keys that signed it; empty when no policy is set, for then nobody is trusted.
    """

    reference: Reference
    reader: StoreReader
    bundle_id: str
    manifest: Manifest
    ref: RefRecord | None = None
    signers: tuple[str, ...] = ()
    _verified: dict[Path, tuple[int, ...]] = field(default_factory=dict, init=False, repr=False, compare=False)

    @property
    def store_root(self) -> str:
        """Where the store is, as the user named it."""
        return self.reader.location

    def artifact_path(self, program: Program) -> Path:
        """A local file with ``program``'s artifact; its size and sha256 are verified on every call.

        Raises NotFoundError when the blob is absent, IntegrityError when it is damaged, AccessDeniedError.
        """
        path = self.verified_blob(program.artifact, f"the artifact of {program.name}")
        self._verified[path] = _state_of(path)
        return path

    def check_artifact(self, program: Program) -> None:
        """As ``artifact_path``, but a file that was verified by this process, or by the one that it was forked from, and
        has not changed since is not read again. For comparing ranks, never for loading.
        """
        try:
            path = self.reader.blob_file(program.artifact.digest, program.artifact.size)
            unchanged = self._verified.get(path) == _state_of(path)
        except (NotFoundError, OSError):
            unchanged = False
        if not unchanged:
            self.artifact_path(program)  # says what is wrong

    def verified_blob(self, artifact: Artifact, subject: str) -> Path:
        """A local file with any blob that a record of the bundle names; ``subject`` is what messages call it.

        Raises as ``artifact_path`` does.
        """
        repair = (
            f"neuron-aot compile RECIPE --target {self.manifest.target} --store {self.store_root}  (makes it again)"
        )
        try:
            path = self.reader.blob_file(artifact.digest, artifact.size)
            found = self._found(path, artifact)
            if found != artifact.digest:
                path = self.reader.blob_file(artifact.digest, artifact.size, fresh=True)
                found = self._found(path, artifact)
        except NotFoundError as error:
            raise NotFoundError(
                f"{subject} is missing from the store {self.store_root}",
                wanted=artifact.digest,
                found="no such blob",
                next_command=repair,
            ) from error
        if found != artifact.digest:
            raise IntegrityError(
                f"{subject} is damaged; it was not loaded",
                wanted=f"{artifact.digest}, {artifact.size} bytes",
                found=found,
                details=[f"file: {path}"],
                next_command=repair,
            )
        return path

    def _found(self, path: Path, artifact: Artifact) -> str:
        """The digest of the file; in words when its size alone says that it is another."""
        with storage_errors(blob_path(artifact.digest), self.store_root):
            size = path.stat().st_size
            return digest_file(path) if size == artifact.size else f"{size} bytes"


def open_bundle(reference: str | os.PathLike | Reference, *, reader: StoreReader | None = None) -> Bundle:
    """Resolve a reference, check who signed the bundle, and read and verify its manifest.

    ``reader``: how to read the store, when not by the settings. Raises UsageError (malformed or ambiguous),
    NotFoundError, AccessDeniedError, IntegrityError, UntrustedError, UnreachableError, ConfigError (settings).
    """
    if not isinstance(reference, Reference):
        reference = parse_reference(os.fspath(reference))
    reader = reader or open_reader(reference.store)
    ref = None
    if reference.name is None:
        bundle_id, ref = _only_bundle(reader)
    elif is_bundle_id(reference.name):
        bundle_id = reference.name
    else:
        ref = read_ref(reader, reference.name)
        bundle_id = ref.bundle
    policy = read_store_settings().trust
    signers = check_trusted(reader, bundle_id, read_policy(policy)) if policy else []
    return Bundle(
        reference=reference,
        reader=reader,
        bundle_id=bundle_id,
        manifest=read_manifest(reader, bundle_id),
        ref=ref,
        signers=tuple(signers),
    )


def read_ref(reader: StoreReader, name: str) -> RefRecord:
    """The record of a ref. Raises NotFoundError naming the nearest refs, IntegrityError, UsageError."""
    path = ref_path(name)
    try:
        return parse_record(RefRecord, reader.read(path), where=f"{reader.location}/{path}")
    except NotFoundError as error:
        known = refs(reader)
        close = difflib.get_close_matches(name, known, n=3, cutoff=0.4)
        raise NotFoundError(
            f"the store {reader.location} has no ref {name!r}",
            wanted=name,
            found=", ".join(close or known[:5]) or "no refs at all",
            next_command=f"neuron-aot compile RECIPE --store {reader.location} --ref {name}",
        ) from error


def read_program(reader: StoreReader, program_key: str) -> ProgramRecord | None:
    """The record of a program; None when it is not there, or offline not known. Raises IntegrityError."""
    path = program_path(program_key)
    try:
        data = reader.read(path)
    except (NotFoundError, OfflineError):
        return None
    return parse_record(ProgramRecord, data, where=f"{reader.location}/{path}")


def refs(reader: StoreReader) -> list[str]:
    """The names of all refs, sorted."""
    return [path.removeprefix("refs/").removesuffix(".json") for path in reader.names("refs") if path.endswith(".json")]


def read_manifest(reader: StoreReader, bundle_id: str) -> Manifest:
    """A bundle's manifest. Raises NotFoundError; IntegrityError unless its bytes are canonical and hash to the id."""
    path = bundle_path(bundle_id)
    where = f"{reader.location}/{path}"
    try:
        data = reader.read(path)
    except NotFoundError as error:
        raise NotFoundError(
            f"the store {reader.location} has no bundle {bundle_id}",
            wanted=bundle_id,
            found=f"{len(reader.names('bundles'))} other bundles",
            next_command=f"neuron-aot compile RECIPE --store {reader.location}",
        ) from error
    require_content(data, bundle_id, where)
    manifest = parse_manifest(data, where=where)
    if manifest.to_json() != data:
        raise IntegrityError(
            f"{where} was written by another version of neuron-aot, or by something else",
            wanted="the canonical JSON of this version's manifest",
            next_command=f"remove {where} and run neuron-aot compile again",
        )
    return manifest


def _state_of(path: Path) -> tuple[int, ...]:
    """What changes with every write to a file: nobody but the kernel sets the last one."""
    state = path.stat()
    return state.st_dev, state.st_ino, state.st_size, state.st_mtime_ns, state.st_ctime_ns


def _only_bundle(reader: StoreReader) -> tuple[str, RefRecord | None]:
    known = {name: read_ref(reader, name) for name in refs(reader)}
    ids = {record.bundle for record in known.values()} or {
        path.removeprefix("bundles/").removesuffix(".json")
        for path in reader.names("bundles")
        if path.endswith(".json")
    }
    if len(ids) == 1:
        (bundle_id,) = ids
        if not is_bundle_id(bundle_id):
            raise IntegrityError(f"{reader.location}/bundles holds a file that is no bundle: {bundle_id}")
        return bundle_id, next(iter(known.values()), None)
    if not ids:
        raise NotFoundError(
            f"the store {reader.location} holds no bundle",
            next_command=f"neuron-aot compile RECIPE --store {reader.location} --ref NAME",
        )
    raise UsageError(
        f"the store {reader.location} holds more than one bundle: say which",
        wanted=f"{reader.location}@REF",
        found=", ".join(sorted(known)) or ", ".join(sorted(ids)),
    )
