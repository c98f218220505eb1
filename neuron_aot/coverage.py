"""Whether a store serves what a command can reach, and how far it is from it. Needs no vLLM, device or weights.

The comparison is the one that the plugin makes when it starts (``neuron_aot_runtime.vllm.check``).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from neuron_aot_runtime.contract.buckets import program_name
from neuron_aot_runtime.contract.errors import NotFoundError
from neuron_aot_runtime.contract.layout import blob_path
from neuron_aot_runtime.store import Bundle, Reference, open_bundle, open_reader, parse_reference
from neuron_aot_runtime.vllm.check import Difference, compare, missing_programs


@dataclass(frozen=True, kw_only=True)
class Asked:
    """A serving request, as ``check.compare`` takes it; ``target`` None: whatever the bundle is for."""

    config: Mapping[str, Any]
    engine: Mapping[str, Any]
    additional_config: Mapping[str, Any]
    target: str | None = None


@dataclass(frozen=True, kw_only=True)
class Reached:
    """One program that the scheduler can ask for. ``state``: held, no program (in the bundle) or no artifact."""

    name: str
    phase: str
    size: int
    context: int
    state: str


@dataclass(frozen=True, kw_only=True)
class Coverage:
    """``misuse``: options that break a rule, whatever the bundle; ``reached`` is empty then."""

    bundle: Bundle
    misuse: tuple[str, ...]
    differences: tuple[Difference, ...]
    reached: tuple[Reached, ...]

    @property
    def missing(self) -> tuple[Reached, ...]:
        """What cannot be served."""
        return tuple(item for item in self.reached if item.state != "held")

    @property
    def absent(self) -> tuple[Reached, ...]:
        """Programs of the bundle whose artifact the store has lost."""
        return tuple(item for item in self.reached if item.state == "no artifact")

    @property
    def complete(self) -> bool:
        return not (self.misuse or self.differences or self.absent)

    @property
    def lines(self) -> list[str]:
        """Everything that is missing or differs."""
        lost = [f"program {item.name}: its artifact is not in the store" for item in self.absent]
        return [*self.misuse, *map(str, self.differences), *lost]

    @property
    def exit_code(self) -> int:
        """0 complete, 3 missing; 2 when nothing differs but the command breaks a rule of its own."""
        if self.complete:
            return 0
        return 3 if self.differences or self.absent else 2


def coverage(bundle: Bundle, asked: Asked) -> Coverage:
    """Compare what is asked for with one bundle. Raises AccessDeniedError, StorageFaultError."""
    manifest = bundle.manifest
    result = compare(manifest, config=asked.config, engine=asked.engine, additional_config=asked.additional_config)
    differences = list(result.differences)
    if asked.target not in (None, manifest.target):
        differences.insert(0, Difference("target", asked.target, manifest.target))
    if asked.engine.get("async_scheduling"):
        text = "async_scheduling: not supported yet; leave it out"
        differences.append(Difference("async_scheduling", True, False, text))
    reached = _reached(bundle, result.serving) if result.serving else ()
    return Coverage(bundle=bundle, misuse=result.misuse, differences=tuple(differences), reached=reached)


def nearest_coverage(reference: str, asked: Asked) -> Coverage:
    """The coverage by the bundle named; by a store alone, that of its bundle with the fewest differences.

    Raises UsageError, StoreError.
    """
    return min(
        (coverage(bundle, asked) for bundle in _candidates(parse_reference(reference))),
        key=lambda item: (not item.complete, _distance(item), item.bundle.bundle_id),
    )


def _distance(item: Coverage) -> tuple[int, int]:
    """Fields first: a bundle of another model is not near for having the same number of programs."""
    fields = [difference for difference in item.differences if not difference.field.startswith("program ")]
    return len(fields) + len(item.misuse), len(item.lines)


def _candidates(reference: Reference) -> Sequence[Bundle]:
    if reference.name is not None:
        return [open_bundle(reference)]
    reader = open_reader(reference.store)
    ids = [path.rpartition("/")[2].removesuffix(".json") for path in reader.names("bundles")]
    if len(ids) < 2:
        return [open_bundle(reference)]  # which also says what is wrong with a store without any
    return [open_bundle(Reference(reference.store, bundle_id)) for bundle_id in ids]


def _reached(bundle: Bundle, serving) -> tuple[Reached, ...]:
    missing = set(missing_programs(bundle.manifest, serving))
    artifacts = {program.name: program.artifact for program in bundle.manifest.programs}
    reached = []
    for phase, buckets in (("prefill", serving.prefill_buckets()), ("decode", serving.decode_buckets())):
        for bucket in buckets:
            name = program_name(phase, bucket)
            if (phase, bucket) in missing:
                state = "no program"
            else:
                state = "held" if _has_blob(bundle, artifacts[name]) else "no artifact"
            reached.append(Reached(name=name, phase=phase, size=bucket.size, context=bucket.context, state=state))
    return tuple(reached)


def _has_blob(bundle: Bundle, artifact) -> bool:
    """By name and size alone; ``neuron-aot verify`` reads the bytes."""
    try:
        return bundle.reader.stat(blob_path(artifact.digest)).size == artifact.size
    except NotFoundError:
        return False
