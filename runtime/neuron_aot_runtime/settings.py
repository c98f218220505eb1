"""The environment: the one place where variables are read, and where defaults for this process are set."""

from __future__ import annotations

import atexit
import os
import re
import shutil
import tempfile
from collections.abc import MutableMapping
from dataclasses import dataclass
from pathlib import Path

from .contract.errors import ConfigError

ARTIFACTS = "NEURON_COMPILED_ARTIFACTS"
VISIBLE_CORES = "NEURON_RT_VISIBLE_CORES"
CORE_SIZE = "NEURON_LOGICAL_NC_CONFIG"
ROOT_ADDRESS = "NEURON_RT_ROOT_COMM_ID"
CACHE = "NEURON_AOT_CACHE"
CACHE_SIZE = "NEURON_AOT_CACHE_SIZE"
OFFLINE = "NEURON_AOT_OFFLINE"
TRUST = "NEURON_AOT_TRUST"
_XLA_THREADS = "NPROC"
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


@dataclass(frozen=True)
class StoreSettings:
    """How stores are read. ``trust``: the policy file, None when signatures are not looked at.

    ``cache``: where bytes of remote stores are kept; ``cache_size``: its bound in bytes; ``offline``: no outbound call.
    ``sources`` says where each came from.
    """

    cache: Path
    cache_size: int
    offline: bool
    trust: Path | None
    sources: dict[str, str]


def read_store_settings(environ: MutableMapping[str, str] = os.environ) -> StoreSettings:
    """The settings of this process. Raises ConfigError for a value that cannot be meant."""
    if environ.get(CACHE):
        cache, source = Path(environ[CACHE]).expanduser(), CACHE
    elif environ.get("XDG_CACHE_HOME"):
        cache, source = Path(environ["XDG_CACHE_HOME"]) / "neuron-aot", "XDG_CACHE_HOME"
    elif (home := environ.get("HOME")) and os.access(home, os.W_OK):
        cache, source = Path(home) / ".cache" / "neuron-aot", "default"
    else:
        cache, source = Path(tempfile.gettempdir()) / f"neuron-aot-{os.getuid()}", "default: there is no writable home"
    trust = environ.get(TRUST) or None
    return StoreSettings(
        cache=cache,
        cache_size=_bytes(CACHE_SIZE, environ.get(CACHE_SIZE) or "100GB"),
        offline=_flag(OFFLINE, environ.get(OFFLINE) or "0"),
        trust=Path(trust).expanduser() if trust else None,
        sources={
            "cache": source,
            "cache_size": CACHE_SIZE if environ.get(CACHE_SIZE) else "default",
            "offline": OFFLINE if environ.get(OFFLINE) else "default",
            "trust": TRUST if trust else "not set: signatures are not looked at",
        },
    )


def _flag(name: str, text: str) -> bool:
    if text.lower() not in ("0", "1", "true", "false"):
        raise ConfigError(f"{name} is a switch", wanted="1 or 0", found=repr(text))
    return text.lower() in ("1", "true")


def _bytes(name: str, text: str) -> int:
    match = re.fullmatch(r"(\d+) ?([kMGT]?)B?", text)
    if match is None:
        raise ConfigError(f"{name} is a size in bytes", wanted="a number with kB, MB, GB or TB", found=repr(text))
    return int(match[1]) * 1000 ** ("kMGT".find(match[2]) + 1 if match[2] else 0)


def share_threads(processes: int, environ: MutableMapping[str, str] = os.environ) -> None:
    """Give XLA's client in this process its part of the host's cores, unless the user has said how many (NPROC)."""
    environ.setdefault(_XLA_THREADS, str(max(1, len(os.sched_getaffinity(0)) // processes)))


def root_address(replica: int, environ: MutableMapping[str, str] = os.environ) -> str | None:
    """Where the user lets the Neuron runtimes of an engine's ranks meet, ``host:port`` in rank 0; None when unsaid.

    Each replica has the next port, for an address serves one engine. Raises ConfigError.
    """
    if not (said := environ.get(ROOT_ADDRESS)):
        return None
    host, _, port = said.rpartition(":")
    if not host or not port.isdecimal() or not 0 < int(port) + replica < 1 << 16:
        raise ConfigError(f"{ROOT_ADDRESS} is no address", wanted="host:port", found=repr(said))
    return f"{host}:{int(port) + replica}"


def set_root_address(address: str, environ: MutableMapping[str, str] = os.environ) -> None:
    """Tell this process's Neuron runtime where it meets those of the other ranks."""
    environ[ROOT_ADDRESS] = address


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
