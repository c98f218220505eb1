"""What a model family offers. A family is one module with these names, and one row in the registry."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Protocol

from neuron_aot_runtime.contract.facts import Fact

from ..program import ModelLayout, ProgramPlan, ModelPlan


class Family(Protocol):
    """The module-level names of a model family.

    ``FACTS``     the config.json fields that decide what is computed (declared, without values)
    ``layout``    ModelPlan -> ModelLayout: params, states, weight map and KV cache, without building anything
    ``programs``  ProgramPlan -> (function, inputs, outputs): the pure PyTorch function to lower, whose arguments
                  are (params: dict name -> tensor, states: dict name -> tensor, inputs: dict name -> tensor) and
                  whose result is (outputs: dict, states: dict)
    Each raises RecipeError for a configuration that it cannot compute exactly.
    """

    FACTS: tuple[Fact, ...]

    def layout(self, plan: ModelPlan) -> ModelLayout: ...

    def program(self, plan: ProgramPlan) -> tuple[Callable, tuple, tuple]: ...


Config = Mapping
