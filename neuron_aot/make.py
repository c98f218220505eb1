"""Making one program, in a worker process: lower, key, generate, store. Heavy imports happen here only."""

from __future__ import annotations

import resource
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from neuron_aot_runtime.contract.errors import CompileError
from neuron_aot_runtime.contract.manifest import Artifact
from neuron_aot_runtime.store import ProgramRecord, Provenance, RequestRecord

from . import __version__, codegen, keys, lower, models
from .codegen import CodeGenerator
from .program import LoweredProgram, ProgramPlan
from .store import Store, Stored, open_store


@dataclass(frozen=True)
class Toolchain:
    """The outside things a compile needs, by name, so that they cross to workers and tests can bring their own."""

    family: Callable = models.family
    lower: Callable = lower.lower_program
    code_generator: Callable = codegen.code_generator
    lowering_identity: Callable = keys.lowering_identity

    def lower_plan(self, plan: ProgramPlan) -> LoweredProgram:
        """One program's HLO. Raises RecipeError, LoweringError."""
        family = self.family(plan.model.architecture)
        return self.lower(plan, family.program(plan), family.layout(plan.model))


def default_toolchain() -> Toolchain:
    """The real one."""
    return Toolchain()


@dataclass(frozen=True)
class Job:
    """One program to make."""

    plan: ProgramPlan
    request_key: str
    lowering: dict
    store: str
    toolchain: Toolchain


@dataclass(frozen=True)
class Made:
    """``compiled``: a code generator ran for it; ``adopted``: another writer was first with different bytes."""

    request: RequestRecord
    record: ProgramRecord
    compiled: bool
    adopted: bool = False


def make_program(job: Job, note: Callable[[str], None]) -> Made:
    """Make one program unless the store has it by now; among processes, one makes it and the others wait.

    Raises LoweringError, CompileError, StoreError.
    """
    if job.toolchain.lowering_identity() != job.lowering:
        # Else the key of the old sources would lead to a program of the new ones, for good.
        raise CompileError("the toolchain's own sources changed during the compile", next_command="run it again")
    store = open_store(job.store)
    with store.lock(job.request_key, lambda: note("waiting")):
        if found := store.find(job.request_key):
            return Made(*found, compiled=False)
        note("lowering")
        _reset_peak_memory()
        started = time.monotonic()
        lowered = job.toolchain.lower_plan(job.plan)
        lower_ms = _ms_since(started)
        generator = job.toolchain.code_generator(job.plan.model.target)
        key = keys.program_key(lowered, target=generator.target, code_generator=generator.identity())
        with store.lock(key, lambda: note("waiting")):
            record = store.program(key)
            compiled = record is None or not store.is_there(record.artifact)
            if compiled:
                note("generating")
                stored = _generate(store, generator, lowered, key, lower_ms)
            else:
                stored = Stored(record)
        request = RequestRecord(
            request_key=job.request_key,
            program_key=key,
            phase=job.plan.phase,
            bucket=job.plan.bucket,
            inputs=lowered.inputs,
            outputs=lowered.outputs,
        )
        store.put_request(request)
        return Made(request, stored.record, compiled=compiled, adopted=stored.adopted)


def _generate(store: Store, generator: CodeGenerator, lowered: LoweredProgram, key: str, lower_ms: int) -> Stored:
    started = time.monotonic()
    with store.scratch() as directory:
        artifact = directory / "artifact"
        generator.generate(lowered.hlo, artifact)
        # A compiler that says "done" and wrote nothing has failed.
        if not artifact.is_file() or artifact.stat().st_size == 0:
            raise CompileError(
                f"{generator.name} reported success but wrote no artifact",
                next_command="run the same command again; report it to the compiler's makers if it persists",
            )
        generate_ms = _ms_since(started)
        digest, size = store.put_blob(artifact)
    record = ProgramRecord(
        program_key=key,
        artifact=Artifact(format=generator.artifact_format, digest=digest, size=size),
        target=generator.target,
        code_generator=generator.identity(),
        provenance=Provenance(
            built_at=datetime.now(UTC).isoformat(timespec="seconds"),
            lower_ms=lower_ms,
            generate_ms=generate_ms,
            peak_memory_mb=_peak_memory_mb(),
            versions={"neuron-aot": __version__, **keys.library_versions()},
        ),
    )
    return store.put_program(record)


def _ms_since(started: float) -> int:
    return round((time.monotonic() - started) * 1000)


def _reset_peak_memory() -> None:
    """Linux keeps the peak for the life of a process; a worker makes many programs."""
    with suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5")


def _peak_memory_mb() -> int:
    """Peak resident memory since the last reset, of this process or of a compiler it started, whichever is larger."""
    own = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with suppress(OSError):
        for line in Path("/proc/self/status").read_text().splitlines():
            if line.startswith("VmHWM:"):
                own = int(line.split()[1])
    return max(own, resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss) // 1024
