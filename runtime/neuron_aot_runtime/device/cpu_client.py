"""The PJRT CPU client of one process: alone, or as one of several ranks whose collectives go over gloo.

gloo wants a key-value store while its connections are made: a coordination service of jaxlib's, in rank 0. It aborts
every process that outlives another, so it is gone as soon as the ranks are connected.
"""

from __future__ import annotations

import os

from ..contract.errors import DeviceError
from ..ranks import LOOPBACK, RankGroup, free_address
from ..settings import share_threads

_ATTEMPTS = 5  # another process may take a free port before the service does


class CpuClient:
    """``device``: this rank's. ``ranks`` None: the only one. Raises DeviceError when the ranks do not connect."""

    def __init__(self, ranks: RankGroup | None) -> None:
        os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")  # else XLA logs each client at INFO
        if ranks is not None:
            share_threads(ranks.world_size)  # read when the client is made
        from jaxlib import xla_client

        self._service = self._store = None
        collectives = {} if ranks is None else self._collectives(ranks)
        self.client = xla_client.make_cpu_client(**collectives)
        (self.device,) = self.client.local_devices()
        self._options = None if ranks is None else self._replicas()

    def deserialize(self, payload: bytes):
        """The executable of a serialized program. Raises RuntimeError (XlaRuntimeError is one)."""
        from jaxlib import xla_client

        return self.client.deserialize_executable(payload, xla_client.DeviceList((self.device,)), self._options)

    def connected(self) -> None:
        """Every rank has run a program, and so a collective of every kind of group there is (one, of all ranks)."""
        if self._store is None:
            return
        self._store.shutdown()  # returns when all ranks are here
        if self._service is not None:
            self._service.shutdown()
        self._service = self._store = None

    def _collectives(self, ranks: RankGroup) -> dict:
        from jaxlib import _jax

        address = None
        if ranks.rank == 0:
            self._service, address = _serve(ranks.world_size)
        address = ranks.gather("address", address)[0]
        self._store = _jax.get_distributed_runtime_client(
            address, ranks.rank, init_timeout=int(ranks.timeout), shutdown_on_destruction=False
        )
        try:
            self._store.connect()
        except RuntimeError as error:  # XlaRuntimeError is one
            raise DeviceError(f"rank {ranks.rank} cannot connect to rank 0", found=str(error)) from error
        return {
            "distributed_client": self._store,
            "node_id": ranks.rank,
            "num_nodes": ranks.world_size,
            "collectives": _jax.make_gloo_tcp_collectives(self._store, hostname=LOOPBACK),
            "num_devices": 1,
        }

    def _replicas(self):
        """Programs were compiled for as many devices of one process; these are each of another."""
        import numpy as np
        from jaxlib import xla_client

        devices = sorted(self.client.devices(), key=lambda device: device.process_index)
        options = xla_client.CompileOptions()
        options.num_replicas, options.num_partitions = len(devices), 1
        options.device_assignment = xla_client.DeviceAssignment.create(np.array([[device.id] for device in devices]))
        return options


def _serve(world_size: int):
    """(the service, its address) on a free port of the loopback interface."""
    from jaxlib import _jax

    for attempt in range(_ATTEMPTS):
        address = free_address()
        try:
            return _jax.get_distributed_runtime_service(address, world_size), address
        except RuntimeError as error:  # XlaRuntimeError is one
            if attempt == _ATTEMPTS - 1:
                raise DeviceError("rank 0 cannot offer the others an address", found=str(error)) from error
    raise AssertionError("unreachable")
