"""The command that compiles what was asked for: the same in a server's error and in ``neuron-aot explain``."""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from ..contract.buckets import round_up
from ..contract.layout import is_bundle_id
from ..contract.manifest import Manifest
from ..contract.serving import ServingConfig
from ..store import Bundle
from .check import COMPARED, Difference

_FIELDS = frozenset({*COMPARED, "architecture"} - {"kv_cache_dtype"})  # which has a single value so far
_KINDS = ("program ", "neuron_config.", "config.json ")


def build_command(bundle: Bundle, words: Sequence[str], *, model_config: str | None = None) -> str:
    """For ``bundle``'s store, target and ref. ``words``: a vllm serve command; ``model_config``: where its model's
    config.json is."""
    manifest, name = bundle.manifest, bundle.reference.name
    options = {
        "--store": bundle.store_root,
        "--target": manifest.target,
        "--lnc": manifest.requires.get("logical_core_size"),
        "--ref": name if name is not None and not is_bundle_id(name) else None,
        "--model-config": model_config,
    }
    given = [word for option, value in options.items() if value is not None for word in (option, str(value))]
    return f"neuron-aot compile {shlex.join(given)} --from-command {_quoted(shlex.join(words))}"


def serve_words(model: str, serving: ServingConfig, manifest: Manifest) -> list[str]:
    """The vllm serve command that asks for ``serving``, less what follows from the rest as it did in ``manifest``."""
    asked = serving.as_manifest_serving()
    words = ["vllm", "serve", model]
    for name in COMPARED:
        value = asked.engine.get(name)
        if value in (None, "auto") or (name == "num_gpu_blocks_override" and _follows(value, manifest)):
            continue
        words += [f"--{name.replace('_', '-')}", str(value)]
    for name, value in _flat("--additional-config.neuron_config", asked.neuron_config):
        words += [name, json.dumps(value, separators=(",", ":"))]
    return words


def can_be_built(differences: Sequence[Difference]) -> bool:
    """Whether a compile makes them go away; else an option has to be left out."""
    return all(item.field in _FIELDS or item.field.startswith(_KINDS) for item in differences)


def _follows(num_blocks: int, manifest: Manifest) -> bool:
    """Whether the bundle's number of KV blocks was no choice: then that of a larger or smaller bundle is none either."""
    if num_blocks != manifest.kv_cache.num_blocks:
        return False
    if manifest.memory is not None:
        return manifest.memory.sized_by == "memory"
    engine = manifest.serving.engine
    one_sequence = round_up(engine["max_model_len"], engine["block_size"]) // engine["block_size"]
    return num_blocks == engine["max_num_seqs"] * one_sequence + 1


def _flat(name: str, value: Any) -> Iterator[tuple[str, Any]]:
    """Nested options as vLLM's dotted flags: no JSON objects inside two shells' quotes."""
    if isinstance(value, Mapping):
        for key, inner in value.items():
            yield from _flat(f"{name}.{key}", inner)
    elif value is not None:
        yield name, value


def _quoted(text: str) -> str:
    """In double quotes where those need no escapes: the text may hold single ones."""
    return shlex.quote(text) if set(text) & set('"$`\\!') else f'"{text}"'
