"""The cpu device: runs serialized XLA:CPU executables with jaxlib alone, in this process, without compiling.

Weights and per-step inputs are views of host memory. The KV cache belongs to the PJRT client, and each step's
program overwrites it in place (its buffers are donated).
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

import ml_dtypes
import numpy as np

from ..arrays import aligned, aligned_zeros, numpy_dtype
from ..contract.errors import DeviceError, IncompatibleArtifactError
from ..contract.manifest import RANK_INPUT, Manifest, Program, TensorSpec
from . import xla_artifact
from .base import ALONE, Place
from .cpu_client import CpuClient
from .cpu_features import missing_features


@dataclass(frozen=True)
class _Loaded:
    """One program, ready to run: its input arrays live as long as it does and are written before each step."""

    executable: object
    inputs: dict[str, np.ndarray]
    input_buffers: list[object]
    outputs: tuple[str, ...]
    params: tuple[str, ...]
    states: tuple[str, ...]


class CpuDevice:
    """See ``Device``."""

    target = "cpu"
    loads_while_serving = True
    keeps_params = True

    def __init__(self, place: Place = ALONE) -> None:
        self._place = place
        self._client: CpuClient | None = None
        self._programs: dict[str, _Loaded] = {}
        self._params: dict[str, object] = {}
        self._states: dict[str, object] = {}

    def check(self, requires: Mapping[str, str]) -> None:
        found = installed_jaxlib()
        differences = []
        if requires.get("jaxlib") != found:
            differences.append(f"jaxlib: wanted {requires.get('jaxlib')}, found {found}")
        missing = missing_features(name for name in requires.get("cpu_features", "").split(",") if name)
        if missing:
            differences.append(f"CPU features: this host lacks {', '.join(missing)}")
        if differences:
            raise IncompatibleArtifactError(
                "this host cannot run the bundle's cpu artifacts",
                details=differences,
                next_command="compile the recipe on a host like this one, or serve it on a host like the compiler's",
            )

    def load(self, manifest: Manifest, program: Program, artifact: Path) -> None:
        header, payload = xla_artifact.unpack(artifact)
        self.check(header)
        _check_signature(header["signature"], manifest, program)
        try:
            executable = self._open().deserialize(payload)
        except RuntimeError as error:  # XlaRuntimeError is one
            raise IncompatibleArtifactError(
                f"{program.name}: XLA cannot load the artifact", found=str(error)
            ) from error
        inputs = {spec.name: aligned_zeros(spec.shape, numpy_dtype(spec.dtype)) for spec in program.inputs}
        buffers = [self._to_buffer(array) for array in inputs.values()]
        if manifest.world_size > 1:
            inputs.pop(RANK_INPUT)[:] = self._place.rank
        self._programs[program.name] = _Loaded(
            executable=executable,
            inputs=inputs,
            input_buffers=buffers,
            outputs=tuple(spec.name for spec in program.outputs),
            params=tuple(spec.name for spec in manifest.params),
            states=tuple(spec.name for spec in manifest.states),
        )

    def put_param(self, spec: TensorSpec, array: np.ndarray) -> None:
        if array.shape != spec.shape or array.dtype != numpy_dtype(spec.dtype):
            raise ValueError(f"{spec.name}: wanted {spec.dtype} {spec.shape}, found {array.dtype} {array.shape}")
        self._params[spec.name] = self._to_buffer(aligned(array))

    def allocate_states(self, specs: Sequence[TensorSpec]) -> None:
        for spec in specs:
            self.put_state(spec, aligned_zeros(spec.shape, numpy_dtype(spec.dtype)))

    def execute(self, name: str, inputs: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        program = self._programs[name]
        for input_name, array in program.inputs.items():
            np.copyto(array, inputs[input_name], casting="no")
        arguments = [self._params[param] for param in program.params]
        arguments += [self._states[state] for state in program.states]
        arguments += program.input_buffers
        try:
            results = program.executable.execute_sharded(arguments).disassemble_into_single_device_arrays()
            arrays = [shards[0] for shards in results]
            self._states.update(zip(program.states, arrays[len(program.outputs) :], strict=True))
            # Reading waits for the whole program: the inputs' memory is free again afterwards.
            outputs = {
                output: np.asarray(memoryview(array)) for output, array in zip(program.outputs, arrays, strict=False)
            }
            self._client.connected()
            return outputs
        except RuntimeError as error:  # XlaRuntimeError is one
            raise DeviceError(f"{name}: the program failed on the cpu device", found=str(error)) from error

    def put_state(self, spec: TensorSpec, array: np.ndarray) -> None:
        """Place one KV state. The client copies it on its first donated use and owns the copy from then on."""
        self._states[spec.name] = self._to_buffer(aligned(array))

    def read_state(self, name: str) -> np.ndarray:
        """A copy of one KV state, in its stored dtype; for checks, never on the per-step path."""
        state = self._states[name]
        try:
            return np.array(memoryview(state))
        except BufferError:
            pass  # bfloat16 has no buffer protocol
        import torch
        from jaxlib import _jax

        bits = torch.from_dlpack(_jax.buffer_to_dlpack_managed_tensor(state)).view(torch.uint16)
        return bits.numpy().view(ml_dtypes.bfloat16).copy()

    def state_address(self, name: str) -> int:
        """Where one KV state lies: it stays there while programs overwrite it in place."""
        return self._states[name].unsafe_buffer_pointer()

    def close(self) -> None:
        for held in (self._programs, self._params, self._states):
            held.clear()
        self._client = None

    def _open(self) -> CpuClient:
        if self._client is None:
            self._client = CpuClient(self._place.ranks)
        return self._client

    def _to_buffer(self, array: np.ndarray):
        """A PJRT buffer over ``array``'s own memory."""
        device = self._open().device
        from jaxlib import _jax

        # Each import of a dlpack tries to import jax, which would cost 0.3 s once where it is installed and a
        # search of the path each time where it is not.
        hidden = "jax" not in sys.modules
        if hidden:
            sys.modules["jax"] = None
        try:
            return _jax.dlpack_managed_tensor_to_buffer(_dlpack(array), device, None, None)
        finally:
            if hidden:
                del sys.modules["jax"]


def installed_jaxlib() -> str:
    """jaxlib's version, or ``none``; without importing it."""
    try:
        return metadata.version("jaxlib")
    except metadata.PackageNotFoundError:
        return "none"


def _dlpack(array: np.ndarray):
    if array.dtype != ml_dtypes.bfloat16:
        return array.__dlpack__()
    import torch  # numpy cannot export a dtype that is not its own; torch is in every serving image

    return torch.from_numpy(array.view(np.uint16)).view(torch.bfloat16).__dlpack__()


def _check_signature(found: str, manifest: Manifest, program: Program) -> None:
    arguments = [(spec.dtype, spec.shape) for spec in manifest.arguments(program)]
    results = [(spec.dtype, spec.shape) for spec in manifest.results(program)]
    if found != xla_artifact.signature_digest(arguments, results):
        raise IncompatibleArtifactError(
            f"{program.name}: the artifact takes or gives other tensors than the manifest says",
            next_command="build the bundle again with `neuron-aot compile`",
        )
