"""A recipe out of a user's own ``vllm serve`` command."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from pathlib import Path

from neuron_aot_runtime.contract.errors import ConfigError, UsageError
from neuron_aot_runtime.contract.fields import check_additional_config

from .recipe import Recipe, read_document, resolve_recipe
from .user_command import find_model_config, parse_command


def recipe_from_command(
    command: str,
    *,
    base: Path | None = None,
    target: str | None = None,
    lnc: int | None = None,
    model_config: Path | None = None,
) -> Recipe:
    """The recipe that compiles what ``command`` serves; what it leaves open comes from the recipe ``base``, if any.

    The model is the command's: of it only config.json is read, ``model_config`` where that is given. Raises UsageError,
    ConfigError, RecipeError.
    """
    try:
        words = shlex.split(command)
    except ValueError as error:
        raise UsageError(f"the command cannot be split into words: {error}", found=command) from error
    user = parse_command(words)
    neuron = user.additional_config.get("neuron_config") or {}
    problems = check_additional_config(user.additional_config)
    if not isinstance(neuron, Mapping):
        problems.append(f"additional_config.neuron_config: wanted a mapping of options, found {neuron!r}")
    if problems:
        raise ConfigError("the command's --additional-config cannot be served", details=problems)
    document = dict(read_document(base)) if base else {}
    engine = {name: value for name, value in user.engine.items() if value is not None}
    for section, options in (("engine", engine), ("neuron_config", neuron)):
        own = document.get(section)
        document[section] = {**own, **options} if isinstance(own, Mapping) else options if own is None else own
    # A config.json's directory is what `serve` finds the checkpoint by.
    document["model"] = str(find_model_config(user, model_config).parent)
    return resolve_recipe(document, base or Path("the command"), target=target, lnc=lnc)
