"""How full decode batches get, and how long their contexts: the phased scheduler, simulated over real arrivals.

The policy is that of ``neuron_aot_runtime/vllm/scheduler.py``: a step is prefill or decode, never both; while both
wait they take turns; a prefill step takes up to ``max_num_batched_tokens`` of the oldest prompts. Between two events
(an arrival, an end, a turn) all decode steps are alike, so they are counted in one stride: the time a simulation takes
follows the requests, not the tokens.

Simpler than the real one: a request is admitted when blocks for all of its tokens are free, so nothing is preempted;
no prefix is shared; a step takes as long as its unpadded work, bound by compute or by memory.
"""

from __future__ import annotations

import heapq
from collections import deque
from dataclasses import dataclass

import numpy as np

from .cost import Cost, Speed
from .traffic import Traffic

TARGET_LOAD = 0.7
_HIGHEST_LOAD = 0.9
_ADJUSTMENTS = 4


@dataclass(frozen=True, eq=False)
class Occupancy:
    """Decode steps by batch and longest context.

    ``steps_BU[b, u]``: steps of ``b`` sequences whose longest context is in ((u - 1) * unit, u * unit] tokens.
    ``context_tokens``: the sum over steps and sequences of each one's own context. ``busy_seconds`` of ``seconds``
    the devices of all replicas work, in the mean.
    """

    steps_BU: np.ndarray
    unit: int
    context_tokens: int
    seconds: float
    busy_seconds: float
    replicas: int = 1

    @property
    def sequence_steps(self) -> int:
        """Tokens decoded."""
        return int(self.steps_BU.sum(axis=1) @ np.arange(len(self.steps_BU)))

    @property
    def mean_batch(self) -> float:
        """Sequences in a decode step, on average; 0 without any step."""
        return self.sequence_steps / max(int(self.steps_BU.sum()), 1)


@dataclass(frozen=True, kw_only=True)
class Limits:
    """The scheduler's limits, under vLLM's names; ``num_blocks`` usable (the null block is none)."""

    max_num_seqs: int
    max_num_batched_tokens: int
    max_model_len: int
    block_size: int
    num_blocks: int


def simulate(traffic: Traffic, cost: Cost, speed: Speed, limits: Limits, unit: int, *, replicas: int = 1) -> Occupancy:
    """Run ``traffic`` through ``replicas`` servers that take the requests in turn; the sum of their steps.

    ``unit`` tokens is the resolution of contexts.
    """
    parts = [_Simulation(traffic.share(part, replicas), cost, speed, limits, unit).run() for part in range(replicas)]
    return Occupancy(
        steps_BU=sum(part.steps_BU for part in parts),
        unit=unit,
        context_tokens=sum(part.context_tokens for part in parts),
        seconds=max(part.seconds for part in parts),
        busy_seconds=sum(part.busy_seconds for part in parts) / replicas,
        replicas=replicas,
    )


def needed_replicas(traffic: Traffic, cost: Cost, speed: Speed, limits: Limits, unit: int) -> int:
    """How many servers keep up with ``traffic``, each working about TARGET_LOAD of the time.

    The batches of a server that is hopelessly late are always full, and say nothing about one that is deployed.
    """
    replicas = 1
    for _ in range(_ADJUSTMENTS):
        busy = simulate(traffic, cost, speed, limits, unit, replicas=replicas).busy_seconds
        load = busy / traffic.seconds if traffic.seconds else 0.0
        if load <= _HIGHEST_LOAD:
            break
        replicas = min(int(np.ceil(replicas * load / TARGET_LOAD)), len(traffic))
    return replicas


