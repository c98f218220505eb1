"""A bundle, opened for reading: its manifest has been verified, and each artifact is when it is asked for."""

from __future__ import annotations

import difflib
import os
from dataclasses import dataclass
from pathlib import Path

from ..contract.canonical import digest_file
from ..contract.errors import IntegrityError, NotFoundError, UsageError
from ..contract.layout import blob_path, bundle_path, is_bundle_id, ref_path
from ..contract.manifest import Manifest, Program, parse_manifest
from .reader import LocalReader, StoreReader, storage_errors
from .records import RefRecord, parse_record
from .reference import Reference, parse_reference


@dataclass(frozen=True, kw_only=True)
class Bundle:
    """``reference`` is what the user named; ``ref`` the ref's record when a ref led here."""

    reference: Reference
    reader: StoreReader
    bundle_id: str
    manifest: Manifest
    ref: RefRecord | None = None

    @property
    def store_root(self) -> str:
        """Where the store is, as the user named it."""
        return self.reader.location

    def artifact_path(self, program: Program) -> Path:
        """A local file with ``program``'s artifact; its size and sha256 are verified on every call.

        Raises NotFoundError when the blob is absent, IntegrityError when it is damaged, AccessDeniedError.
        """
        artifact = program.artifact
        repair = (
            f"neuron-aot compile RECIPE --target {self.manifest.target} --store {self.store_root}  (makes it again)"
        )
        try:
            path = self.reader.local_path(blob_path(artifact.digest))
        except NotFoundError as error:
            raise NotFoundError(
                f"the artifact of {program.name} is missing from the store {self.store_root}",
                wanted=artifact.digest,
                found="no such blob",
                next_command=repair,
            ) from error
        with storage_errors(blob_path(artifact.digest), self.store_root):
            size = path.stat().st_size
            found = digest_file(path) if size == artifact.size else None
        if found != artifact.digest:
            raise IntegrityError(
                f"the artifact of {program.name} is damaged; it was not loaded",
                wanted=f"{artifact.digest}, {artifact.size} bytes",
                found=f"{found or 'another size'}, {size} bytes",
                details=[f"file: {path}"],
                next_command=repair,
            )
        return path


def open_bundle(reference: str | os.PathLike | Reference) -> Bundle:
    """Resolve a reference, read the manifest it leads to and verify that it is the one it says.

    Raises UsageError (malformed or ambiguous), NotFoundError, AccessDeniedError, IntegrityError.
    """
    if not isinstance(reference, Reference):
        reference = parse_reference(os.fspath(reference))
    reader = open_reader(reference.store)
    ref = None
    if reference.name is None:
        bundle_id, ref = _only_bundle(reader)
    elif is_bundle_id(reference.name):
        bundle_id = reference.name
    else:
        ref = read_ref(reader, reference.name)
        bundle_id = ref.bundle
    return Bundle(
        reference=reference, reader=reader, bundle_id=bundle_id, manifest=read_manifest(reader, bundle_id), ref=ref
    )


def open_reader(store: str) -> StoreReader:
    """The reader for a store. Raises UsageError for a kind of store this version does not read, NotFoundError."""
    scheme, separator, _ = store.partition("://")
    if separator:
        raise UsageError(f"{scheme}:// stores are not supported yet", wanted="a directory", found=store)
    root = Path(store).expanduser()
    with storage_errors(".", store):
        if not root.is_dir():
            raise NotFoundError(
                f"there is no store at {store}",
                found="a file" if root.exists() else "no such directory",
                next_command=f"neuron-aot compile RECIPE --store {store}, or mend the path",
            )
    return LocalReader(root)


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
    manifest = parse_manifest(data, where=where)
    if manifest.to_json() != data or manifest.bundle_id != bundle_id:
        raise IntegrityError(
            f"{where} is damaged: its content is not what its name says",
            wanted=bundle_id,
            found=manifest.bundle_id if manifest.to_json() == data else "a manifest that is not in canonical form",
            next_command=f"remove {where} and run neuron-aot compile again",
        )
    return manifest


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
