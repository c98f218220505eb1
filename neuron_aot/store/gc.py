"""Garbage collection by reachability, and purging single entries.

What a ref means, or one of the last entries of a ref's history, is reachable, with all it names. The rest goes once
it is older than the grace period, which covers every writer that has not yet published what it has stored. ``leases``
says why a concurrent push loses nothing.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from neuron_aot_runtime.contract.errors import IntegrityError, NotFoundError, UsageError
from neuron_aot_runtime.contract.layout import (
    blob_path,
    bundle_path,
    is_bundle_id,
    origin_path,
    program_path,
    signature_directory,
)
from neuron_aot_runtime.store import (
    Entry,
    FailureRecord,
    ProgramRecord,
    RequestRecord,
    parse_record,
    read_manifest,
    read_ref,
    refs,
)

from . import leases
from .refs import history
from .store import Store
from .streams import parallel

#: Seconds: a day, longer than any push or compile that has not published yet.
DEFAULT_GRACE = 24 * 3600
_BATCH = 100
#: Names first, then what they name: a gc that is killed leaves nothing that dangles.
_ORDER = ("signatures", "origins", "bundles", "requests", "differences", "failures", "programs", "blobs", "leases")


@dataclass(frozen=True)
class Plan:
    """What goes and what stays; sizes in bytes."""

    doomed: tuple[Entry, ...]
    kept: int
    kept_bytes: int

    @property
    def nbytes(self) -> int:
        return sum(entry.size for entry in self.doomed)


def plan_gc(
    store: Store, *, keep_last: int = 1, grace: float = DEFAULT_GRACE, clock: Callable[[], float] = time.time
) -> Plan:
    """What a gc would remove. ``keep_last``: entries of each ref's history that stay, what it means now included.

    ``clock``: the storage's; a plan that is only looked at takes this host's, for it writes nothing that would be dated.

    Raises IntegrityError when anything reachable cannot be read: then nothing is known to be garbage.
    """
    entries = {kind: store.list(kind) for kind in _ORDER}
    now = clock()
    reachable = _reachable(store, keep_last, grace, now)
    old, dead = now - grace, {"leases": now - leases.PUSH_ALIVE}
    candidates = [
        entry
        for kind in _ORDER
        for entry in entries[kind]
        if entry.modified < dead.get(kind, old) and entry.path not in reachable
    ]
    stays = parallel(lambda entry: _kept_with(entry, reachable, store), candidates)
    doomed = [entry for entry, kept in zip(candidates, stays, strict=True) if not kept]
    all_entries = [entry for kind in _ORDER for entry in entries[kind]]
    gone = {entry.path for entry in doomed}
    kept = [entry for entry in all_entries if entry.path not in gone]
    return Plan(tuple(doomed), len(kept), sum(entry.size for entry in kept))


def collect(store: Store, *, keep_last: int = 1, grace: float = DEFAULT_GRACE) -> Plan:
    """Remove what ``plan_gc`` lists. Safe while others push."""
    with leases.held(store.backend, "gc") as lease:
        # Planned under the lease: a push whose lease this plan does not see will see ours, and wait before it looks.
        clock = leases.storage_clock(store.backend, lease)
        plan = plan_gc(store, keep_last=keep_last, grace=grace, clock=clock)
        renewed = time.monotonic()
        for start in range(0, len(plan.doomed), _BATCH):
            if time.monotonic() - renewed > leases.GC_ALIVE / 4:
                store.backend.replace(lease, store.read(lease))
                renewed = time.monotonic()
            for kind in _ORDER:  # names before what they name, within a batch too
                paths = [item.path for item in plan.doomed[start : start + _BATCH] if item.path.startswith(f"{kind}/")]
                parallel(store.backend.delete, paths)
    if not store.remote:
        store.clean_litter()
    return plan


def purge(store: Store, name: str, *, force: bool = False) -> list[Entry]:
    """Remove one bundle or one program (with its requests and its blobs, unless another program has the same bytes).

    Raises NotFoundError; UsageError when a ref means the bundle, or a bundle names the program, unless ``force``.
    """
    if not is_bundle_id(name):
        raise UsageError(f"{name!r} is neither a bundle id nor a program key", wanted="64 hex digits", found=repr(name))
    bundles = {entry.path: entry for entry in store.list("bundles")}
    if bundle_path(name) in bundles:
        users = [ref for ref in refs(store.backend) if read_ref(store.backend, ref).bundle == name]
        doomed = [*store.list(signature_directory(name)), bundles[bundle_path(name)]]
        with suppress(NotFoundError):
            doomed.insert(0, store.backend.stat(origin_path(name)))
        what, by = "bundle", "refs"
    else:
        doomed = _program_entries(store, name)
        users = [Path(path).stem[:16] for path in bundles if _names(store, path, name)]
        what, by = "program", "bundles"
    if users and not force:
        raise UsageError(
            f"the {what} {name} is in use",
            found=f"{by} {', '.join(users)}",
            next_command="remove those first, or --force (what names it will be incomplete)",
        )
    for entry in doomed:
        store.backend.delete(entry.path)
    return doomed


def _reachable(store: Store, keep_last: int, grace: float, now: float) -> set[str]:
    found: set[str] = set()
    programs: set[str] = set()
    bundles: set[str] = set()
    # Before the refs and bundles: a push whose lease is gone by now has published, one that has not still holds it.
    for lease in leases.pushes(store.backend, now):
        found |= {program_path(key) for key in lease.programs} | {blob_path(digest) for digest in lease.blobs}
        programs |= {program_path(key) for key in lease.programs}
        bundles |= set(lease.bundles)
    for name in refs(store.backend):
        bundles.add(read_ref(store.backend, name).bundle)
        bundles |= {record.bundle for record in history(store.backend, name)[:keep_last]}
    young = now - grace
    bundles |= {Path(entry.path).stem for entry in store.list("bundles") if entry.modified >= young}
    for bundle in bundles:
        try:
            manifest = read_manifest(store.backend, bundle)
        except NotFoundError:
            continue  # purged; its ref dangles, and verify says so
        found.add(bundle_path(bundle))
        for program in manifest.programs:
            found |= {program_path(program.program_key), blob_path(program.artifact.digest)}
            programs.add(program_path(program.program_key))
    recent = {entry.path for kind in ("programs", "failures") for entry in store.list(kind) if entry.modified >= young}

    def blobs(path: str) -> set[str]:
        try:
            return _blobs_of(store, path)
        except IntegrityError:
            if path in programs:
                raise
            return set()  # damaged and in no bundle: verify names it, and its blobs are kept by whoever else names them

    found |= programs | recent
    return found.union(*parallel(blobs, programs | recent))


def _kept_with(entry: Entry, reachable: set[str], store: Store) -> bool:
    """Whether what belongs to something else stays because that stays."""
    kind, owner = entry.path.partition("/")[0], Path(entry.path).parent.name
    if kind == "signatures":
        return bundle_path(owner) in reachable
    if kind == "origins":
        return bundle_path(Path(entry.path).stem) in reachable
    if kind == "differences":
        return program_path(owner) in reachable
    if kind == "requests":
        record = parse_record(RequestRecord, store.read(entry.path), where=f"{store.location}/{entry.path}")
        return program_path(record.program_key) in reachable
    return False


def _blobs_of(store: Store, path: str) -> set[str]:
    """What a program's or a failure's record names. Raises IntegrityError for a damaged one: who knows what it named."""
    try:
        data = store.read(path)
    except NotFoundError:
        return set()
    schema = FailureRecord if path.startswith("failures/") else ProgramRecord
    record = parse_record(schema, data, where=f"{store.location}/{path}")
    blobs = record.blobs if isinstance(record, ProgramRecord) else (record.log,) if record.log else ()
    return {blob_path(blob.digest) for blob in blobs}


def _program_entries(store: Store, key: str) -> list[Entry]:
    record = store.program(key)
    if record is None:
        raise NotFoundError(
            f"the store {store.location} has neither a bundle nor a program {key}",
            next_command=f"neuron-aot ls {store.location}",
        )
    requests = [
        entry
        for entry in store.list("requests")
        if (found := store.request(Path(entry.path).stem)) and found.program_key == key
    ]
    others = [store.program(Path(path).stem) for path in store.names("programs") if Path(path).stem != key]
    shared = {blob.digest for other in others if other for blob in other.blobs}
    doomed = [*requests, store.backend.stat(program_path(key))]
    for digest in {blob.digest: None for blob in record.blobs if blob.digest not in shared}:
        with suppress(NotFoundError):
            doomed.append(store.backend.stat(blob_path(digest)))
    return doomed


def _names(store: Store, path: str, program_key: str) -> bool:
    manifest = read_manifest(store.backend, Path(path).stem)
    return any(program.program_key == program_key for program in manifest.programs)
