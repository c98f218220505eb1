"""Engine steps of ours and of stock vLLM, in turns on the same cores, on the same shapes."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from typing import Self

from .noise import Watch, quiet_rounds
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
        log = (CACHE / f"steps-{side.rpartition('/')[2]}.log").open("w")
        self._process = subprocess.Popen(
            [sys.executable, "-m", "benchmarks.stepper", side], cwd=ROOT, pass_fds=[write], stdin=subprocess.PIPE,
            stdout=log, stderr=log, text=True, start_new_session=True,
            env=environment(side) | {"STEPPER_FD": str(write), "VLLM_ENABLE_V1_MULTIPROCESSING": "0"},
        )  # fmt: skip
        os.close(write)
        self.pid = self._process.pid
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
    with Engine("ours") as ours, Engine("stock") as stock:
        engines = {"ours": ours, "stock": stock}

        def one_round() -> tuple[dict, float]:
            watch = Watch(ours.pid, stock.pid)
            taken = {
                name: {side: engine.run(command) for side, engine in engines.items()} for name, command in CASES.items()
            }
            say("steps, ours/stock: " + ", ".join(
                f"{name} {min(sides['ours']['step']) * 1e3:.1f}/{min(sides['stock']['step']) * 1e3:.1f} ms"
                for name, sides in taken.items()
            ))  # fmt: skip
            return taken, watch.others()

        one_round()  # programs load, caches fill
        kept, noise = quiet_rounds(rounds, one_round, say)
    return {"noise": noise, "cases": {name: _case([taken[name] for taken in kept]) for name in CASES}}


def _case(rounds: list[dict]) -> dict:
    step = {side: [seconds for taken in rounds for seconds in taken[side]["step"]] for side in ("ours", "stock")}
    program = [seconds for taken in rounds for seconds in taken["ours"]["program"]]
    host = [whole - inside for whole, inside in zip(step["ours"], program, strict=True)]
    return {side: summary(values) for side, values in step.items()} | {"ours_host": summary(host)}


def stock_warm_up(*, cold: bool) -> float:
    """Seconds of stock vLLM's torch.compile warm-up; ``cold`` without anything in its caches."""
    if cold:
        shutil.rmtree(CACHE / "stock", ignore_errors=True)
    with Engine("stock") as engine:
        return engine.started["warm_up"]
