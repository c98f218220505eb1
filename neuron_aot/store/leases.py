"""What a running writer announces, so that a gc that runs meanwhile takes nothing it relies on.

A push writes a lease, then waits until no gc runs, then looks what is there. A gc writes a lease, then reads those of
the pushes, then deletes. Whichever lease is written first is seen by the other side, so nothing that a push relies on
is lost, and no lock is needed that a killed process would leave behind.

How old a lease is, is told by the storage's clock alone, so hosts whose clocks differ do not take each other for dead.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager

from neuron_aot_runtime.contract.errors import NotFoundError
from neuron_aot_runtime.store import parse_record
from neuron_aot_runtime.store.records import Lease, now

#: Seconds. A gc that has not renewed its lease for so long was killed; so was a push whose lease is older than a day.
GC_ALIVE = 600
PUSH_ALIVE = 24 * 3600


@contextmanager
def held(
    backend, kind: str, programs: Iterable[str] = (), blobs: Iterable[str] = (), bundles: Iterable[str] = ()
) -> Iterator[str]:
    """Hold a lease; yields its path."""
    path = f"leases/{kind}-{uuid.uuid4().hex}.json"
    lease = Lease(
        kind=kind,
        started_at=now(),
        programs=tuple(sorted(programs)),
        blobs=tuple(sorted(blobs)),
        bundles=tuple(sorted(bundles)),
    )
    backend.create(path, lease.to_json())
    try:
        yield path
    finally:
        backend.delete(path)


def storage_clock(backend, path: str) -> Callable[[], float]:
    """The storage's own time, in seconds since 1970, set by an object that was written a moment ago."""
    ahead = backend.stat(path).modified - time.monotonic()
    return lambda: ahead + time.monotonic()


def pushes(backend, now: float) -> list[Lease]:
    """The leases of pushes, less those that were killed. ``now``: by the storage's clock."""
    found = []
    for entry in backend.list("leases"):
        if entry.path.startswith("leases/push-") and now - entry.modified < PUSH_ALIVE:
            try:
                data = backend.read(entry.path)
            except NotFoundError:
                continue
            found.append(parse_record(Lease, data, where=f"{backend.location}/{entry.path}"))
    return found


def wait_for_gc(backend, lease: str, *, poll: float = 1.0) -> None:
    """Return when no gc runs. ``lease``: the path of the caller's own."""
    clock = storage_clock(backend, lease)
    while any(
        entry.path.startswith("leases/gc-") and clock() - entry.modified < GC_ALIVE for entry in backend.list("leases")
    ):
        time.sleep(poll)
