"""The recipe: a YAML file that says what to compile. Strict: every problem is listed, with the nearest valid name.

    model: ../models/SmolLM2-135M-Instruct   # a directory with a config.json, or that file; relative to the recipe
    engine:                                  # vLLM's engine arguments, under vLLM's names
      max_model_len: 2048
      max_num_seqs: 8
    neuron_config:                           # as in vLLM's --additional-config '{"neuron_config": …}'
      decode_context_length_buckets: [512, 1024]
    compile:
      target: trn2                           # cpu unless said
      lnc: 2                                 # logical core size; the target's default unless said
      compiler_flags: [--optlevel, "1"]      # or one string; beside them NEURON_CC_FLAGS counts

Of the model only ``config.json`` is read, never weights. ``engine``, ``neuron_config`` and ``compile`` may be left
out; defaults and rules are those of ``neuron_aot_runtime.contract.serving``.
"""

from __future__ import annotations

import difflib
import json
import shlex
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml
from neuron_aot_runtime.contract.errors import ConfigError, RecipeError
from neuron_aot_runtime.contract.fields import check_keys
from neuron_aot_runtime.contract.serving import ServingConfig, resolve_serving

from .targets import CompileOptions

DEFAULT_TARGET = "cpu"


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """A recipe whose every rule holds. ``model_config`` is the raw ``config.json`` of ``model``.

    ``blocks_given``: the recipe itself sets num_gpu_blocks_override, rather than leaving it to a default.
    """

    path: Path
    model: Path
    architecture: str
    model_config: Mapping[str, Any]
    serving: ServingConfig
    target: str
    options: CompileOptions = field(default_factory=CompileOptions)
    blocks_given: bool = True


def load_recipe(
    path: Path,
    *,
    target: str | None = None,
    lnc: int | None = None,
    engine: Mapping[str, Any] | None = None,
    without: Collection[str] = (),
) -> Recipe:
    """Read, check and resolve a recipe. Raises RecipeError listing every problem.

    ``target``, ``lnc`` and ``engine`` override the recipe's own; the options ``without`` of neuron_config take their
    defaults.
    """
    document = dict(read_document(path))
    if engine and isinstance(document.get("engine") or {}, Mapping):
        document["engine"] = {**(document.get("engine") or {}), **engine}
    if without and isinstance(document.get("neuron_config"), Mapping):
        kept = {name: value for name, value in document["neuron_config"].items() if name not in without}
        document["neuron_config"] = kept
    return resolve_recipe(document, path, target=target, lnc=lnc)


def resolve_recipe(
    document: Mapping[str, Any], path: Path, *, target: str | None = None, lnc: int | None = None
) -> Recipe:
    """Check and resolve a recipe's document; ``path`` names it, and its model is relative to it. Raises RecipeError."""
    problems = check_keys(document, "recipe")
    sections = {name: _section(document, name, problems) for name in ("engine", "neuron_config", "compile")}
    problems += check_keys(sections["compile"], "compile")
    target = target or sections["compile"].get("target") or DEFAULT_TARGET
    if not isinstance(target, str):
        problems.append(f"compile.target: wanted a word like cpu or trn2, found {target!r}")
    options = _options(sections["compile"], lnc, problems)

    model, model_config = _model(path, document.get("model"), problems)
    architecture = _architecture(model_config, problems)
    serving = None
    try:
        serving = resolve_serving(sections["engine"], sections["neuron_config"], model_config=model_config or _UNKNOWN)
    except ConfigError as error:
        problems += error.details
    if problems or serving is None:
        count = len(problems)
        raise RecipeError(
            f"{path}: {count} problem{'s' if count != 1 else ''}",
            details=problems,
            next_command="correct these keys and run the same command again",
        )
    return Recipe(
        path=path,
        model=model,
        architecture=architecture,
        model_config=model_config,
        serving=serving,
        target=target,
        options=options,
        blocks_given=sections["engine"].get("num_gpu_blocks_override") is not None,
    )


# Stands in for a config.json that could not be read, so that the other rules are still checked.
_UNKNOWN = {"dtype": "bfloat16", "max_position_embeddings": 1 << 24}


def _section(document: Mapping, name: str, problems: list[str]) -> Mapping[str, Any]:
    value = document.get(name)
    if value is None:
        return {}
    if not isinstance(value, Mapping):
        problems.append(f"{name}: wanted a mapping of options, found {value!r}")
        return {}
    return value


