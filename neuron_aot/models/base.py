"""What a model family offers. A family is one module with these names, and one row in the registry."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from neuron_aot_runtime.contract.facts import Fact
from neuron_aot_runtime.contract.manifest import TensorSpec

from ..program import ModelLayout, ModelPlan, ProgramPlan


class Family(Protocol):
    """The module-level names of a family. ``FACTS`` and ``layout`` need no torch; all raise RecipeError for a
    configuration that the family cannot compute exactly."""

    FACTS: tuple[Fact, ...]
    """The config.json fields that decide what is computed (declared, without values)."""

    def layout(self, plan: ModelPlan) -> ModelLayout:
        """Params, states, weight map and KV cache, without building anything."""

    def program(self, plan: ProgramPlan) -> tuple[Callable, tuple[TensorSpec, ...], tuple[TensorSpec, ...]]:
        """(function, inputs, outputs).

        The function, named ``forward`` (errors then name its lines), is pure PyTorch with static shapes: (params, states, inputs), each a dict of tensors by name,
        to (outputs, states), dicts by name again. State tensors have the cache's logical dtype here.
        """
