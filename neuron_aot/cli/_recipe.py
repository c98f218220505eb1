"""A recipe as a command sees it: its options and the environment's settings applied."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from ..recipe import Recipe, load_recipe
from ..settings import read_settings


def command_recipe(path: Path, *, target: str | None, lnc: int | None) -> Recipe:
    """The recipe for ``--target``, else NEURON_PLATFORM_TARGET_OVERRIDE, else its own target. Raises UsageError."""
    settings = read_settings()
    recipe = load_recipe(path, target=target or settings.target, lnc=lnc)
    return replace(recipe, options=replace(recipe.options, timeout=settings.timeout))
