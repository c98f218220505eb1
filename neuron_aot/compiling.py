"""Making the programs that a store misses: who runs where, what is refused beforehand, what is tried again."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import closing
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from neuron_aot_runtime.contract.errors import CompileError, NeuronAotError

from .estimates import memory_needs
from .make import Job, Made, Toolchain, make_program
from .schedule.executor import Executor, LocalExecutor
from .schedule.local import Finished, Noted, Started
from .schedule.memory import HostMemory
from .schedule.retry import Retried, run_retrying
from .schedule.shards import Shard
from .store import Store

if TYPE_CHECKING:
    from .pipeline import Plan
    from .program import ProgramPlan


@dataclass(frozen=True, kw_only=True)
class RunOptions:
    """How a compile runs; no artifact depends on it.

    ``jobs``: programs at once, None for the executor's choice. ``force``: also programs that will not fit into memory.
    """

    jobs: int | None = None
    retry_failed: bool = False
    force: bool = False
    shard: Shard | None = None
    executor: Executor = field(default_factory=LocalExecutor)


class Interrupted(KeyboardInterrupt):
    """Ctrl-C during a compile: ``kept`` of ``programs`` are in the store and will be found there."""

    def __init__(self, kept: int, programs: int) -> None:
        super().__init__()
        self.kept = kept
        self.programs = programs


@dataclass
class Progress:
    """What a compile tells while it runs; each hook may be left out. ``planned``: with the jobs at once, and the MB that
    each program to make is estimated to take."""

    planned: Callable[[Plan, int, dict[str, int]], None] = field(default=lambda plan, jobs, needs: None)
    noted: Callable[[str, str], None] = field(default=lambda name, note: None)
    retried: Callable[[str, NeuronAotError], None] = field(default=lambda name, error: None)
    made: Callable[[str, Made], None] = field(default=lambda name, made: None)
    failed: Callable[[str, NeuronAotError], None] = field(default=lambda name, error: None)


def compile_misses(
    plan: Plan, store: Store, toolchain: Toolchain, options: RunOptions, progress: Progress
) -> dict[str, Made]:
    """Make every program of ``plan.misses``. See ``pipeline.compile_recipe`` for what it raises."""
    misses = plan.misses
    if not misses:
        progress.planned(plan, 0, {})
        return {}
    executor = options.executor
    needs = estimated_memory(plan, store)
    if not options.force:
        _refuse_doomed(needs, executor.memory())
    toolchain.code_generator(plan.recipe.target, plan.recipe.options).check()
    store.clean_litter()
    store.require_writable()
    names = list(needs)
    jobs = min(options.jobs or executor.default_jobs(), len(misses))
    progress.planned(plan, jobs, needs)
    tasks = [(make_program, (job_of(plan, item, store, toolchain, options.retry_failed),)) for item in misses]

    def run(indices, jobs):
        return executor.run([tasks[index] for index in indices], [needs[names[index]] for index in indices], jobs)

    made: dict[str, Made] = {}
    failures: dict[str, NeuronAotError] = {}
    try:
        with closing(run_retrying(run, len(tasks), jobs=jobs)) as events:
            for event in events:
                name = names[event.index]
                if isinstance(event, Started):
                    progress.noted(name, "starting")
                elif isinstance(event, Noted):
                    progress.noted(name, event.note)
                elif isinstance(event, Retried):
                    progress.retried(name, event.error)
                elif isinstance(event, Finished) and event.error is None:
                    made[name] = event.value
                    progress.made(name, event.value)
                else:
                    failures[name] = event.error
                    progress.failed(name, event.error)
    except KeyboardInterrupt:
        # Asked of the store: a worker may have stored a program whose news did not arrive here.
        keys = [plan.request_keys[program.name] for program in plan.grid.programs]
        raise Interrupted(len(store.find_all(keys)), len(keys)) from None
    finally:
        store.clean_litter()
    if failures:
        raise _failure(failures, len(plan.grid.programs))
    return made


def estimated_memory(plan: Plan, store: Store) -> dict[str, int]:
    """MB at the peak of making each program of ``plan.misses``, by name, learned from the store's past compiles."""
    misses = plan.misses
    needs = memory_needs(store, misses, plan.recipe.target, plan.layout)
    return {program.name: need for program, need in zip(misses, needs, strict=True)}


def doomed(needs: Mapping[str, int], host: HostMemory) -> dict[str, int]:
    """Those of ``needs``, MB by program, that are more than the largest host has: without ``force`` nothing is made."""
    return {name: need for name, need in needs.items() if need > host.total}


def _refuse_doomed(needs: Mapping[str, int], host: HostMemory) -> None:
    if found := doomed(needs, host):
        most = max(found.values())
        raise CompileError(
            f"{len(found)} of {len(needs)} programs are estimated to need more memory than any one host has",
            wanted=f"a host with {most} MB",
            found=f"{host.total} MB, of which {host.free} MB are free",
            details=[f"{name}: {need} MB" for name, need in found.items()],
            next_command="compile on a larger host, take smaller buckets, or try all the same with --force",
        )


def job_of(plan: Plan, program: ProgramPlan, store: Store, toolchain: Toolchain, retry_failed: bool = False) -> Job:
    """What a worker needs to make ``program``."""
    return Job(
        plan=program,
        request_key=plan.request_keys[program.name],
        lowering=plan.lowering,
        store=store.address,
        toolchain=toolchain,
        options=plan.recipe.options,
        retry_failed=retry_failed,
        generator=toolchain.code_generator(plan.recipe.target, plan.recipe.options).identity(),
    )


def _failure(failures: dict[str, NeuronAotError], programs: int) -> NeuronAotError:
    first = next(iter(failures.values()))
    details = [f"{name}: {line}" for name, error in failures.items() for line in str(error).splitlines()]
    return type(first)(
        f"{len(failures)} of {programs} programs failed; no bundle was published",
        details=details,
        next_command=f"run the same command again: the other {programs - len(failures)} are kept and will be found",
    )
