"""What fits into a host's memory at once, and what is tried again."""

from __future__ import annotations

import pytest
from neuron_aot_runtime.contract.errors import CompileError, TransientCompileError

from neuron_aot.schedule.local import Finished, Started
from neuron_aot.schedule.memory import Admission, HostMemory, host_memory
from neuron_aot.schedule.retry import ATTEMPTS, Retried, run_retrying

GB = 1 << 30


def files(root, **contents):
    for name, text in contents.items():
        path = root / name.replace("__", "/").replace("_dot_", ".")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


@pytest.fixture
def host(tmp_path):
    return files(tmp_path, proc__meminfo="MemTotal: 16777216 kB\nMemAvailable: 8388608 kB\n")


def test_without_a_limit_it_is_the_physical_memory(host):
    assert host_memory(host) == HostMemory(total=16384, free=8192)
    assert 0 < host_memory().free <= host_memory().total


def test_a_parents_limit_counts_and_its_caches_are_free(host):
    files(
        host,
        proc__self__cgroup="0::/a/b\n",
        sys__fs__cgroup__a__b__memory_dot_max="max\n",
        sys__fs__cgroup__a__memory_dot_max=f"{4 * GB}\n",
        sys__fs__cgroup__a__memory_dot_current=f"{3 * GB}\n",
        sys__fs__cgroup__a__memory_dot_stat=f"anon 1\ninactive_file {GB}\n",
    )
    assert host_memory(host) == HostMemory(total=4096, free=2048)


def test_version_1_in_a_container_whose_mount_is_its_own_cgroup(host):
    folder = host / "sys/fs/cgroup/memory"
    folder.mkdir(parents=True)
    (host / "proc/self").mkdir()
    (host / "proc/self/cgroup").write_text("4:memory:/docker/abc\n1:cpu:/\n")
    (folder / "memory.limit_in_bytes").write_text(str(2 * GB))
    (folder / "memory.usage_in_bytes").write_text(str(GB))
    (folder / "memory.stat").write_text("total_inactive_file 0\n")
    assert host_memory(host) == HostMemory(total=2048, free=1024)


def test_admission_sums_and_one_alone_always_fits():
    admission = Admission(needs=[600, 500, 400], capacity=1000)
    assert admission.admits(0, []) and admission.admits(2, [0]) and not admission.admits(1, [0])
    assert Admission(needs=[600], capacity=10).admits(0, [])


def test_what_was_killed_is_tried_again_with_fewer_workers_and_the_rest_is_not():
    rounds = []

    def run(indices, jobs):
        rounds.append((list(indices), jobs))
        for position, index in enumerate(indices):
            error = {1: TransientCompileError("killed"), 2: CompileError("NCC_EVRF001")}.get(index)
            if index == 3 and len(rounds) == 1:
                error = TransientCompileError("lost")
            yield Finished(position, value=index, error=error)

    events = list(run_retrying(run, 4, jobs=4))
    assert rounds == [([0, 1, 2, 3], 4), ([1, 3], 2), ([1], 1)] and len(rounds) == ATTEMPTS
    ends = {event.index: event.error for event in events if isinstance(event, Finished)}
    assert ends[0] is ends[3] is None and "NCC" in str(ends[2]) and "killed" in str(ends[1])
    assert [event.index for event in events if isinstance(event, Retried)] == [1, 3, 1]
    assert not any(isinstance(event, Started) for event in events)
