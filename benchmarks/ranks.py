"""Several ranks on this machine: what each reads and holds of the weights, and an engine's steps at TP 1 and TP 2.

    python -m benchmarks.ranks [--rounds N]

Weights: SmolLM2-135M in float32 from a checkpoint in bfloat16 (so that everything is copied), each rank in a process of
its own, alone, from a cold page cache; beside it a plain read of the whole checkpoint, cold as well. Steps: two engines
in turns on the same cores. Two ranks hold 10 padded query heads and 4 KV heads where the model has 9 and 3, and more ranks on
the same cores can only cost: the figure is what the padding, the collectives and the other process take.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import statistics
import subprocess
import sys
import time
from pathlib import Path

import yaml

from .sides import CACHE, CHECKPOINT, NEURON_AOT, ROOT
from .steps import Engine

ENGINE = {"max_model_len": 1024, "max_num_batched_tokens": 128, "max_num_seqs": 8, "block_size": 32}
NEURON = {"num_batched_tokens_buckets": [128], "num_seqs_buckets": [8]}
CASES = {
    "decode, batch 8": {"do": "decode", "batch": 8, "context": 480, "steps": 24},
    "prefill, 128 tokens": {"do": "prefill", "tokens": 128, "times": 4},
}


def build(ranks: int, dtype: str) -> str:
    """Compile for ``ranks`` ranks; the bundle's reference."""
    CACHE.mkdir(parents=True, exist_ok=True)
    name = f"tp{ranks}-{dtype}"
    recipe = {
        "model": str(CHECKPOINT),
        "engine": ENGINE | {"dtype": dtype, "tensor_parallel_size": ranks},
        "neuron_config": NEURON,
        "compile": {"target": "cpu"},
    }
    (CACHE / f"{name}.yaml").write_text(yaml.safe_dump(recipe))
    store = ROOT / "store"
    command = [NEURON_AOT, "compile", str(CACHE / f"{name}.yaml"), "--store", str(store), "--ref", f"bench/{name}"]
    subprocess.run(command, check=True, stdout=sys.stderr)
    return f"{store}@bench/{name}"


def load(reference: str, rank: int) -> None:
    """In a process of its own: load one rank's weights and keep them; print what that took."""
    from neuron_aot_runtime.store import open_bundle
    from neuron_aot_runtime.weights import load_weights

    manifest, kept = open_bundle(reference).manifest, []
    forget_file(CHECKPOINT)
    before, read = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, bytes_read()
    report = load_weights(manifest, CHECKPOINT, rank=rank, put=lambda spec, array: kept.append(array))
    taken = {
        "seconds": round(report.seconds, 3),
        "shard_MB": report.nbytes // 10**6,
        "memory_MB": (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) * 1024 // 10**6,
        "read_MB": (bytes_read() - read) // 10**6,
    }
    print(json.dumps(taken))


def plain_read() -> dict:
    """The whole checkpoint, read once from the disk in pieces of 16 MiB."""
    forget_file(CHECKPOINT)
    start, size = time.perf_counter(), 0
    for path in sorted(CHECKPOINT.glob("*.safetensors")):
        with open(path, "rb", buffering=0) as file:
            while piece := file.read(16 << 20):
                size += len(piece)
    return {"seconds": round(time.perf_counter() - start, 3), "read_MB": size // 10**6}


def forget_file(checkpoint: Path) -> None:
    """Drop the checkpoint from the page cache."""
    for path in checkpoint.glob("*.safetensors"):
        with open(path, "rb") as file:
            os.fsync(file.fileno())
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def bytes_read() -> int:
    """What this process has made the disk read."""
    fields = dict(line.split(": ") for line in Path("/proc/self/io").read_text().splitlines())
    return int(fields["read_bytes"])


def measure_weights(rounds: int) -> dict:
    results: dict[str, list[dict]] = {}
    references = {ranks: build(ranks, "float32") for ranks in (1, 2, 4)}
    for _ in range(rounds):
        results.setdefault("plain read", []).append(plain_read())
        for ranks, reference in references.items():
            for rank in range(ranks):
                command = [sys.executable, "-m", "benchmarks.ranks", "--load", reference, str(rank)]
                done = subprocess.run(command, check=True, cwd=ROOT, stdout=subprocess.PIPE, text=True)
                results.setdefault(f"TP {ranks}, rank {rank}", []).append(json.loads(done.stdout))
    return {name: min(taken, key=lambda one: one["seconds"]) for name, taken in results.items()}


def measure_steps(rounds: int) -> dict:
    sides = {ranks: build(ranks, "bfloat16") for ranks in (1, 2)}
    steps: dict[str, dict[str, list[float]]] = {name: {} for name in CASES}
    with Engine(sides[1]) as one, Engine(sides[2]) as two:
        for round_number in range(rounds + 1):
            for name, command in CASES.items():
                for side, engine in (("TP 1", one), ("TP 2", two)):
                    taken = engine.run(command)["step"]
                    if round_number:  # the first one fills caches
                        steps[name].setdefault(side, []).extend(taken)
    return {
        name: {
            side: {"median_ms": round(statistics.median(taken) * 1e3, 1), "least_ms": round(min(taken) * 1e3, 1)}
            for side, taken in sides.items()
        }
        for name, sides in steps.items()
    }


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.ranks", description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--load", nargs=2, metavar=("REFERENCE", "RANK"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.load:
        load(options.load[0], int(options.load[1]))
        return
    for name, measure in {"weights": measure_weights, "steps": measure_steps}.items():
        print(json.dumps({name: measure(options.rounds), "load": os.getloadavg()[0]}, indent=1), flush=True)


if __name__ == "__main__":
    main()
