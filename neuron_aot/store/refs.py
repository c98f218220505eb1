"""Refs: the only names that move, each with a history that no two writers can tell differently.

An entry of the history is created under the next free number before the ref is replaced, so the numbers decide who
was last. A writer that finds a later number than its own after it has moved the ref moves it on to that one.
"""

from __future__ import annotations

from pathlib import Path

from neuron_aot_runtime.contract.errors import NotFoundError, UsageError
from neuron_aot_runtime.contract.layout import bundle_path, history_directory, history_path, ref_path
from neuron_aot_runtime.store import RefRecord, parse_record, read_ref
from neuron_aot_runtime.store.records import now

from . import leases


def set_ref(backend, name: str, record: RefRecord) -> RefRecord:
    """Let a ref mean ``record.bundle``; nothing is written when it does already. Returns the ref's record.

    Raises UsageError (bad name), NotFoundError (no such bundle).
    """
    path = ref_path(name)
    _require_bundle(backend, name, record)
    try:
        current = read_ref(backend, name)
        if (current.bundle, current.model) == (record.bundle, record.model):
            return current
    except NotFoundError:
        pass
    # Under a lease: until the ref says so, nothing else may keep an old bundle from a gc.
    with leases.held(backend, "push", bundles=[record.bundle]) as lease:
        leases.wait_for_gc(backend, lease)
        _require_bundle(backend, name, record)
        mine = _append(backend, name, record)
        while True:
            backend.replace(path, mine.to_json())
            latest = _numbers(backend, name)[-1]
            if latest <= mine.number:
                return mine
            mine = _entry(backend, name, latest)


def remove_ref(backend, name: str) -> None:
    """Remove a ref; its history stays, so it can be set again. Raises NotFoundError."""
    read_ref(backend, name)
    backend.delete(ref_path(name))


def history(backend, name: str) -> list[RefRecord]:
    """What the ref was set to, the latest first."""
    return [_entry(backend, name, number) for number in reversed(_numbers(backend, name))]


def rollback(backend, name: str) -> RefRecord:
    """Let a ref mean what it meant before; a move like any other, so it can be rolled back too.

    Raises NotFoundError (no such ref or bundle), UsageError when there is nothing before.
    """
    current = read_ref(backend, name)
    before = next((item for item in history(backend, name) if item.number < current.number), None)
    while before is not None and before.bundle == current.bundle:
        before = next((item for item in history(backend, name) if item.number < before.number), None)
    if before is None:
        raise UsageError(
            f"the ref {name} has never meant another bundle",
            found=f"{len(_numbers(backend, name))} entries in its history",
            next_command=f"neuron-aot refs log {backend.location}@{name}",
        )
    return set_ref(backend, name, RefRecord(bundle=before.bundle, model=before.model))


def _require_bundle(backend, name: str, record: RefRecord) -> None:
    try:
        backend.stat(bundle_path(record.bundle))
    except NotFoundError as error:
        raise NotFoundError(
            f"the store {backend.location} has no bundle {record.bundle}: the ref {name} was not moved",
            wanted=record.bundle,
            next_command=f"neuron-aot push SOURCE@{record.bundle} {backend.location}",
        ) from error


def _append(backend, name: str, record: RefRecord) -> RefRecord:
    set_at = now()
    while True:
        number = (_numbers(backend, name) or [0])[-1] + 1
        entry = record.model_copy(update={"number": number, "set_at": set_at})
        if backend.create(history_path(name, number), entry.to_json()):
            return entry


def _numbers(backend, name: str) -> list[int]:
    return sorted(int(Path(path).stem) for path in backend.names(history_directory(name)))


def _entry(backend, name: str, number: int) -> RefRecord:
    path = history_path(name, number)
    return parse_record(RefRecord, backend.read(path), where=f"{backend.location}/{path}")
