"""vLLM's entry points. Both are called several times in every process, very early: they import nothing heavy."""

from __future__ import annotations

import logging

from ..settings import read_settings, set_vllm_defaults


def platform_plugin() -> str | None:
    """The platform's class path when NEURON_COMPILED_ARTIFACTS names a bundle, else None.

    vLLM takes an exception here for "not available" and would serve on its CPU platform, so nothing here raises.
    """
    settings = read_settings()
    if settings.artifacts is None:
        return None
    set_vllm_defaults()
    logging.getLogger("vllm.neuron_aot").setLevel(getattr(logging, settings.log_level, logging.INFO))
    return "neuron_aot_runtime.vllm.platform.NeuronPlatform"


def general_plugin() -> None:
    """Make vLLM accept the bundle's architecture, and leave quietly on a host without a GPU."""
    if read_settings().artifacts is None:
        return
    from ..contract.errors import NeuronAotError
    from .active import active_bundle

    _quiet_accelerator_cleanup()
    try:
        architecture = active_bundle().manifest.model.architecture
    except NeuronAotError:
        return  # the platform reports it, with everything else that is wrong
    from vllm import ModelRegistry

    from .stub import StubModel

    # vLLM looks into an architecture's class in a subprocess that imports vLLM and the model: 7 s, for properties
    # that the bundle has decided.
    ModelRegistry.register_model(architecture, StubModel)


def _quiet_accelerator_cleanup() -> None:
    """Make torch.accelerator's cache functions do nothing on a build without an accelerator.

    When an engine shuts down, vLLM calls them for every platform but its own CPU platform
    (distributed/parallel_state.py, cleanup_dist_env_and_memory), and torch raises there. vLLM replaces them for its
    CPU worker in the same way (v1/worker/cpu/shm.py). There is no cache, so nothing is lost.
    """
    import torch

    if not torch.accelerator.is_available():
        torch.accelerator.empty_cache = _nothing
        torch.accelerator.empty_host_cache = _nothing


def _nothing(*args, **kwargs) -> None:
    pass
