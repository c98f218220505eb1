"""The worker pool: a dead worker costs its own task."""

from __future__ import annotations

import os
import signal
import sys
import time

from neuron_aot_runtime.contract.errors import CompileError, NotFoundError

from neuron_aot.schedule.local import Finished, Noted, default_jobs, run_tasks


def behave(how: str, note):
    note(how)
    if how == "die":
        os.kill(os.getpid(), signal.SIGKILL)
    if how == "exit":
        os._exit(3)
    if how == "raise":
        raise ZeroDivisionError("a bug")
    if how == "refuse":
        raise NotFoundError("absent", wanted="x", details=["y"])
    if how == "print":
        print("talk")
    if how == "sleep":
        time.sleep(60)
    return how, os.getpid()


def finished(*tasks: str, jobs: int = 2) -> dict[str, Finished]:
    events = list(run_tasks([(behave, (task,)) for task in tasks], jobs=jobs))
    assert [event.note for event in events if isinstance(event, Noted)].sort() == list(tasks).sort()
    return {tasks[event.index]: event for event in events if isinstance(event, Finished)}


def test_each_failure_is_its_own():
    ends = finished("a", "die", "b", "raise", "exit", "refuse", "c")
    assert {name for name, end in ends.items() if end.error is None} == {"a", "b", "c"}
    assert "killed by SIGKILL" in str(ends["die"].error) and "--jobs" in str(ends["die"].error)
    assert "exit code 3" in str(ends["exit"].error)
    assert isinstance(ends["raise"].error, CompileError) and "ZeroDivisionError" in str(ends["raise"].error)
    assert "test_schedule.py" in "\n".join(ends["raise"].error.details)
    assert isinstance(ends["refuse"].error, NotFoundError) and ends["refuse"].error.details == ("y",)


def test_workers_are_reused_and_no_more_than_asked_for():
    ends = finished("a", "b", "c", "d", jobs=1)
    assert len({end.value[1] for end in ends.values()}) == 1
    assert os.getpid() not in {end.value[1] for end in ends.values()}


def test_what_workers_print_is_not_data(capfd):
    finished("print", jobs=1)
    assert capfd.readouterr() == ("", "talk\n")


def test_closing_ends_the_workers_at_once():
    started = time.monotonic()
    events = run_tasks([(behave, ("sleep",))] * 2, jobs=2)
    while not isinstance(next(events), Noted):
        pass
    events.close()
    assert time.monotonic() - started < 10


def test_the_default_is_one_job_per_usable_core():
    assert default_jobs() == len(os.sched_getaffinity(0)) >= 1
    assert sys.platform == "linux"
