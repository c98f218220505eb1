"""The traffic planner: bucket lists that serve recorded requests with the least padded work, within limits."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from neuron_aot_runtime.contract.buckets import decode_grid, prefill_grid, round_up
from neuron_aot_runtime.contract.errors import UsageError
from neuron_aot_runtime.contract.manifest import Bucket
from neuron_aot_runtime.contract.rules import CONTEXT_MULTIPLE
from neuron_aot_runtime.contract.serving import ServingConfig

from ..program import ModelLayout
from .bounds import device_bytes
from .choice import Buckets, Score, TrafficPlan
from .cost import Cost, Speed, model_cost
from .decode import DecodeChoice, DecodePlanner
from .limits import GIB, PlanLimits, Price, Pricing, Taken, tell
from .occupancy import Limits, Occupancy, needed_replicas, simulate
from .optimize import Pieces, choose_prefill, prefill_work, prompt_pieces, rounded_contexts, token_padding
from .traffic import Traffic
from .usage import ProgramUse, program_uses

#: Context buckets below max_model_len, when nothing else limits them.
MAX_CONTEXT_BUCKETS = 3
#: Programs that together save less than this share of the work are not worth compiling.
WORTH = 0.001


@dataclass(frozen=True)
class _Choice:
    buckets: Buckets
    work: float
    taken: Taken


class TrafficPlanner:
    """Plans for one serving configuration, whose bucket lists are today's default. Raises UsageError.

    ``layout``: of one rank, its KV cache sized; ``price``: of each program.
    """

    def __init__(
        self,
        serving: ServingConfig,
        layout: ModelLayout,
        model_config: Mapping[str, Any],
        speed: Speed,
        limits: PlanLimits,
        price: Pricing,
    ) -> None:
        if serving.neuron_config.kv_segment_size_buckets is not None:
            raise UsageError(
                "there are no prefill buckets to choose: kv_segment_size_buckets sets them",
                next_command="remove neuron_config.kv_segment_size_buckets from the recipe",
            )
        self._serving = serving
        self._cost = model_cost(layout, model_config)
        self._speed = speed
        self._limits = limits
        self._held_bytes = sum(device_bytes(layout).values())
        self._price = price
        self._prices: dict[tuple[str, Bucket], Price] = {}
        self._unit = max(CONTEXT_MULTIPLE, serving.block_size)
        self._prefill_contexts_C = rounded_contexts(serving.prefill_contexts(), serving.block_size)
        neuron = serving.neuron_config
        self._default = Buckets(neuron.num_batched_tokens_buckets, neuron.num_seqs_buckets, ())

    def plan(self, traffic: Traffic) -> TrafficPlan:
        """Choose from all of ``traffic``; and from its first half, to be scored on its second."""
        replicas = self._limits.replicas or needed_replicas(traffic, *self._scheduling())
        occupancy = self._simulate(traffic, replicas)
        chosen, unlimited = self._choose(traffic, occupancy)
        binding = self._limits.exceeded(unlimited.taken)
        held_out = None
        if len(traffic) >= 4:
            first, second = traffic.halves()
            later = self._simulate(second, replicas)
            earlier, _ = self._choose(first, self._simulate(first, replicas))
            held_out = tuple(self._score(buckets, second, later) for buckets in (self._default, earlier.buckets))
        return TrafficPlan(
            default=self._score(self._default, traffic, occupancy),
            chosen=self._score(chosen.buckets, traffic, occupancy),
            uses=self._uses(chosen.buckets, traffic, occupancy),
            unlimited=self._score(unlimited.buckets, traffic, occupancy) if binding else None,
            binding=binding,
            occupancy=occupancy,
            least_decode_work=self._decode(occupancy).least_work(),
            held_out=held_out,
        )

    def _choose(self, traffic: Traffic, occupancy: Occupancy) -> tuple[_Choice, _Choice]:
        """The choice, and the one without limits: the split between prefill buckets, batches and contexts with the
        fewest programs among the cheapest."""
        serving, limits = self._serving, self._limits
        most_prefill = limits.max_prefill_buckets or len(self._default.num_batched_tokens_buckets)
        pieces, terms = self._pieces(traffic), self._prefill_terms()
        prefill = choose_prefill(pieces, serving.max_num_batched_tokens, most_prefill, **terms)
        prefill_costs = [prefill_work(pieces, buckets, **terms) for buckets in prefill]
        decode = self._decode(occupancy)
        splits = [
            (batches, contexts)
            for batches in range(1, len(self._default.num_seqs_buckets) + 1)
            for contexts in range(MAX_CONTEXT_BUCKETS + 1)
        ]
        choices = [decode.choose(*split) for split in splits]
        if not occupancy.sequence_steps:  # nothing was decoded, so nothing is known against the default
            choices = [DecodeChoice(self._default.num_seqs_buckets, (), 0.0)]
        made = [
            _Choice(
                buckets := Buckets(tokens, choice.batches, choice.contexts), work + choice.work, self._take(buckets)
            )
            for tokens, work in zip(prefill, prefill_costs, strict=True)
            for choice in choices
        ]
        allowed = [choice for choice in made if not limits.exceeded(choice.taken)]
        if not allowed:
            raise self._too_tight(min(made, key=lambda choice: choice.taken.programs).taken)
        return _cheapest(allowed), _cheapest(made)

    def _too_tight(self, least: Taken) -> UsageError:
        broken = self._limits.exceeded(least)
        return UsageError(
            f"no choice of buckets keeps to {' and '.join(map(self._limits.told, broken))}",
            wanted=" and ".join(f"{tell(option, least.of(option))} or more" for option in broken),
            found=f"{least.programs} programs at the least: {least.seconds / 60:.2f} minutes with {self._limits.jobs} jobs, "
            f"{least.hbm_bytes / GIB:.2f} GiB of which weights and KV cache take {self._held_bytes / GIB:.2f}",
            next_command=f"raise {' and '.join(broken)}"
            + ("; or lower num_gpu_blocks_override, or raise tensor_parallel_size" if "--max-hbm" in broken else ""),
        )

    def _score(self, buckets: Buckets, traffic: Traffic, occupancy: Occupancy) -> Score:
        pieces = self._pieces(traffic)
        decode = self._decode(occupancy)
        contexts = (*buckets.decode_context_length_buckets, self._longest)
        return Score(
            buckets=buckets,
            taken=self._take(buckets),
            padding={
                "num_batched_tokens_buckets": token_padding(pieces, buckets.num_batched_tokens_buckets),
                "num_seqs_buckets": decode.batch_padding(buckets.num_seqs_buckets),
                "decode_context_length_buckets": decode.context_padding(contexts, occupancy.context_tokens),
            },
            prefill_work=prefill_work(pieces, buckets.num_batched_tokens_buckets, **self._prefill_terms()),
            decode_work=decode.work(buckets.num_seqs_buckets, contexts),
        )

    def _programs(self, buckets: Buckets) -> list[tuple[str, Bucket]]:
        serving = self._serving
        prefill = prefill_grid(
            buckets.num_batched_tokens_buckets, serving.prefill_contexts(), serving.max_model_len, serving.block_size
        )
        contexts = (*buckets.decode_context_length_buckets, serving.max_model_len)
        decode = decode_grid(buckets.num_seqs_buckets, contexts, serving.block_size)
        return [*(("prefill", bucket) for bucket in prefill), *(("decode", bucket) for bucket in decode)]

    def _take(self, buckets: Buckets) -> Taken:
        prices = [self._priced(program) for program in self._programs(buckets)]
        return Taken(
            programs=len(prices),
            seconds=self._limits.compile_seconds(prices),
            hbm_bytes=self._held_bytes + sum(price.nbytes for price in prices),
        )

    def _priced(self, program: tuple[str, Bucket]) -> Price:
        if program not in self._prices:
            self._prices[program] = self._price(*program)
        return self._prices[program]

    def _uses(self, buckets: Buckets, traffic: Traffic, occupancy: Occupancy) -> tuple[ProgramUse, ...]:
        seconds = {program: self._priced(program).seconds for program in self._programs(buckets)}
        place = {"block_size": self._serving.block_size, "longest": self._longest}
        return tuple(program_uses(seconds, self._pieces(traffic), self._prefill_contexts_C, occupancy, **place))

    def _pieces(self, traffic: Traffic) -> Pieces:
        return prompt_pieces(traffic.prompts_R, self._serving.max_num_batched_tokens)

    def _simulate(self, traffic: Traffic, replicas: int) -> Occupancy:
        return simulate(traffic, *self._scheduling(), replicas=min(replicas, len(traffic)))

    def _scheduling(self) -> tuple[Cost, Speed, Limits, int]:
        serving = self._serving
        limits = Limits(
            max_num_seqs=serving.max_num_seqs,
            max_num_batched_tokens=serving.max_num_batched_tokens,
            max_model_len=serving.max_model_len,
            block_size=serving.block_size,
            num_blocks=serving.num_blocks - 1,
        )
        return self._cost, self._speed, limits, self._unit

    def _decode(self, occupancy: Occupancy) -> DecodePlanner:
        return DecodePlanner(occupancy, attention=self._attention, longest=self._longest)

    @property
    def _attention(self) -> float:
        return self._cost.attention / self._cost.linear

    @property
    def _longest(self) -> int:
        return round_up(self._serving.max_model_len, self._serving.block_size)

    def _prefill_terms(self) -> dict[str, float | int | np.ndarray]:
        return {
            "attention": self._attention,
            "contexts_C": self._prefill_contexts_C,
            "block_size": self._serving.block_size,
        }


def _cheapest(choices: list[_Choice]) -> _Choice:
    enough = min(choice.work for choice in choices) * (1 + WORTH)
    near = [choice for choice in choices if choice.work <= enough]
    return min(near, key=lambda choice: (choice.taken.programs, choice.work))
