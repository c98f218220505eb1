"""The client of one rank of several, for the simulator: they meet at NEURON_RT_ROOT_COMM_ID, as with the real runtime, and
their collectives go over TCP.

The transport wants a key-value store while its connections are made. jaxlib's ends every process that waits in vain for
another or outlives it, so the store is opened when all have come, and is gone once each has run a program.
"""

from __future__ import annotations

import os
import socket
import time

ADDRESS = "NEURON_RT_ROOT_COMM_ID"


class Ranks:
    """``client``, ``device``: this rank's. Raises TimeoutError when the others do not come in ``seconds``."""

    def __init__(self, rank: int, world_size: int, seconds: int) -> None:
        from jaxlib import _jax, xla_client

        self.rank, self.world_size = rank, world_size
        self._service = None
        host, _, port = os.environ[ADDRESS].rpartition(":")
        root, deadline = (host, int(port)), time.monotonic() + seconds
        if rank == 0:
            others = _wait_for(root, world_size - 1, deadline)
            address = f"{host}:{_free_port(host)}"
            self._service = _jax.get_distributed_runtime_service(address, world_size)
            for other in others:
                with other:
                    other.sendall(address.encode())
        else:
            address = _ask(root, deadline)
        self._store = _jax.get_distributed_runtime_client(address, rank, init_timeout=60, shutdown_on_destruction=False)
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


def _wait_for(root: tuple[str, int], count: int, deadline: float) -> list[socket.socket]:
    """Rank 0: a connection to each of the others."""
    with socket.create_server(root) as server:
        found = []
        while len(found) < count:
            server.settimeout(max(deadline - time.monotonic(), 0.01))
            found.append(server.accept()[0])
        return found


def _ask(root: tuple[str, int], deadline: float) -> str:
    """Another rank: the store's address, from rank 0."""
    while True:
        try:
            with socket.create_connection(root, timeout=max(deadline - time.monotonic(), 0.01)) as connection:
                if answer := connection.recv(100):
                    return answer.decode()
        except ConnectionError:
            pass  # rank 0 is not there yet
        if time.monotonic() > deadline:
            raise TimeoutError("rank 0 did not come")
        time.sleep(0.05)


def _free_port(host: str) -> int:
    with socket.socket() as probe:
        probe.bind((host, 0))
        return probe.getsockname()[1]
