"""What a running writer announces, so that a gc that runs meanwhile takes nothing it relies on.

A push writes a lease, then looks what is there, then publishes, then looks again (see ``transfer``). A gc writes a
lease, then reads those of the pushes, then deletes. Whichever lease is written first is seen by the other side, so
nothing that a finished push relies on is lost, without a lock that a killed process could leave behind.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime

from neuron_aot_runtime.contract.errors import NotFoundError
from neuron_aot_runtime.store import parse_record
from neuron_aot_runtime.store.records import Lease

#: Seconds. A gc that has not renewed its lease for so long was killed.
GC_ALIVE = 600


@contextmanager
def held(backend, kind: str, programs: Iterable[str] = (), blobs: Iterable[str] = ()) -> Iterator[str]:
    """Hold a lease; yields its path."""
    path = f"leases/{kind}-{uuid.uuid4().hex}.json"
    lease = Lease(
        kind=kind,
        started_at=datetime.now(UTC).isoformat(timespec="seconds"),
        programs=tuple(sorted(programs)),
        blobs=tuple(sorted(blobs)),
    )
    backend.create(path, lease.to_json())
    try:
        yield path
    finally:
        backend.delete(path)


def pushes(backend, *, younger_than: float) -> list[Lease]:
    """The leases of pushes, less those that a killed one left more than ``younger_than`` seconds ago."""
    found = []
    for entry in backend.list("leases"):
        if entry.path.startswith("leases/push-") and time.time() - entry.modified < younger_than:
            try:
                data = backend.read(entry.path)
            except NotFoundError:
                continue
            found.append(parse_record(Lease, data, where=f"{backend.location}/{entry.path}"))
    return found


def wait_for_gc(backend, *, poll: float = 1.0) -> bool:
    """Return when no gc runs; whether one did."""
    waited = False
    while any(
        entry.path.startswith("leases/gc-") and time.time() - entry.modified < GC_ALIVE
        for entry in backend.list("leases")
    ):
        waited = True
        time.sleep(poll)
    return waited
