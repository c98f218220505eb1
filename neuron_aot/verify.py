"""Verifying a bundle: what is stored, and, when asked, what it computes and what it would lower to today."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from neuron_aot_runtime.contract.errors import DeviceError, IntegrityError, NeuronAotError, NotFoundError
from neuron_aot_runtime.contract.layout import program_path
from neuron_aot_runtime.contract.manifest import Manifest, Program
from neuron_aot_runtime.contract.serving import ServingConfig
from neuron_aot_runtime.store import Bundle, open_bundle
from pydantic import ValidationError

from . import keys
from .make import Toolchain
from .program import ModelPlan, ProgramPlan
from .schedule.local import Finished, Noted, run_tasks
from .store import open_store
from .store.check import check_programs
from .targets import CPU

Problem = tuple[str, NeuronAotError]


@dataclass(frozen=True)
class Outcome:
    """A program that was executed or lowered again: ``error`` is what is wrong, ``measured`` what was seen."""

    program: str
    error: NeuronAotError | None = None
    measured: str = ""


def verify_stored(bundle: Bundle) -> list[Problem]:
    """Check every blob, every record and that the programs are all that the serving configuration needs.

    The manifest itself was verified when the bundle was opened. Returns (program or ``bundle``, what is wrong).
    """
    store = open_store(bundle.store_root)
    problems = [(problem.subject, problem.error) for problem in check_programs(store, bundle.manifest)]
    return problems + [("bundle", error) for error in _completeness(bundle.manifest)]


def execute(bundle: Bundle, toolchain: Toolchain) -> Iterator[Outcome]:
    """Run every program on seeded inputs and compare with the model's definition; yields each program's outcome.

    A Neuron program's module runs on the cpu: what is checked is the lowering, not the NEFF.
    One worker does it all: the programs share their weights.
    """
    left = [program.name for program in bundle.manifest.programs]
    for event in run_tasks([(execute_programs, (_pinned(bundle), toolchain))], jobs=1):
        if isinstance(event, Noted):
            left.remove(event.note.program)
            yield event.note
        elif isinstance(event, Finished) and event.error is not None:
            yield from (Outcome(name, event.error) for name in left)


def recompute(bundle: Bundle, toolchain: Toolchain, *, jobs: int) -> Iterator[Outcome]:
    """Lower every program again and compare with its keys; yields each program's outcome."""
    names = [program.name for program in bundle.manifest.programs]
    for event in run_tasks([(recompute_program, (_pinned(bundle), name, toolchain)) for name in names], jobs=jobs):
        if isinstance(event, Finished):
            yield Outcome(names[event.index], event.error)


def execute_programs(reference: str, toolchain: Toolchain, note: Callable[[Outcome], None]) -> None:
    """The work of ``execute``, in its worker."""
    from .execute import ProgramChecker

    bundle = open_bundle(reference)
    plans = {program.name: program_plan(bundle.manifest, program) for program in bundle.manifest.programs}
    model = next(iter(plans.values())).model
    checker = ProgramChecker(bundle.manifest, toolchain.family(model.architecture).layout(model))
    for program in bundle.manifest.programs:
        try:
            with _executable(bundle, program, toolchain) as artifact:
                compared = checker.check(plans[program.name], program, artifact)
        except NeuronAotError as error:
            note(Outcome(program.name, error))
            continue
        error = None if compared.ok else DeviceError(
            f"{program.name} does not compute what the model's definition does",
            wanted=f"a relative error of at most {compared.tolerance:.0e}",
            found=f"{compared.error:.1e}",
            next_command="report this: the lowering or the code generator is wrong on this machine",
        )  # fmt: skip
        note(Outcome(program.name, error, f"relative error {compared.error:.1e}"))
    checker.close()


@contextmanager
def _executable(bundle: Bundle, program: Program, toolchain: Toolchain) -> Iterator[Path]:
    """A file that the cpu device runs: the artifact itself, or what the kept module of a Neuron program makes."""
    if bundle.manifest.target == CPU:
        yield bundle.artifact_path(program)
        return
    from .inspect import attachment, program_record

    hlo = attachment(bundle, program_record(bundle, program.name), "hlo")
    with tempfile.TemporaryDirectory() as folder:
        toolchain.code_generator(CPU).generate(hlo, Path(folder) / "artifact")
        yield Path(folder) / "artifact"


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
        sequence_parallel=serving.sequence_parallel,
    )
    return ProgramPlan(model=model, phase=program.phase, bucket=program.bucket)


def _pinned(bundle: Bundle) -> str:
    """The bundle by its id: a ref may move meanwhile."""
    return f"{bundle.store_root}@{bundle.bundle_id}"


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
