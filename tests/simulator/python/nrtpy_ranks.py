"""The client of one rank of several, for the simulator: they meet at NEURON_RT_ROOT_COMM_ID, as with the real runtime, and
their collectives go over TCP.

The address is that of a key-value store in rank 0, which the transport wants while its connections are made. The store's
owner takes the end of one process for a failure of all, so it is gone once each rank has run a program.
"""

from __future__ import annotations

import os

ADDRESS = "NEURON_RT_ROOT_COMM_ID"


class Ranks:
    """``client``, ``device``: this rank's. Raises RuntimeError when the others do not come in ``seconds``."""

    def __init__(self, rank: int, world_size: int, seconds: int) -> None:
        from jaxlib import _jax, xla_client

        address = os.environ[ADDRESS]
        self.rank, self.world_size = rank, world_size
        self._service = _jax.get_distributed_runtime_service(address, world_size) if rank == 0 else None
        self._store = _jax.get_distributed_runtime_client(
            address, rank, init_timeout=seconds, shutdown_on_destruction=False
        )
        self._store.connect()
        self.client = xla_client.make_cpu_client(
            distributed_client=self._store,
            node_id=rank,
            num_nodes=world_size,
            collectives=_jax.make_gloo_tcp_collectives(self._store, hostname="127.0.0.1"),
            num_devices=1,
        )
        (self.device,) = self.client.local_devices()

    def options(self):
        """A program's replica is the rank of its number; it was compiled for as many devices of one process."""
        import numpy as np
        from jaxlib import xla_client

        devices = sorted(self.client.devices(), key=lambda device: device.process_index)
        options = xla_client.CompileOptions()
        options.num_replicas = len(devices)
        options.device_assignment = xla_client.DeviceAssignment.create(np.array([[device.id] for device in devices]))
        return options

    def met(self) -> None:
        """A program has run: the connections stand."""
        if self._store is not None:
            self._store.shutdown()  # returns when all are here
            if self._service is not None:
                self._service.shutdown()
            self._store = self._service = None
