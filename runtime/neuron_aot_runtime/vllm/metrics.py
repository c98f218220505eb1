"""The ``vllm_neuron:`` metrics, under the names of the vLLM Neuron features guide.

Workers write through prometheus_client's multiprocess mode (``settings.set_vllm_defaults`` chose the directory), so
the API server's /metrics shows every rank. Children are made once per program: a step costs a few dictionary-free
increments.
"""

from __future__ import annotations

import time
from functools import cache
from types import SimpleNamespace

import psutil
from prometheus_client import Counter, Gauge, Histogram
from vllm.v1.metrics.loggers import AggregateStatLoggerBase

from ..contract.manifest import Manifest
from ..settings import read_settings

_PADDED_SEQS = (0, 1, 2, 4, 8, 16, 32, 64, 128, 256)
_PADDED_TOKENS = (0, 1, 8, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192)


@cache
def _families() -> SimpleNamespace:
    """Every metric, registered once per process however many engines it makes."""
    bucket = ("model_name", "bucket_name", "rank_id")
    rank = ("model_name", "rank_id")
    latest = {"multiprocess_mode": "mostrecent"}
    return SimpleNamespace(
        seqs_padding=Histogram(
            "vllm_neuron:num_seqs_padding", "Padded batch lines of a decode execution.", bucket, buckets=_PADDED_SEQS
        ),
        tokens_padding=Histogram(
            "vllm_neuron:num_batched_tokens_padding",
            "Padded tokens of a prefill execution.",
            bucket,
            buckets=_PADDED_TOKENS,
        ),
        # The client appends _total to a counter's name on exposition, as Prometheus wants.
        executions=Counter("vllm_neuron:neff_execution_count", "Executions of a compiled program.", bucket),
        startup=Gauge(
            "vllm_neuron:startup_time_seconds",
            "From the start of the server's process until it is ready.",
            rank,
            **latest,
        ),
        compilation=Gauge(
            "vllm_neuron:compilation_time_seconds", "Compilation while serving: always 0.", bucket, **latest
        ),
        program_load=Gauge("vllm_neuron:program_load_time_seconds", "Loading a compiled program.", bucket, **latest),
        model_load=Gauge("vllm_neuron:model_load_time_seconds", "Loading the weights.", rank, **latest),
        model_size=Gauge("vllm_neuron:model_load_size_bytes", "Weights placed on the device.", rank, **latest),
    )


class WorkerMetrics:
    """One rank's metrics. ``model_name`` is the name that vLLM's own metrics carry."""

    def __init__(self, manifest: Manifest, *, model_name: str, rank: int) -> None:
        self._families = families = _families()
        self._rank = (model_name, str(rank))
        self._bucket = {program.name: (model_name, program.name, str(rank)) for program in manifest.programs}
        self._executed = {}
        for program in manifest.programs:
            labels = self._bucket[program.name]
            padding = families.tokens_padding if program.phase == "prefill" else families.seqs_padding
            self._executed[program.name] = (families.executions.labels(*labels), padding.labels(*labels))

    def executed(self, program: str, padding: int) -> None:
        """One execution, of which ``padding`` lines or tokens were padding."""
        executions, histogram = self._executed[program]
        executions.inc()
        histogram.observe(padding)

    def program_loaded(self, program: str, seconds: float) -> None:
        """A program is ready."""
        self._families.program_load.labels(*self._bucket[program]).set(seconds)
        self._families.compilation.labels(*self._bucket[program]).set(0)

    def weights_loaded(self, seconds: float, nbytes: int) -> None:
        """All weights are in place."""
        self._families.model_load.labels(*self._rank).set(seconds)
        self._families.model_size.labels(*self._rank).set(nbytes)


class NeuronStatLogger(AggregateStatLoggerBase):
    """vLLM makes one in the API server; it reports when the server became ready. Idle without a bundle."""

    def __init__(self, vllm_config, engine_indexes: list[int]) -> None:
        self._model_name = vllm_config.model_config.served_model_name

    def record(self, scheduler_stats, iteration_stats, mm_cache_stats=None, engine_idx: int = 0) -> None:
        """Nothing: steps are counted where they run."""

    def log_engine_initialized(self) -> None:
        """The engine is up, so the server is."""
        if read_settings().artifacts is not None:
            seconds = time.time() - psutil.Process().create_time()
            _families().startup.labels(self._model_name, "0").set(seconds)
