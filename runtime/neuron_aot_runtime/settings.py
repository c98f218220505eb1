"""The environment: the one place where variables are read, and where defaults for this process are set."""

from __future__ import annotations

import atexit
import os
import shutil
import tempfile
from collections.abc import MutableMapping
from dataclasses import dataclass

ARTIFACTS = "NEURON_COMPILED_ARTIFACTS"
VISIBLE_CORES = "NEURON_RT_VISIBLE_CORES"
CORE_SIZE = "NEURON_LOGICAL_NC_CONFIG"
_LOG_LEVEL = "VLLM_NEURON_LOG_LEVEL"
_METRICS_DIRECTORY = "PROMETHEUS_MULTIPROC_DIR"


@dataclass(frozen=True)
class Settings:
    """``artifacts``: the bundle reference, None when this process is not meant to serve one.

    ``threads_chosen``: whether the user decided how many threads torch may use.
    ``visible_cores`` and ``logical_core_size``: what the Neuron runtime's variables say, as they stand; None when unset.
    """

    artifacts: str | None
    log_level: str
    threads_chosen: bool
    visible_cores: str | None = None
    logical_core_size: str | None = None


def read_settings(environ: MutableMapping[str, str] = os.environ) -> Settings:
    """The settings of this process; cheap, and never cached: tests and tools change the environment."""
    return Settings(
        artifacts=environ.get(ARTIFACTS) or None,
        log_level=environ.get(_LOG_LEVEL, "INFO").upper(),
        threads_chosen="OMP_NUM_THREADS" in environ,
        visible_cores=environ.get(VISIBLE_CORES) or None,
        logical_core_size=environ.get(CORE_SIZE) or None,
    )


def set_vllm_defaults(environ: MutableMapping[str, str] = os.environ) -> None:
    """Defaults that vLLM reads from the environment before any hook of ours runs; what the user set stays.

    Must run while vLLM is being imported (the platform plugin's callable is early enough).
    """
    # Without it vLLM's command line chooses spawn, and every process level imports vLLM again (5 s each). Safe,
    # because nothing here starts a device or a thread in the parent process.
    environ.setdefault("VLLM_WORKER_MULTIPROC_METHOD", "fork")
    # The scheduler contract of vLLM's second model runner differs; on a host with Triton it is the default.
    environ.setdefault("VLLM_USE_V2_MODEL_RUNNER", "0")
    # Worker metrics reach /metrics only in prometheus_client's multiprocess mode, and the directory must be known
    # before prometheus_client is imported. An inherited one belongs to the process that made it.
    if not environ.get(_METRICS_DIRECTORY):
        environ[_METRICS_DIRECTORY] = _temporary_directory()
    else:
        os.makedirs(environ[_METRICS_DIRECTORY], exist_ok=True)


def _temporary_directory() -> str:
    path = tempfile.mkdtemp(prefix="neuron-aot-metrics-")
    owner = os.getpid()

    def remove() -> None:
        if os.getpid() == owner:
            shutil.rmtree(path, ignore_errors=True)

    atexit.register(remove)
    return path
