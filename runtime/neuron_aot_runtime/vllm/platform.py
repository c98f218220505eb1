"""vLLM's platform for bundles: takes engine defaults from the bundle, checks everything else against it, refuses.

All of it runs in the frontend process, before an engine, a worker, a device or a weight is touched.
"""

from __future__ import annotations

import atexit
import gc
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from vllm.platforms.interface import Platform, PlatformEnum

from .. import device as devices
from ..checkpoint import open_checkpoint
from ..contract.errors import ConfigError, NeuronAotError
from ..store import Bundle
from ..weights import check_checkpoint
from .active import CommandLine, active_bundle, logger
from .arguments import padded_heads, serving_arguments
from .building import build_command, can_be_built, serve_words
from .check import Comparison, Difference, compare, missing_programs
from .making import making
from .requests import refusal

if TYPE_CHECKING:
    from vllm.config import VllmConfig

#: [first, end): the plugin relies on internals that vLLM changes from one minor version to the next
SUPPORTED_VLLM = ((0, 32), (0, 33))

_WORKER = "neuron_aot_runtime.vllm.worker.NeuronWorker"
_SCHEDULER = "neuron_aot_runtime.vllm.scheduler.PhasedScheduler"


class NeuronPlatform(Platform):
    """A host that executes a bundle's programs; to vLLM's own tensors it is a CPU."""

    _enum = PlatformEnum.OOT
    device_name = "neuron_aot"
    device_type = "cpu"  # must be a torch device type; vLLM's side of every tensor lives on the host
    dispatch_key = "CPU"
    dist_backend = "gloo"
    device_control_env_var = "NEURON_RT_VISIBLE_CORES"
    # vLLM's sampling helpers are decorated with torch.compile; inductor would build C++ at the first request.
    simple_compile_backend = "eager"

    # Hooks in the order in which vLLM calls them

    @classmethod
    def pre_register_and_update(cls, parser=None) -> None:
        """With the command line's parser: the bundle's engine arguments become its defaults. Else: open the bundle.

        An error waits for the second call, so that ``--help`` works without a bundle.
        """
        if parser is not None:
            CommandLine.active = True
            try:
                parser.set_defaults(**serving_arguments(active_bundle().manifest))
            except NeuronAotError:
                logger.debug("no engine defaults from the bundle", exc_info=True)
            return
        try:
            _check_vllm_version()
            active_bundle()
        except NeuronAotError as error:
            CommandLine.fail(error)
        _freeze_imports()

    @property
    def supported_dtypes(self) -> list[torch.dtype]:
        """The bundle's dtype, which ``dtype="auto"`` therefore resolves to."""
        try:
            return [getattr(torch, active_bundle().manifest.serving.engine["dtype"])]
        except NeuronAotError:
            return super().supported_dtypes

    @classmethod
    def check_max_model_len(cls, max_model_len: int) -> int:
        """Called only when the user set none: the bundle's."""
        return min(max_model_len, active_bundle().manifest.serving.engine["max_model_len"])

    @classmethod
    def apply_config_platform_defaults(cls, vllm_config: VllmConfig) -> None:
        """Programs come compiled: vLLM must not trace, compile or capture anything."""
        from vllm.config import CompilationMode
        from vllm.config.vllm import OptimizationLevel

        vllm_config.optimization_level = OptimizationLevel.O0
        vllm_config.compilation_config.mode = CompilationMode.NONE

    @classmethod
    def check_and_update_config(cls, vllm_config: VllmConfig) -> None:
        """Fill what was left open from the bundle, then refuse whatever differs from it. Called more than once."""
        from vllm.config import CompilationMode, CUDAGraphMode

        compilation = vllm_config.compilation_config
        compilation.mode = CompilationMode.NONE
        compilation.cudagraph_mode = CUDAGraphMode.NONE
        compilation.cudagraph_capture_sizes = []
        compilation.max_cudagraph_capture_size = 0
        if vllm_config.model_config is None:
            return
        try:
            _take_open_choices(vllm_config)
            _refuse_differences(vllm_config)
        except NeuronAotError as error:
            CommandLine.fail(error)
        vllm_config.parallel_config.worker_cls = _WORKER
        vllm_config.scheduler_config.scheduler_cls = _SCHEDULER

    @classmethod
    def validate_request(cls, processed_inputs: Any, params: Any) -> None:
        """Refuse, as the client's error, a request that no program can serve. Raises VLLMValidationError."""
        greedy = active_bundle().manifest.serving.neuron_config.get("on_device_sampling_config") is not None
        kind = processed_inputs.get("type") if isinstance(processed_inputs, dict) else None
        if (problem := refusal(params, prompt_kind=kind, greedy=greedy)) is not None:
            from vllm.exceptions import VLLMValidationError

            message, parameter = problem
            raise VLLMValidationError(message, parameter=parameter)

    # Facts about the host

    @classmethod
    def get_device_name(cls, device_id: int = 0) -> str:
        return cls.device_name

    @classmethod
    def get_device_capability(cls, device_id: int = 0) -> None:
        return None

    @classmethod
    def get_device_total_memory(cls, device_id: int = 0) -> int:
        return 0  # only scales vLLM's defaults, which the bundle replaces

    @classmethod
    def device_id_to_physical_device_id(cls, device_id: int) -> int:
        """The core of a host's ``device_id``-th rank, over all replicas: vLLM cannot read ranges such as 0-3."""
        return devices.core_of(active_bundle().manifest.target, device_id)

    @classmethod
    def is_pin_memory_available(cls) -> bool:
        return False

    @classmethod
    def set_device(cls, device: torch.device | None) -> None:
        """Nothing to select: vLLM calls it from its output thread, where the default would hang the server."""

    @classmethod
    def discover_numa_topology(cls) -> list[list[int]]:
        return []  # asked for because device_type is "cpu"; no CPU affinity is set

    @classmethod
    def import_ir_kernels(cls) -> None:
        """vLLM's own kernels are never run."""

    @classmethod
    def import_kernels(cls) -> None:
        """vLLM's own kernels are never run."""


