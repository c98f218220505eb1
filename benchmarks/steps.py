"""Engine steps of ours and of stock vLLM, in turns on the same cores, on the same shapes."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from typing import Self

from .sides import CACHE, ROOT, environment
from .statistics import summary

CASES = {
    "decode, batch 1": {"do": "decode", "batch": 1, "context": 480, "steps": 24},
    "decode, batch 4": {"do": "decode", "batch": 4, "context": 480, "steps": 24},
    "decode, batch 8": {"do": "decode", "batch": 8, "context": 480, "steps": 24},
    "prefill, 128 tokens": {"do": "prefill", "tokens": 128, "times": 4},
}


class Engine:
    """A stepper process; see stepper.py."""

    def __init__(self, side: str) -> None:
        CACHE.mkdir(parents=True, exist_ok=True)
        read, write = os.pipe()
        log = (CACHE / f"steps-{side}.log").open("w")
        self._process = subprocess.Popen(
            [sys.executable, "-m", "benchmarks.stepper", side], cwd=ROOT, pass_fds=[write], stdin=subprocess.PIPE,
            stdout=log, stderr=log, text=True,
            env=environment(side) | {"STEPPER_FD": str(write), "VLLM_ENABLE_V1_MULTIPROCESSING": "0"},
        )  # fmt: skip
        os.close(write)
        self._answers = os.fdopen(read)
        self.started = self._answer()

    def run(self, command: dict) -> dict:
        print(json.dumps(command), file=self._process.stdin, flush=True)
        return self._answer()

    def _answer(self) -> dict:
        line = self._answers.readline()
        if not line:
            raise RuntimeError(f"the engine ended; see {CACHE}/steps-*.log")
        return json.loads(line)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_) -> None:
        self._process.stdin.close()
        try:
            self._process.wait(timeout=30)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


def measure(rounds: int, say) -> dict:
    """For every case, seconds per step of both sides; for ours also the host's share of it."""
    step = {side: {name: [] for name in CASES} for side in ("ours", "stock")}
    host = {name: [] for name in CASES}
    with Engine("ours") as ours, Engine("stock") as stock:
        engines = {"ours": ours, "stock": stock}
        for number in range(rounds + 1):
            for name, command in CASES.items():
                for side, engine in engines.items():
                    taken = engine.run(command)
                    if number == 0:
                        continue  # programs load, caches fill
                    step[side][name] += taken["step"]
                    if side == "ours":
                        host[name] += [a - b for a, b in zip(taken["step"], taken["program"], strict=True)]
            if number:
                say(f"steps, round {number}: " + ", ".join(
                    f"{name} {min(step['ours'][name]) * 1e3:.1f}/{min(step['stock'][name]) * 1e3:.1f} ms" for name in CASES
                ))  # fmt: skip
    return {
        name: {side: summary(step[side][name]) for side in step} | {"ours_host": summary(host[name])} for name in CASES
    }


def stock_warm_up(*, cold: bool) -> float:
    """Seconds of stock vLLM's torch.compile warm-up; ``cold`` without anything in its caches."""
    if cold:
        shutil.rmtree(CACHE / "stock", ignore_errors=True)
    with Engine("stock") as engine:
        return engine.started["warm_up"]
