"""Preflight of a recipe: every program lowered and checked against the Neuron compiler's documented rules, and against
the installed compiler's own list of operators where there is one."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from neuron_aot_runtime.contract.errors import NeuronAotError

from .make import Toolchain
from .pipeline import plan_shapes
from .program import ProgramPlan
from .recipe import Recipe
from .schedule.local import Finished, run_tasks
from .targets import neuron_target

if TYPE_CHECKING:
    from .lower.preflight import Violation


def preflight_recipe(
    recipe: Recipe, toolchain: Toolchain, *, jobs: int, unlisted: frozenset[str] = frozenset()
) -> Iterator[tuple[str, list[Violation], NeuronAotError | None]]:
    """(program, violations, why it could not be checked or None) of every program, as they are done.

    Neither a compiler nor a store is needed, and the model may be larger than the device. ``unlisted``: see
    ``unlisted_operators``. Raises RecipeError, UsageError.
    """
    neuron_target(recipe.target)
    programs = plan_shapes(recipe, toolchain, check_memory=False).grid.programs
    tasks = [(check_program, (program, toolchain, unlisted)) for program in programs]
    for event in run_tasks(tasks, jobs=jobs):
        if isinstance(event, Finished):
            yield programs[event.index].name, event.value or [], event.error


def unlisted_operators(recipe: Recipe) -> frozenset[str]:
    """The documented operators, as opcodes, that the installed compiler does not list.

    Raises CompileError when there is no compiler or it tells no list, UsageError for a target that is not Neuron.
    """
    from .codegen.compiler_list import listed_operators
    from .lower.preflight import unlisted

    neuron_target(recipe.target)
    return unlisted(listed_operators())


def check_program(plan: ProgramPlan, toolchain: Toolchain, unlisted: frozenset[str], note: Callable) -> list[Violation]:
    """One program, in a worker. Raises RecipeError, LoweringError."""
    return toolchain.preflight(plan, unlisted=unlisted)
