"""Verifying a bundle: what is stored, and, when asked, what it computes and what it would lower to today."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from neuron_aot_runtime.contract.errors import IntegrityError, NeuronAotError, NotFoundError
from neuron_aot_runtime.contract.layout import program_path
from neuron_aot_runtime.contract.manifest import Manifest, Program
from neuron_aot_runtime.contract.serving import ServingConfig
from neuron_aot_runtime.store import Bundle, open_bundle
from pydantic import ValidationError

from . import keys
from .make import Toolchain
from .program import ModelPlan, ProgramPlan
from .schedule.local import Finished, run_tasks
from .store import open_store

Problem = tuple[str, NeuronAotError]


def verify_stored(bundle: Bundle) -> list[Problem]:
    """Check every blob, every record and that the programs are all that the serving configuration needs.

    The manifest itself was verified when the bundle was opened. Returns (program or ``bundle``, what is wrong).
    """
    problems: list[Problem] = []
    store = open_store(bundle.store_root)
    for program in bundle.manifest.programs:
        try:
            bundle.artifact_path(program)
            record = store.program(program.program_key)
            if record is None:
                raise NotFoundError(
                    f"{program.name} has no record in the store", wanted=program_path(program.program_key)
                )
            if record.artifact != program.artifact:
                raise IntegrityError(
                    f"{program.name} is recorded with another artifact than the bundle names",
                    wanted=program.artifact.digest,
                    found=record.artifact.digest,
                )
        except NeuronAotError as error:
            problems.append((program.name, error))
    return problems + [("bundle", error) for error in _completeness(bundle.manifest)]


def execute(bundle: Bundle, toolchain: Toolchain, *, jobs: int) -> Iterator[Problem | tuple[str, None]]:
    """Run every program on seeded inputs and compare with the model's definition; yields each program's outcome."""
    yield from _each(bundle, execute_program, toolchain, jobs)


def recompute(bundle: Bundle, toolchain: Toolchain, *, jobs: int) -> Iterator[Problem | tuple[str, None]]:
    """Lower every program again and compare with its keys; yields each program's outcome."""
    yield from _each(bundle, recompute_program, toolchain, jobs)


def execute_program(reference: str, name: str, toolchain: Toolchain, note: Callable) -> None:
    """One program of ``execute``, in a worker. Raises DeviceError when the results differ."""
    from .lower.execute import check_program

    bundle = open_bundle(reference)
    program = bundle.manifest.program(name)
    plan = program_plan(bundle.manifest, program)
    definition = toolchain.family(plan.model.architecture).program(plan)
    check_program(plan, definition, bundle.manifest, program, bundle.artifact_path(program))


def recompute_program(reference: str, name: str, toolchain: Toolchain, note: Callable) -> None:
    """One program of ``recompute``, in a worker.

    The compiler's identity is that of the record: the question is whether the lowering still gives the same HLO.
    Raises IntegrityError when the program, or the request that leads to it, has another key.
    """
    bundle = open_bundle(reference)
    store, program = open_store(bundle.store_root), bundle.manifest.program(name)
    record = store.program(program.program_key)
    if record is None:
        raise NotFoundError(f"{name} has no record in the store", wanted=program_path(program.program_key))
    plan = program_plan(bundle.manifest, program)
    found = keys.program_key(
        toolchain.lower_plan(plan), target=bundle.manifest.target, code_generator=record.code_generator
    )
    if found != program.program_key:
        raise IntegrityError(
            f"{name} lowers to another program now",
            wanted=program.program_key,
            found=found,
            next_command="run neuron-aot compile again if the models or the lowering changed; report it otherwise",
        )
    request = store.request(keys.request_key(plan, record.code_generator, toolchain.lowering_identity()))
    if request is not None and request.program_key != found:
        raise IntegrityError(
            f"the request of {name} leads to another program than it lowers to",
            wanted=found,
            found=request.program_key,
            next_command=f"remove {bundle.store_root}/requests/{request.request_key}.json",
        )


def program_plan(manifest: Manifest, program: Program) -> ProgramPlan:
    """The plan that ``program`` was made from."""
    serving = ServingConfig.from_manifest(manifest.serving)
    model = ModelPlan(
        target=manifest.target,
        architecture=manifest.model.architecture,
        facts=manifest.model.facts,
        dtype=serving.dtype,
        kv_dtype=serving.kv_dtype,
        block_size=serving.block_size,
        num_blocks=serving.num_blocks,
        world_size=manifest.world_size,
        greedy=serving.greedy,
    )
    return ProgramPlan(model=model, phase=program.phase, bucket=program.bucket)


def _each(
    bundle: Bundle, function: Callable, toolchain: Toolchain, jobs: int
) -> Iterator[Problem | tuple[str, None]]:
    names = [program.name for program in bundle.manifest.programs]
    reference = f"{bundle.store_root}@{bundle.bundle_id}"
    for event in run_tasks([(function, (reference, name, toolchain)) for name in names], jobs=jobs):
        if isinstance(event, Finished):
            yield names[event.index], event.error


def _completeness(manifest: Manifest) -> list[NeuronAotError]:
    try:
        serving = ServingConfig.from_manifest(manifest.serving)
    except ValidationError as error:
        return [IntegrityError("the bundle's serving configuration cannot be read", details=str(error).splitlines())]
    wanted = {("prefill", bucket) for bucket in serving.prefill_buckets()}
    wanted |= {("decode", bucket) for bucket in serving.decode_buckets()}
    missing = wanted - {(program.phase, program.bucket) for program in manifest.programs}
    if not missing:
        return []
    details = [f"{phase}: size {bucket.size}, context {bucket.context}" for phase, bucket in sorted(missing, key=str)]
    return [NotFoundError("the bundle lacks programs that its serving configuration needs", details=details)]
