"""vLLM's worker: loads one rank's programs and weights, and hands steps to the runner."""

from __future__ import annotations

import time
from contextlib import contextmanager
from multiprocessing import parent_process
from pathlib import Path

import torch
from vllm.v1.core.sched.output import GrammarOutput, SchedulerOutput
from vllm.v1.kv_cache_interface import FullAttentionSpec, KVCacheConfig, KVCacheSpec
from vllm.v1.outputs import ModelRunnerOutput
from vllm.v1.worker.worker_base import CompilationTimes, WorkerBase

from .. import device as devices
from ..batch import padding_inputs
from ..contract.errors import ConfigError, NeuronAotError
from ..contract.manifest import Program
from ..loader import ProgramLoader, first_needed
from ..ranks import RankGroup, kind_of_rank, meet
from ..settings import read_settings
from ..weights import load_weights
from .active import active_bundle, logger
from .metrics import WorkerMetrics
from .runner import ModelRunner


class NeuronWorker(WorkerBase):
    """One rank. Methods are vLLM's, in the order in which it calls them."""

    _ranks: RankGroup | None = None

    def init_device(self) -> None:
        """Open the device and check that it can run the bundle. Raises IncompatibleArtifactError."""
        self._phases = {}
        with self._phase("resolve"):
            self._bundle = active_bundle()
        manifest = self._bundle.manifest
        if manifest.world_size > 1:
            with self._phase("meet"):
                self._meet()
        with self._phase("device"):
            self._device = devices.open_device(manifest.target, self._place())
            self._device.check(manifest.requires)
        self._metrics = WorkerMetrics(manifest, model_name=self.model_config.served_model_name, rank=self.rank)
        self.device = torch.device("cpu")
        if parent_process() is not None and not read_settings().threads_chosen:
            # In the worker torch only samples, small work for which threads that meet at barriers are slower, and
            # far slower where the device's own threads want the cores. vLLM does the same for several workers.
            torch.set_num_threads(1)
        torch.manual_seed(self.model_config.seed)  # what requests without a seed of their own draw from

    def load_model(self, *, load_dummy_weights: bool = False) -> None:
        """Load the first programs, then the weights. The frontend has verified every artifact; see platform.py.

        Raises IntegrityError, NotFoundError, DeviceError, CheckpointError.
        """
        manifest = self._bundle.manifest
        programs = first_needed(manifest)
        self._loader = ProgramLoader(programs, load=self._load_program, warm=self._warm_program)
        with self._phase("load programs"):
            for phase in ("prefill", "decode"):  # the smallest of each
                self._loader.require(next(program.name for program in programs if program.phase == phase))
        with self._phase("weights"):
            report = load_weights(
                manifest,
                self._checkpoint(),
                rank=self.rank,
                put=self._device.put_param,
                keeps_params=self._device.keeps_params,
                progress=WeightProgress(self.rank),
            )
        self._metrics.weights_loaded(report.seconds, report.nbytes)

    def get_kv_cache_spec(self) -> dict[str, KVCacheSpec]:
        """The bundle's paged cache, one entry per layer."""
        cache = self._bundle.manifest.kv_cache
        spec = FullAttentionSpec(
            block_size=cache.block_size,
            num_kv_heads=cache.num_kv_heads,
            head_size=cache.head_size,
            dtype=getattr(torch, cache.dtype),
        )
        return {f"layers.{layer}": spec for layer in range(cache.num_layers)}

    def get_supported_kv_cache_layouts(self) -> list[str]:
        """Layers apart, then blocks, heads, tokens: the shape of the state tensors."""
        return ["LBHNC"]

    def determine_available_memory(self) -> int:
        """Exactly the cache that the programs were compiled for: nothing is profiled."""
        return self._bundle.manifest.kv_cache.num_blocks * sum(
            spec.page_size_bytes for spec in self.get_kv_cache_spec().values()
        )

    def initialize_from_config(self, kv_cache_config: KVCacheConfig) -> None:
        """Allocate the KV cache and build the runner."""
        manifest = self._bundle.manifest
        if kv_cache_config.num_blocks != manifest.kv_cache.num_blocks:
            raise ConfigError(
                "vLLM sized the KV cache differently from the bundle",
                wanted=f"{manifest.kv_cache.num_blocks} blocks",
                found=f"{kv_cache_config.num_blocks} blocks",
            )
        with self._phase("kv cache"):
            self._device.allocate_states(manifest.states)
        self.model_runner = ModelRunner(self.vllm_config, manifest, self._device, self._metrics, self._loader)

    def compile_or_warm_up_model(self) -> CompilationTimes:
        """Nothing to compile: gets the other programs ready, now or (see ``Device``) while serving, and says where the
        time went."""
        start, count = time.perf_counter(), len(self._bundle.manifest.programs)
        if self._device.loads_while_serving and self._bundle.manifest.world_size == 1:
            self._loader.start(
                lambda: logger.info("all %d programs are loaded and warm (%.1f s)", count, time.perf_counter() - start)
            )
        else:
            with self._phase("load and warm programs"):
                self._loader.finish()  # ranks execute collectives in step, so not each when it happens to be idle
        phases = ", ".join(f"{name} {seconds:.2f}" for name, seconds in self._phases.items())
        logger.info("rank %d is ready (%s s): %s", self.rank, phases, self._bundle.reference)
        return CompilationTimes(language_model=0.0, encoder=0.0)

    def get_supported_tasks(self) -> tuple[str, ...]:
        return ("generate",)

    # Steps

    def execute_model(self, scheduler_output: SchedulerOutput) -> ModelRunnerOutput | None:
        """Run a step's programs; None when sample_tokens must follow."""
        return self.model_runner.execute(scheduler_output)

    def sample_tokens(self, grammar_output: GrammarOutput | None) -> ModelRunnerOutput:
        """Sample the step that execute_model ran."""
        return self.model_runner.sample(grammar_output)

    # Administration

    def synchronize_device(self) -> None:
        """Steps are finished when execute_model returns."""

    def list_loras(self) -> set[int]:
        return set()

    def shutdown(self) -> None:
        """Release the device."""
        if (loader := self.__dict__.pop("_loader", None)) is not None:
            loader.stop()
        if (device := self.__dict__.pop("_device", None)) is not None:
            device.close()
        if self._ranks is not None:
            self._ranks.close()

    def _meet(self) -> None:
        """Find the other ranks, see that all are of one kind, and end with them from now on.

        Raises DeviceError naming ranks that do not come, IncompatibleArtifactError naming those that differ.
        """
        timeout = self.parallel_config.distributed_timeout_seconds
        self._ranks = meet(self.distributed_init_method, self.rank, self._bundle.manifest.world_size, timeout=timeout)
        self._ranks.watch(lambda text: logger.error("%s", text))
        self._ranks.agree(kind_of_rank(self._bundle))

    def _place(self) -> devices.Place:
        given = self.parallel_config.assigned_physical_gpu_ids  # this replica's cores, when there are several
        return devices.Place(
            rank=self.rank,
            world_size=self._bundle.manifest.world_size,
            core=given[self.local_rank] if given else None,
            ranks=self._ranks,
            replica=self.parallel_config.data_parallel_index,
        )

    def _load_program(self, program: Program) -> None:
        start = time.perf_counter()
        # Verified again, however little time went by: what is loaded is what was hashed.
        self._device.load(self._bundle.manifest, program, self._bundle.artifact_path(program))
        self._metrics.program_loaded(program.name, time.perf_counter() - start)

    def _warm_program(self, program: Program) -> None:
        self._device.execute(program.name, padding_inputs(program))

    def _checkpoint(self) -> Path:
        model = self.model_config
        if Path(model.model).is_dir():
            return Path(model.model)
        from huggingface_hub import snapshot_download

        return Path(
            snapshot_download(
                model.model,
                revision=model.revision,
                cache_dir=self.load_config.download_dir,
                allow_patterns=["*.safetensors", "*.safetensors.index.json"],
            )
        )

    @contextmanager
    def _phase(self, name: str):
        start = time.perf_counter()
        try:
            yield
        except NeuronAotError as error:
            # vLLM ends the frontend with a message that only points here: make here readable.
            logger.error("%s", error)
            raise
        finally:
            self._phases[name] = self._phases.get(name, 0.0) + time.perf_counter() - start


class WeightProgress:
    """Logs how far a rank's weights are, every few seconds: nothing where they load at once."""

    _EVERY = 5.0  # seconds

    def __init__(self, rank: int) -> None:
        self._rank, self._last = rank, time.monotonic()

    def __call__(self, done: int, total: int) -> None:
        if (now := time.monotonic()) - self._last >= self._EVERY:
            self._last = now
            logger.info("rank %d: %.1f of %.1f GB of weights", self._rank, done / 1e9, total / 1e9)