def _options(section: Mapping, lnc: int | None, problems: list[str]) -> CompileOptions:
    size, flags = lnc or section.get("lnc"), section.get("compiler_flags") or ()
    if size is not None and (isinstance(size, bool) or size not in (1, 2)):
        problems.append(f"compile.lnc: wanted 1 or 2, found {size!r}")
    if isinstance(flags, str):
        try:
            flags = shlex.split(flags)
        except ValueError as error:
            problems.append(f"compile.compiler_flags: cannot be split into words: {error}")
            flags = ()
    if not isinstance(flags, (list, tuple)) or not all(isinstance(word, (str, int)) for word in flags):
        problems.append(f"compile.compiler_flags: wanted a string or a list of words, found {flags!r}")
        flags = ()
    return CompileOptions(lnc=size, flags=tuple(map(str, flags)))


def _model(recipe: Path, value: Any, problems: list[str]) -> tuple[Path, dict | None]:
    if not isinstance(value, str) or not value:
        found = "nothing" if value is None else repr(value)
        problems.append(f"model: wanted the path of a directory with a config.json, found {found}")
        return recipe, None
    model = recipe.parent / Path(value).expanduser()
    config = model / "config.json" if model.is_dir() else model
    try:
        parsed = json.loads(config.read_bytes())
    except FileNotFoundError:
        hint = "" if model.is_dir() or value.startswith((".", "/", "~")) else "; model hubs are not read, give a path"
        problems.append(f"model: {config} does not exist (the path is relative to the recipe){hint}")
        return model, None
    except OSError as error:
        problems.append(f"model: cannot read {config}: {error.strerror}")
        return model, None
    except ValueError as error:
        problems.append(f"model: {config} is not JSON: {error}")
        return model, None
    if not isinstance(parsed, dict):
        problems.append(f"model: {config} holds no JSON object")
        return model, None
    return model.resolve(), parsed


def _architecture(model_config: Mapping | None, problems: list[str]) -> str:
    names = (model_config or {}).get("architectures")
    if isinstance(names, list) and len(names) == 1 and isinstance(names[0], str):
        return names[0]
    if model_config is not None:
        problems.append(f"model: config.json must name exactly one architecture, found {names!r}")
    return ""


class _Loader(yaml.SafeLoader):
    """Refuses a key that a mapping has twice: YAML would keep the last one in silence."""

    def construct_mapping(self, node, deep=False):
        lines: dict[str, int] = {}
        for key_node, _ in node.value:
            if key_node.tag == "tag:yaml.org,2002:merge":
                continue
            if not isinstance(key_node, yaml.ScalarNode):
                raise yaml.constructor.ConstructorError(None, None, "a key must be a word", key_node.start_mark)
            line = key_node.start_mark.line + 1
            if key_node.value in lines:
                problem = f"the key {key_node.value!r} is there already, on line {lines[key_node.value]}"
                raise yaml.constructor.ConstructorError(None, None, problem, key_node.start_mark)
            lines[key_node.value] = line
        return super().construct_mapping(node, deep)


def read_document(path: Path) -> Mapping[str, Any]:
    """A recipe's YAML as it stands, unchecked. Raises RecipeError when it is no YAML mapping."""
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise RecipeError(f"there is no recipe at {path}", next_command=_nearest_recipe(path)) from None
    except UnicodeDecodeError as error:
        raise RecipeError(f"{path} is not a recipe: it is not UTF-8 text", found=str(error)) from None
    except OSError as error:
        raise RecipeError(f"cannot read the recipe {path}: {error.strerror}") from None
    try:
        document = yaml.load(text, Loader=_Loader)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        where = f"line {mark.line + 1}, column {mark.column + 1}" if mark else "unknown place"
        raise RecipeError(f"{path}, {where}: {error.problem or error.context}") from None
    except yaml.YAMLError as error:
        raise RecipeError(f"{path} is not YAML: {error}") from None
    if not isinstance(document, Mapping):
        found = "an empty file" if document is None else type(document).__name__
        raise RecipeError(f"{path} is not a recipe", wanted="a mapping with the key model", found=found)
    return document


def _nearest_recipe(path: Path) -> str | None:
    try:
        names = [item.name for item in path.parent.iterdir() if item.suffix in (".yaml", ".yml")]
    except OSError:
        return f"check the directory: {path.parent} cannot be listed"
    close = difflib.get_close_matches(path.name, names, n=1, cutoff=0.3)
    return f"did you mean {path.parent / close[0]}?" if close else f"there is no recipe in {path.parent}" * (not names)
