"""One engine in its own process, stepped on command: python -m benchmarks.stepper SIDE.

Reads one JSON command a line on stdin and answers one JSON line on the file descriptor named in STEPPER_FD. Between
commands it is idle, so the sides can take turns on the same cores.

    {"do": "decode", "batch": 4, "context": 480, "steps": 24}  -> {"step": [...], "program": [...]}
    {"do": "prefill", "tokens": 128, "times": 4}               -> {"step": [...], "program": [...]}

``step`` is the time of an engine step, from scheduling to detokenized output; ``program`` (ours only) is the part of
it inside the device's ``execute``.
"""

from __future__ import annotations

import json
import os
import random
import sys
import time

from .sides import engine_arguments


class Stepper:
    def __init__(self, side: str) -> None:
        self.warm_up_seconds = 0.0
        if side.startswith("stock"):
            self._time_stock_warm_up()
        from vllm import LLM

        start = time.perf_counter()
        self._engine = LLM(**engine_arguments(side)).llm_engine
        self.start_seconds = time.perf_counter() - start
        self._in_program = 0.0
        if side == "ours":
            self._time_programs()
        self._random = random.Random(0)
        self._requests = 0

    def decode(self, batch: int, context: int, steps: int) -> dict:
        """``steps`` steps of a full batch whose contexts end at about ``context`` tokens."""
        spare = 4
        for _ in range(batch):
            self._add(context - steps - spare, steps + 2 * spare)
        # Sequences join one by one while they are prefilled; count only steps in which every one decodes.
        lengths, taken, program = {}, [], []
        while self._engine.has_unfinished_requests():
            step, inside, outputs = self._step()
            before = dict(lengths)
            lengths |= {output.request_id: len(output.outputs[0].token_ids) for output in outputs}
            full = len(before) == batch and all(lengths[name] == count + 1 for name, count in before.items())
            if full and not any(output.finished for output in outputs):
                taken.append(step)
                program.append(inside)
        return {"step": taken[1:], "program": program[1:]}

    def prefill(self, tokens: int, times: int) -> dict:
        """The step that prefills a prompt of ``tokens`` tokens."""
        taken, program = [], []
        for _ in range(times):
            self._add(tokens, 1)
            step, inside, _ = self._step()
            taken.append(step)
            program.append(inside)
            while self._engine.has_unfinished_requests():
                self._engine.step()
        return {"step": taken, "program": program}

    def _step(self):
        self._in_program = 0.0
        start = time.perf_counter()
        outputs = self._engine.step()
        return time.perf_counter() - start, self._in_program, outputs

    def _add(self, tokens: int, new_tokens: int) -> None:
        from vllm import SamplingParams

        # Never the same prompt twice, so no prefix is found in the cache.
        prompt = {"prompt_token_ids": [self._random.randrange(100, 40000) for _ in range(tokens)]}
        self._requests += 1
        params = SamplingParams(max_tokens=new_tokens, temperature=0.0, ignore_eos=True)
        self._engine.add_request(str(self._requests), prompt, params)

    def _time_stock_warm_up(self) -> None:
        from vllm.v1.worker.cpu_model_runner import CPUModelRunner

        original = CPUModelRunner.warming_up_model

        def timed(runner):
            start = time.perf_counter()
            original(runner)
            self.warm_up_seconds += time.perf_counter() - start

        CPUModelRunner.warming_up_model = timed

    def _time_programs(self) -> None:
        worker = self._engine.engine_core.engine_core.model_executor.driver_worker.worker
        device = worker._device
        original = device.execute

        def timed(name, inputs):
            start = time.perf_counter()
            try:
                return original(name, inputs)
            finally:
                self._in_program += time.perf_counter() - start

        device.execute = timed


def main() -> None:
    answers = os.fdopen(int(os.environ["STEPPER_FD"]), "w")
    stepper = Stepper(sys.argv[1])

    def answer(content: dict) -> None:
        print(json.dumps(content), file=answers, flush=True)

    answer({"start": stepper.start_seconds, "warm_up": stepper.warm_up_seconds})
    for line in sys.stdin:
        command = json.loads(line)
        answer(getattr(stepper, command.pop("do"))(**command))


if __name__ == "__main__":
    main()
