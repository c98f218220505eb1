"""Compares what is asked for with what a bundle holds; plain data in, every difference out. Imports no vLLM."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ..contract.buckets import program_name
from ..contract.errors import BundleMissError, ConfigError
from ..contract.facts import compare_facts
from ..contract.fields import ENGINE, check_additional_config, check_engine_values
from ..contract.manifest import Bucket, Manifest
from ..contract.serving import ServingConfig, resolve_serving
from .making import nearest_program

#: engine arguments that programs depend on, other than the model
COMPARED = tuple(
    name for name, field in ENGINE.items() if field.kind == "key" and name not in ("model", "additional_config")
)


@dataclass(frozen=True)
class Difference:
    """``wanted`` is what was asked for, ``found`` what the bundle has; ``text`` says it in words where those do not."""

    field: str
    wanted: Any
    found: Any
    text: str | None = None

    def __str__(self) -> str:
        return self.text or f"{self.field}: wanted {self.wanted!r}, the bundle has {self.found!r}"


@dataclass(frozen=True)
class Comparison:
    """``misuse``: lines about options that are unknown, misplaced or break a rule, whatever the bundle.

    ``serving``: the configuration asked for, resolved; None when it breaks a rule.
    """

    misuse: tuple[str, ...]
    differences: tuple[Difference, ...]
    serving: ServingConfig | None = None

    def raise_if_any(self, *, reference: str, next_command: str, making: str | None = None) -> None:
        """Raises ConfigError when there is misuse, else BundleMissError when there are differences.

        Either lists everything; the latter ends in ``making``, what building the missing programs takes.
        """
        lines = (*self.misuse, *map(str, self.differences))
        if self.misuse:
            raise ConfigError(
                f"{len(lines)} option{_s(lines)} cannot be served from the bundle {reference}",
                details=lines,
                next_command=next_command,
            )
        if self.differences:
            raise BundleMissError(
                f"the bundle {reference} does not serve what was asked for: {len(lines)} difference{_s(lines)}",
                details=(*lines, making) if making else lines,
                next_command=next_command,
            )


def compare(
    manifest: Manifest,
    *,
    config: Mapping[str, Any],
    engine: Mapping[str, Any],
    additional_config: Mapping[str, Any],
) -> Comparison:
    """Compare a serving request with ``manifest``, field by field.

    ``config``: the served model's raw config.json. ``engine``: vLLM engine arguments under vLLM's names, with
    defaults applied; a name left out, or None, agrees with everything. ``additional_config``: vLLM's option of that
    name; without ``neuron_config`` the bundle's own counts as asked for.
    """
    differences = [*_model(manifest, config), *_engine(manifest, engine)]
    misuse = check_additional_config(additional_config)
    neuron = additional_config.get("neuron_config")
    if neuron is not None and not isinstance(neuron, Mapping):
        misuse.append(f"additional_config.neuron_config: wanted a mapping of options, found {neuron!r}")
        neuron = None
    asked = _asked_engine(manifest, engine)
    options = _bundle_options(manifest, asked) if neuron is None else neuron
    serving = None
    try:
        serving = resolve_serving(asked, options, model_config=config)
    except ConfigError as error:
        # Without a valid configuration there are no buckets to ask for; the rules say what is wrong.
        known = {difference.text for difference in differences}
        if neuron is not None or not differences:
            misuse += [line for line in error.details if line not in known]
    else:
        if neuron is not None:
            differences += _neuron(manifest, serving)
        differences += _buckets(manifest, serving)
    return Comparison(tuple(dict.fromkeys(misuse)), tuple(differences), serving)


def missing_programs(manifest: Manifest, serving: ServingConfig) -> list[tuple[str, Bucket]]:
    """The programs, (phase, bucket), that the scheduler can ask for under ``serving`` and ``manifest`` does not have."""
    wanted = [("prefill", bucket) for bucket in serving.prefill_buckets()]
    wanted += [("decode", bucket) for bucket in serving.decode_buckets()]
    held = {(program.phase, program.bucket) for program in manifest.programs}
    return [item for item in wanted if item not in held]


def _model(manifest: Manifest, config: Mapping[str, Any]) -> list[Difference]:
    architectures = config.get("architectures") or []
    found = []
    if manifest.model.architecture not in architectures:
        found.append(Difference("architecture", ", ".join(architectures) or None, manifest.model.architecture))
    return found + [
        Difference(f"config.json {name}", asked, held)
        for name, held, asked in compare_facts(manifest.model.facts, config)
    ]


def _engine(manifest: Manifest, engine: Mapping[str, Any]) -> list[Difference]:
    differences = []
    for name in COMPARED:
        wanted, found = engine.get(name), manifest.serving.engine.get(name)
        if wanted is None or wanted == found:
            continue
        # "auto" and its outcome are the same cache.
        if name == "kv_cache_dtype" and {wanted, found} <= {"auto", manifest.kv_cache.dtype}:
            continue
        differences.append(Difference(name, wanted, found))
    for name, wanted in engine.items():
        differences += [Difference(name, wanted, None, text) for text in check_engine_values({name: wanted})]
    return differences


def _neuron(manifest: Manifest, serving: ServingConfig) -> list[Difference]:
    wanted = serving.neuron_config.model_dump(mode="json")
    return [
        Difference(f"neuron_config.{name}", value, manifest.serving.neuron_config.get(name))
        for name, value in wanted.items()
        if value != manifest.serving.neuron_config.get(name)
    ]


def _buckets(manifest: Manifest, serving: ServingConfig) -> list[Difference]:
    found = []
    for phase, bucket in missing_programs(manifest, serving):
        name, nearest = program_name(phase, bucket), nearest_program(manifest, phase, bucket)
        text = f"program {name}: not in the bundle" + (f"; the nearest is {nearest.name}" if nearest else "")
        found.append(Difference(f"program {name}", True, False, text))
    return found


def _asked_engine(manifest: Manifest, engine: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments that buckets follow from: as asked, and the bundle's where nothing was asked."""
    held = manifest.serving.engine
    asked = {name: held.get(name) if engine.get(name) is None else engine[name] for name in COMPARED}
    return asked | {"kv_cache_dtype": held.get("kv_cache_dtype")}  # compared above; the rules know it only as "auto"


def _bundle_options(manifest: Manifest, engine: Mapping[str, Any]) -> dict[str, Any]:
    """The bundle's neuron_config, less what cannot hold for another ``engine``: those buckets take their defaults."""
    options = {name: value for name, value in manifest.serving.neuron_config.items() if value is not None}
    for name, limit in (("num_batched_tokens_buckets", "max_num_batched_tokens"), ("num_seqs_buckets", "max_num_seqs")):
        if engine[limit] != manifest.serving.engine.get(limit):
            options.pop(name, None)
            options.pop("kv_segment_size_buckets", None)
    for name in ("decode_context_length_buckets", "prefill_context_length_buckets"):
        if name in options and isinstance(engine["max_model_len"], int):
            options[name] = [context for context in options[name] if context < engine["max_model_len"]] or None
    return options


def _s(lines: Sequence[str]) -> str:
    return "" if len(lines) == 1 else "s"
