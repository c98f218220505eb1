"""The model registry: architecture (as in config.json) -> module of its family, imported on demand."""

from __future__ import annotations

from importlib import import_module

from neuron_aot_runtime.contract.errors import RecipeError

from .base import Family

FAMILIES = {
    "LlamaForCausalLM": "llama",
}

__all__ = ["FAMILIES", "Family", "family"]


def family(architecture: str) -> Family:
    """The family that computes ``architecture``. Raises RecipeError for one that is not registered."""
    name = FAMILIES.get(architecture)
    if name is None:
        raise RecipeError(
            f"no model family computes {architecture!r}",
            wanted="one of " + ", ".join(sorted(FAMILIES)),
            found=architecture,
            next_command="choose a supported model, or add its family: one file in neuron_aot/models, one row here",
        )
    return import_module(f".{name}", __package__)
