"""A recipe as a command sees it: its options and the environment's settings applied."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from ..command_recipe import recipe_from_command
from ..recipe import Recipe, load_recipe
from ..settings import read_settings


def command_recipe(
    path: Path | None,
    *,
    command: str | None = None,
    target: str | None = None,
    lnc: int | None = None,
    model_config: Path | None = None,
) -> Recipe:
    """The recipe at ``path``, or of a user's ``vllm serve`` command that starts from it.

    For ``--target``, else NEURON_PLATFORM_TARGET_OVERRIDE, else its own target. Raises UsageError, ConfigError,
    RecipeError.
    """
    settings = read_settings()
    target = target or settings.target
    if command is None:
        recipe = load_recipe(path, target=target, lnc=lnc)
    else:
        recipe = recipe_from_command(command, base=path, target=target, lnc=lnc, model_config=model_config)
    return replace(recipe, options=replace(recipe.options, timeout=settings.timeout))
