"""Compile throughput: many programs by one worker and by one worker per core, against the plain sum of their parts."""

from __future__ import annotations

import json
import os
import subprocess
import tempfile
import time
from pathlib import Path

from neuron_aot.estimates import read_samples
from neuron_aot.store import open_store

from .noise import Watch, quiet_rounds
from .sides import NEURON_AOT, RECIPE, ROOT
from .statistics import summary


def measure(rounds: int, say, *, recipe: Path = RECIPE, shard: str = "1/3") -> dict:
    """Part ``shard`` of ``recipe``'s programs made into empty stores, in turns; wall seconds are those of the command.

    ``parts``: the seconds of lowering and generating that the programs' provenance says, summed, with one worker.
    ``busy``: the same sum with one worker per core, as a share of the wall time of all cores.
    """
    cores = len(os.sched_getaffinity(0))

    def one_round() -> tuple[tuple[dict, dict], float]:
        watch = Watch()
        one, all_ = _compile(recipe, shard, jobs=1), _compile(recipe, shard, jobs=cores)
        say(f"{one['programs']} programs: {one['wall']:.1f} s by one worker, {all_['wall']:.1f} s by {cores}")
        return (one, all_), watch.others()

    kept, noise = quiet_rounds(rounds, one_round, say)
    alone, together = zip(*kept, strict=True)
    return {
        "cores": cores,
        "programs": alone[0]["programs"],
        "one_worker": summary([run["wall"] for run in alone]),
        "parts": summary([run["parts"] for run in alone]),
        "all_cores": summary([run["wall"] for run in together]),
        "noise": noise,
        "busy": summary([run["parts"] / (run["wall"] * cores) for run in together]),
    }


def _compile(recipe: Path, shard: str, *, jobs: int) -> dict:
    with tempfile.TemporaryDirectory() as store:
        command = [NEURON_AOT, "compile", str(recipe), "--target", "cpu", "--store", store, "--shard", shard,
                   "--jobs", str(jobs), "--json"]  # fmt: skip
        start = time.perf_counter()
        done = subprocess.run(command, check=True, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
        wall = time.perf_counter() - start
        programs = json.loads(done.stdout.splitlines()[-1])["compiled"]
        made = read_samples(open_store(store), "cpu")
        assert len(made) == programs, (len(made), programs)
    return {"programs": programs, "wall": wall, "parts": sum(sample.seconds for sample in made)}
