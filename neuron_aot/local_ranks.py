"""All ranks of a bundle in one process, for checks: one jaxlib client with a cpu device for each rank.

Serving has a process for each rank, and a device (``neuron_aot_runtime.device``) in each; here the same artifact runs
on all of them at once, and its collectives meet inside the client.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path

import torch
from neuron_aot_runtime.contract.errors import DeviceError, IncompatibleArtifactError
from neuron_aot_runtime.contract.manifest import Manifest, Program
from neuron_aot_runtime.device import xla_artifact
from neuron_aot_runtime.device.cpu import CpuDevice

Tensors = Mapping[str, torch.Tensor]


class LocalRanks:
    """``params``: each rank's, by name, as the artifacts take them; they stay where they are."""

    def __init__(self, params: Sequence[Tensors]) -> None:
        os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")  # else XLA logs each client at INFO
        import numpy as np
        from jax.sharding import Mesh, NamedSharding, PartitionSpec
        from jaxlib import xla_client

        self._client = xla_client.make_cpu_client(num_devices=len(params))
        self._devices = self._client.local_devices()
        self._sharding = NamedSharding(Mesh(np.array(self._devices), ("rank",)), PartitionSpec("rank"))
        self._params = {name: self._place([rank[name] for rank in params]) for name in params[0]}

    def run(
        self, manifest: Manifest, program: Program, artifact: Path, states: Sequence[Tensors], inputs: Sequence[Tensors]
    ) -> list[dict[str, torch.Tensor]]:
        """One step of ``program`` (``artifact``: its verified file) on all ranks: each one's outputs and new states.

        ``states`` and ``inputs`` by rank, as the artifact takes them; neither is written to. Raises
        IncompatibleArtifactError, IntegrityError, DeviceError.
        """
        executable = self._load(manifest, program, artifact)
        arguments = [self._params[spec.name] for spec in manifest.params]
        for specs, tensors in ((manifest.states, states), (program.inputs, inputs)):
            # A donated array that was made elsewhere is copied first, so the caller's states stay as they are.
            arguments += [self._place([rank[spec.name] for rank in tensors]) for spec in specs]
        try:
            results = executable.execute_sharded(arguments).disassemble_into_single_device_arrays()
            names = [spec.name for spec in manifest.results(program)]
            read = {name: [_to_torch(part) for part in parts] for name, parts in zip(names, results, strict=True)}
        except RuntimeError as error:  # XlaRuntimeError is one
            raise DeviceError(f"{program.name}: the program failed on the cpu", found=str(error)) from error
        return [{name: parts[rank] for name, parts in read.items()} for rank in range(len(self._devices))]

    def _load(self, manifest: Manifest, program: Program, artifact: Path):
        from jaxlib import xla_client

        header, payload = xla_artifact.unpack(artifact)
        CpuDevice().check(header)
        arguments, results = (
            [(spec.dtype, spec.shape) for spec in specs]
            for specs in (manifest.arguments(program), manifest.results(program))
        )
        if header["signature"] != xla_artifact.signature_digest(arguments, results):
            raise IncompatibleArtifactError(f"{program.name}: the artifact has other tensors than the manifest says")
        try:
            return self._client.deserialize_executable(payload, xla_client.DeviceList(tuple(self._devices)))
        except RuntimeError as error:
            raise IncompatibleArtifactError(
                f"{program.name}: XLA cannot load the artifact", found=str(error)
            ) from error

    def _place(self, tensors: Sequence[torch.Tensor]):
        """One array over all devices, of each rank's tensor."""
        import jax
        from jaxlib import _jax

        parts = [
            _jax.dlpack_managed_tensor_to_buffer(tensor.contiguous().__dlpack__(), device, None, None)
            for tensor, device in zip(tensors, self._devices, strict=True)
        ]
        shape = (len(parts) * tensors[0].shape[0], *tensors[0].shape[1:])
        return jax.make_array_from_single_device_arrays(shape, self._sharding, parts)


def _to_torch(array) -> torch.Tensor:
    """A copy of one device's array."""
    from jaxlib import _jax

    return torch.from_dlpack(_jax.buffer_to_dlpack_managed_tensor(array)).clone()
