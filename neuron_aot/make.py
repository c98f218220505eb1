"""Making one program, in a worker process: lower, key, generate, store. Heavy imports happen here only."""

from __future__ import annotations

import resource
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from neuron_aot_runtime.contract.canonical import digest_file
from neuron_aot_runtime.contract.errors import CompileError, TransientCompileError
from neuron_aot_runtime.contract.layout import blob_path
from neuron_aot_runtime.contract.manifest import Artifact
from neuron_aot_runtime.store import FailureRecord, ProgramRecord, Provenance, RequestRecord
from neuron_aot_runtime.store.records import Compiled, now

from . import __version__, codegen, keys, lower, models
from .codegen import CodeGenerator, CompilerError
from .program import LoweredProgram, ProgramPlan
from .store import Store, Stored, open_store
from .targets import CPU, CompileOptions, neuron_target

if TYPE_CHECKING:
    from .lower.preflight import Violation


@dataclass(frozen=True)
class Toolchain:
    """The outside things a compile needs, by name, so that they cross to workers and tests can bring their own."""

    family: Callable = models.family
    lower: Callable = lower.lower_program
    code_generator: Callable = codegen.code_generator
    lowering_identity: Callable = keys.lowering_identity

    def lower_plan(self, plan: ProgramPlan) -> LoweredProgram:
        """One program's HLO. Raises RecipeError, LoweringError."""
        return self._lower(plan)

    def preflight(
        self, plan: ProgramPlan, hlo: bytes | None = None, *, unlisted: frozenset[str] = frozenset()
    ) -> list[Violation]:
        """What a Neuron compiler would refuse in one program; ``hlo`` is its module when that is known already.

        ``unlisted``: opcodes that the installed compiler does not list, when it was asked.

        Raises RecipeError, LoweringError, UsageError for a target that is not Neuron.
        """
        from .lower.preflight import check_hlo

        target = neuron_target(plan.model.target)
        if not check_hlo(hlo or self._lower(plan).hlo, target, program=plan.name, unlisted=unlisted):
            return []
        lowered = self._lower(plan, origins=True)  # costs a second conversion, so only when there is a line to tell
        return check_hlo(lowered.hlo, target, program=plan.name, origins=lowered.origins, unlisted=unlisted)

    def _lower(self, plan: ProgramPlan, **options) -> LoweredProgram:
        family = self.family(plan.model.architecture)
        return self.lower(plan, family.program(plan), family.layout(plan.model), **options)


def default_toolchain() -> Toolchain:
    """The real one."""
    return Toolchain()


@dataclass(frozen=True)
class Job:
    """One program to make. ``retry_failed``: also when its compiler is known to refuse it.

    ``generator``: the code generator's identity that the request key was made with; a cluster's worker may have another.
    """

    plan: ProgramPlan
    request_key: str
    lowering: dict
    store: str
    toolchain: Toolchain
    options: CompileOptions = field(default_factory=CompileOptions)
    retry_failed: bool = False
    generator: dict[str, str] | None = None


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
    generator = job.toolchain.code_generator(job.plan.model.target, job.options)
    if job.generator is not None and (found := generator.identity()) != job.generator:
        raise CompileError(
            "this worker has another compiler than the command that asked it",
            wanted=str(job.generator),
            found=str(found),
            next_command="give every machine the same image, then run it again",
        )
    store = open_store(job.store)
    with store.lock(job.request_key, lambda: note("waiting")):
        if found := store.find(job.request_key):
            return Made(*found, compiled=False)
        note("lowering")
        _reset_peak_memory()
        started = time.monotonic()
        lowered = job.toolchain.lower_plan(job.plan)
        lower_ms = _ms_since(started)
        key = keys.program_key(lowered, target=generator.target, code_generator=generator.identity())
        with store.lock(key, lambda: note("waiting")):
            record = store.program(key)
            compiled = record is None or not store.is_there(record.artifact)
            if compiled:
                _refuse_known_failure(store, key, job)
                if generator.target != CPU and (violations := job.toolchain.preflight(job.plan, lowered.hlo)):
                    from .lower.preflight import violations_error

                    raise violations_error(violations, generator.target)
                note("generating")
                stored = _generate(store, generator, lowered, key, lower_ms, _compiled(job))
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


def _compiled(job: Job) -> Compiled:
    plan = job.plan
    layout = job.toolchain.family(plan.model.architecture).layout(plan.model)
    return Compiled(
        phase=plan.phase, bucket=plan.bucket, num_layers=layout.kv_cache.num_layers, weight_bytes=layout.weight_bytes
    )


def _generate(
    store: Store, generator: CodeGenerator, lowered: LoweredProgram, key: str, lower_ms: int, compiled: Compiled
) -> Stored:
    started = time.monotonic()
    with store.scratch() as directory:
        artifact = directory / "artifact"
        try:
            further = generator.generate(lowered.hlo, artifact) or {}
        except CompilerError as error:
            raise _keep_failure(store, key, error) from error
        # A compiler that says "done" and wrote nothing has failed.
        if not artifact.is_file() or artifact.stat().st_size == 0:
            raise CompileError(
                f"{generator.name} reported success but wrote no artifact",
                next_command="run the same command again; report it to the compiler's makers if it persists",
            )
        generate_ms = _ms_since(started)
        record = ProgramRecord(
            program_key=key,
            artifact=_described(artifact, generator.artifact_format),
            target=generator.target,
            code_generator=generator.identity(),
            provenance=Provenance(
                built_at=now(),
                lower_ms=lower_ms,
                generate_ms=generate_ms,
                peak_memory_mb=_peak_memory_mb(),
                versions={"neuron-aot": __version__, **keys.library_versions()},
                compiled=compiled,
            ),
            attachments={name: _described(path, name) for name, path in further.items()},
        )
        placed = store.put_program(record, lambda: [store.put_blob(path) for path in (*further.values(), artifact)])
    store.drop_failure(key)
    return placed


def _described(path: Path, kind: str) -> Artifact:
    return Artifact(format=kind, digest=digest_file(path), size=path.stat().st_size)


def _keep_failure(store: Store, key: str, error: CompilerError) -> CompileError:
    """The error with its log kept in the store; a failure that would repeat is remembered there."""
    log = None
    if error.log is not None:
        log = _described(error.log, "log")
        store.put_blob(error.log)
    if error.remember:
        store.put_failure(
            FailureRecord(
                program_key=key,
                code=error.code or "",
                message=error.message,
                found=error.found,
                next_command=error.next_command,
                log=log,
                failed_at=now(),
            )
        )
    kind = TransientCompileError if error.transient else CompileError
    return kind(
        error.message,
        found=error.found,
        details=[*error.details, *_where(store, log)],
        next_command=error.next_command,
    )


def _refuse_known_failure(store: Store, key: str, job: Job) -> None:
    known = store.failure(key)
    if known is not None and not job.retry_failed:
        raise CompileError(
            f"{known.message} (remembered from {known.failed_at}; the compiler was not started)",
            found=known.found,
            details=_where(store, known.log),
            next_command=f"{known.next_command}; or run again with --retry-failed",
        )


def _where(store: Store, log: Artifact | None) -> list[str]:
    return [] if log is None else [f"log: {store.location}/{blob_path(log.digest)}"]


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