class _Simulation:
    def __init__(self, traffic: Traffic, cost: Cost, speed: Speed, limits: Limits, unit: int) -> None:
        self.cost, self.speed, self.limits, self.unit = cost, speed, limits, unit
        self.arrivals, self.prompts, self.outputs = (
            values.tolist() for values in (traffic.arrivals_R, traffic.prompts_R, traffic.outputs_R)
        )
        units = -(-limits.max_model_len // unit)
        self.steps_BU = np.zeros((limits.max_num_seqs + 1, units + 1), np.int64)
        self.now = self.busy = 0.0
        self.clock = 0  # decode steps so far; every running request moves with it
        self.context_tokens = 0
        self.waiting: deque[int] = deque()
        self.prefilling: deque[list[int]] = deque()  # [request, tokens done]
        self.ends: list[tuple[int, int]] = []  # (clock at the end, request) of the decoding requests
        self.offsets: dict[int, int] = {}  # request -> its context less the clock
        self.offset_sum = 0
        self.free_blocks = limits.num_blocks

    def run(self) -> Occupancy:
        arrived, prefilled_last = 0, False
        while True:
            while arrived < len(self.arrivals) and self.arrivals[arrived] <= self.now:
                self.waiting.append(arrived)
                arrived += 1
            if not (self.waiting or self.prefilling or self.ends):
                if arrived == len(self.arrivals):
                    break
                self.now = self.arrivals[arrived]
                continue
            if (not self.ends or not prefilled_last) and self._prefill():
                prefilled_last = True
                continue
            prefilled_last = False
            self._decode(self._stride(self.arrivals[arrived] if arrived < len(self.arrivals) else None))
        return Occupancy(self.steps_BU, self.unit, self.context_tokens, self.now, self.busy)

    def _prefill(self) -> bool:
        """One prefill step; False when there is nothing to prefill now."""
        budget = self.limits.max_num_batched_tokens
        while budget and (piece := self._next_prompt()):
            request, done = piece
            tokens = min(budget, self.prompts[request] - done)
            budget -= tokens
            self._spend(tokens * self.cost.rows(done + tokens), self.cost.weight_bytes)
            piece[1] += tokens
            if piece[1] == self.prompts[request]:
                self.prefilling.popleft()
                self._start_decoding(request)
        return budget < self.limits.max_num_batched_tokens

    def _next_prompt(self) -> list[int] | None:
        if not self.prefilling and self.waiting and len(self.ends) < self.limits.max_num_seqs:
            need = self._blocks(self.waiting[0])
            if need <= self.free_blocks:
                self.free_blocks -= need
                self.prefilling.append([self.waiting.popleft(), 0])
        return self.prefilling[0] if self.prefilling else None

    def _start_decoding(self, request: int) -> None:
        # The prefill gave the first token; each decode step reads one token more of context.
        steps = min(self.outputs[request], self.limits.max_model_len - self.prompts[request]) - 1
        if steps <= 0:
            self.free_blocks += self._blocks(request)
            return
        heapq.heappush(self.ends, (self.clock + steps, request))
        self.offsets[request] = self.prompts[request] + 1 - self.clock
        self.offset_sum += self.offsets[request]

    def _stride(self, next_arrival: float | None) -> int:
        """How many decode steps follow before anything changes."""
        steps = self.ends[0][0] - self.clock
        if self.prefilling or (self.waiting and len(self.ends) < self.limits.max_num_seqs):
            admissible = self.prefilling or self._blocks(self.waiting[0]) <= self.free_blocks
            return 1 if admissible else steps
        if next_arrival is not None and not self.waiting and len(self.ends) < self.limits.max_num_seqs:
            steps = min(steps, max(1, int(np.ceil((next_arrival - self.now) / self._step_seconds(1)))))
        return steps

    def _decode(self, steps: int) -> None:
        batch = len(self.ends)
        longest = max(self.offsets.values()) + self.clock
        seconds = self._step_seconds(steps) * steps
        self.now += seconds
        self.busy += seconds
        self.context_tokens += steps * (self.offset_sum + batch * self.clock) + batch * steps * (steps - 1) // 2
        first, last = -(-longest // self.unit), -(-(longest + steps - 1) // self.unit)
        for unit in range(first, last + 1):
            begin = max(longest, (unit - 1) * self.unit + 1)
            end = min(longest + steps - 1, unit * self.unit)
            self.steps_BU[batch, unit] += end - begin + 1
        self.clock += steps
        while self.ends and self.ends[0][0] <= self.clock:
            _, request = heapq.heappop(self.ends)
            self.offset_sum -= self.offsets.pop(request)
            self.free_blocks += self._blocks(request)

    def _step_seconds(self, steps: int) -> float:
        """Mean seconds of each of the next ``steps`` decode steps."""
        batch = len(self.ends)
        context = self.offset_sum + batch * (self.clock + (steps - 1) / 2)
        flops = batch * self.cost.linear + self.cost.attention * context
        return max(
            flops / self.speed.flops, (self.cost.weight_bytes + self.cost.kv_bytes * context) / self.speed.bandwidth
        )

    def _spend(self, flops: float, nbytes: float) -> None:
        seconds = max(flops / self.speed.flops, nbytes / self.speed.bandwidth)
        self.now += seconds
        self.busy += seconds

    def _blocks(self, request: int) -> int:
        tokens = min(self.prompts[request] + self.outputs[request], self.limits.max_model_len)
        return -(-tokens // self.limits.block_size)
