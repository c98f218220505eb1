"""Why a store misses: the nearest bundle, the fields that differ, and what building the rest takes."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from neuron_aot_runtime.contract.errors import UsageError
from neuron_aot_runtime.contract.manifest import Bucket, Manifest
from neuron_aot_runtime.store import Bundle, open_bundle, parse_reference
from neuron_aot_runtime.vllm.building import build_command
from neuron_aot_runtime.vllm.check import COMPARED
from neuron_aot_runtime.vllm.making import Making, making

from . import keys
from .coverage import Asked, Coverage, nearest_coverage
from .recipe import Recipe, load_recipe
from .targets import CPU
from .user_command import find_model_config, parse_command, read_model_config


@dataclass(frozen=True, kw_only=True)
class Explanation:
    """``built_with``: (library, here, the bundle's) that differ: a compile makes those programs again.

    ``making``: what the missing programs take; None when none is missing.
    """

    coverage: Coverage
    built_with: tuple[tuple[str, str, str | None], ...]
    making: Making | None
    next_command: str


def explain(reference: str, wanted: Sequence[str], *, model_config: Path | None = None) -> Explanation:
    """Explain how the nearest bundle of ``reference`` differs from what is ``wanted``.

    That is a recipe's path, another bundle's reference, or a ``vllm serve`` command in words. Raises UsageError,
    RecipeError, StoreError.
    """
    store = parse_reference(reference).store
    asked, build = _asked(wanted, store, model_config)
    found = nearest_coverage(reference, asked)
    missing = [(item.phase, Bucket(size=item.size, context=item.context)) for item in found.missing]
    return Explanation(
        coverage=found,
        built_with=_built_with(found.bundle.manifest) if build else (),
        making=making(found.bundle, missing) if missing else None,
        next_command=build(found.bundle) if build else f"neuron-aot show {wanted[0]}",
    )


def _asked(
    wanted: Sequence[str], store: str, model_config: Path | None
) -> tuple[Asked, Callable[[Bundle], str] | None]:
    """What is asked for, and from the nearest bundle the command that builds it; None for a bundle, which is built."""
    if not wanted:
        raise UsageError("say what is wanted", wanted="a RECIPE, STORE@REF, or after -- a vllm serve command")
    if len(wanted) > 1:
        user = parse_command(wanted)
        config = read_model_config(find_model_config(user, model_config))
        build = partial(build_command, words=wanted, model_config=model_config and str(model_config))
        return Asked(config=config, engine=user.engine, additional_config=user.additional_config), build
    (name,) = wanted
    if Path(name).suffix in (".yaml", ".yml") or Path(name).is_file():
        build = shlex.join(["neuron-aot", "compile", name, "--store", store])
        return asked_by_recipe(load_recipe(Path(name))), lambda bundle: build
    return asked_by_manifest(open_bundle(name).manifest), None


def asked_by_recipe(recipe: Recipe) -> Asked:
    """What serving a recipe's own configuration asks for."""
    serving = recipe.serving.as_manifest_serving()
    engine = {name: serving.engine.get(name) for name in COMPARED}
    if recipe.target != CPU and not recipe.blocks_given:
        engine["num_gpu_blocks_override"] = None  # a compile sizes the cache by the device's memory
    return Asked(
        config=recipe.model_config,
        engine=engine,
        additional_config={"neuron_config": serving.neuron_config},
        target=recipe.target,
    )


def asked_by_manifest(manifest: Manifest) -> Asked:
    """What serving a bundle's own configuration asks for."""
    config: dict[str, Any] = {"architectures": [manifest.model.architecture]}
    for fact in manifest.model.facts:
        place, *_ = fact.sources
        *parents, last = place.split(".")
        inner = config
        for parent in parents:
            inner = inner.setdefault(parent, {})
        if fact.value is not None:
            inner[last] = fact.value
    return Asked(
        config=config,
        engine={name: manifest.serving.engine.get(name) for name in COMPARED},
        additional_config={"neuron_config": manifest.serving.neuron_config},
        target=manifest.target,
    )


def _built_with(manifest: Manifest) -> tuple[tuple[str, str, str | None], ...]:
    held: Mapping[str, str] = manifest.toolchain
    return tuple(
        (name, here, held.get(name)) for name, here in keys.library_versions().items() if held.get(name) != here
    )
