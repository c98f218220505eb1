"""The cpu code generator: XLA:CPU, compiled ahead of time and serialized."""

from __future__ import annotations

import contextlib
import ctypes
import os
from importlib import metadata
from pathlib import Path

from neuron_aot_runtime.contract.errors import CompileError
from neuron_aot_runtime.device import cpu_features, xla_artifact


class XlaCpuGenerator:
    """See ``CodeGenerator``. Compiles for the CPU that it runs on, whose features are part of its identity."""

    name = "xla-cpu"
    target = "cpu"
    artifact_format = "xla-cpu"

    def identity(self) -> dict[str, str]:
        return {"compiler": self.name, "flags": " ".join(_xla_flags()), **self.requires()}

    def requires(self) -> dict[str, str]:
        return {"jaxlib": metadata.version("jaxlib"), "cpu_features": ",".join(cpu_features.host_features())}

    def check(self) -> None:
        """jaxlib is a dependency of the toolchain."""

    def generate(self, hlo: bytes, artifact: Path) -> None:
        os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")  # else XLA logs each client at INFO
        from jaxlib import _jax, xla_client

        from ..lower.replicas import replica_count

        try:
            ranks = replica_count(hlo)
            client = xla_client.make_cpu_client(num_devices=ranks)
            computation = xla_client.XlaComputation(hlo)
            module = _jax.mlir.xla_computation_to_mlir_module(computation)
            devices = xla_client.DeviceList(tuple(client.local_devices()))
            options = xla_client.CompileOptions()
            options.num_replicas = ranks
            executable = client.compile_and_load(module, devices, options)
            payload = client.serialize_executable(executable)
        except RuntimeError as error:  # XlaRuntimeError is one
            raise CompileError("XLA:CPU cannot compile the module", found=str(error)) from error
        finally:
            _give_memory_back()
        signature = _signature(computation.program_shape())
        artifact.write_bytes(xla_artifact.pack(payload, jaxlib=metadata.version("jaxlib"), signature=signature))


def _xla_flags() -> list[str]:
    """XLA's own environment variable changes the code it generates, so it is part of the identity."""
    return sorted(os.environ.get("XLA_FLAGS", "").split())


def _give_memory_back() -> None:
    """XLA frees a compile's memory in small pieces, which glibc keeps: 50 MB more with each program of a worker."""
    with contextlib.suppress(AttributeError, OSError):
        ctypes.CDLL(None).malloc_trim(0)


def _signature(shape) -> str:
    arguments, results = shape.parameter_shapes(), shape.result_shape().tuple_shapes()
    types = ([(item.numpy_dtype().name, item.dimensions()) for item in side] for side in (arguments, results))
    return xla_artifact.signature_digest(*types)