def _freeze_imports() -> None:
    """All of vLLM is imported by now: collections during start-up (one is explicit, in the engine) need not walk it.

    Saves 0.6 s. At exit it is undone, or extension modules report their types as leaked.
    """
    gc.freeze()
    atexit.unregister(gc.unfreeze)
    atexit.register(gc.unfreeze)


def _check_vllm_version() -> None:
    from vllm.version import __version__, __version_tuple__

    first, end = SUPPORTED_VLLM
    if not first <= tuple(__version_tuple__[:2]) < end:
        raise ConfigError(
            "this neuron-aot-runtime does not know this version of vLLM",
            wanted=f"vLLM >= {'.'.join(map(str, first))}, < {'.'.join(map(str, end))}",
            found=f"vLLM {__version__}",
            next_command="install a vLLM in that range, or the neuron-aot-runtime made for this one",
        )


def _take_open_choices(vllm_config: VllmConfig) -> None:
    engine = active_bundle().manifest.serving.engine
    cache, scheduler = vllm_config.cache_config, vllm_config.scheduler_config
    if not cache.user_specified_block_size:
        cache.block_size = engine["block_size"]
    if cache.num_gpu_blocks_override is None:
        cache.num_gpu_blocks_override = engine["num_gpu_blocks_override"]
    if scheduler.async_scheduling and not CommandLine.active:
        # vLLM has turned None into True before it asks us. On the command line the default is False (see
        # serving_arguments), so there True is the user's.
        logger.info("async scheduling is not supported yet: off")
        scheduler.async_scheduling = False


def _refuse_differences(vllm_config: VllmConfig) -> None:
    from .asked import asked_engine, served_config

    bundle = active_bundle()
    engine = asked_engine(vllm_config)
    if engine["hf_overrides"] == padded_heads(bundle.manifest):
        del engine["hf_overrides"]  # ours: it replaces nothing that a program was made from
    result = compare(
        bundle.manifest,
        config=served_config(vllm_config),
        engine=engine,
        additional_config=vllm_config.additional_config or {},
    )
    result = replace(result, differences=(*result.differences, *_unsupported(vllm_config)))
    missing = missing_programs(bundle.manifest, result.serving) if result.serving else []
    result.raise_if_any(
        reference=str(bundle.reference),
        next_command=_next_command(bundle, vllm_config.model_config.model, result),
        making=str(making(bundle, missing)) if missing else None,
    )
    _verify_inputs(vllm_config.model_config.model)


@cache
def _verify_inputs(model: str) -> None:
    """Check what the engine is going to load: artifacts by digest, the host, the checkpoint's headers.

    The worker would find the same, but behind vLLM's traceback and exit code. Cached: vLLM asks more than once.
    """
    bundle = active_bundle()
    for program in bundle.manifest.programs:
        bundle.artifact_path(program)
    devices.open_device(bundle.manifest.target).check(bundle.manifest.requires)
    directory = Path(model)
    if directory.is_dir():
        check_checkpoint(bundle.manifest, open_checkpoint(directory), where=model)


def _unsupported(vllm_config: VllmConfig) -> list[Difference]:
    """What this plugin, rather than a bundle, does not offer."""
    found = []
    if vllm_config.scheduler_config.async_scheduling:
        found.append(Difference("async_scheduling", True, False, "async_scheduling: not supported yet; leave it out"))
    if vllm_config.use_v2_model_runner:
        text = "VLLM_USE_V2_MODEL_RUNNER: only 0 is supported; leave it unset"
        found.append(Difference("VLLM_USE_V2_MODEL_RUNNER", 1, 0, text))
    classes = {
        "worker_cls": (vllm_config.parallel_config.worker_cls, _WORKER),
        "scheduler_cls": (vllm_config.scheduler_config.scheduler_cls, _SCHEDULER),
    }
    for name, (wanted, ours) in classes.items():
        if wanted not in (None, "auto", ours):
            text = f"{name}: the plugin brings its own; leave it out"
            found.append(Difference(name, str(wanted), ours, text))
    return found


def _next_command(bundle: Bundle, model: str, result: Comparison) -> str:
    use = (
        "leave the options out" if CommandLine.active else "pass LLM(**neuron_aot_runtime.vllm.engine_args(reference))"
    )
    use += " to serve what the bundle holds"
    if result.misuse or result.serving is None or not can_be_built(result.differences):
        return use
    return f"{build_command(bundle, serve_words(model, result.serving, bundle.manifest))}   or {use}"
