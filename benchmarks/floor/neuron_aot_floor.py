"""The floor: a vLLM platform whose worker does nothing and always answers with the same token.

What remains is vLLM itself, started with the same defaults as our plugin sets; no engine can be ready before it. It
is found through the metadata beside this file once the directory is on PYTHONPATH.
"""

from __future__ import annotations

TOKEN = 504  # "The" in SmolLM2's vocabulary


def platform_plugin() -> str:
    from neuron_aot_runtime.settings import set_vllm_defaults

    set_vllm_defaults()
    return "neuron_aot_floor_platform.FloorPlatform"


def general_plugin() -> None:
    from neuron_aot_runtime.vllm.plugin import _quiet_accelerator_cleanup
    from neuron_aot_runtime.vllm.stub import StubModel
    from vllm import ModelRegistry

    _quiet_accelerator_cleanup()
    ModelRegistry.register_model("LlamaForCausalLM", StubModel)
