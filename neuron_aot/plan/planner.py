"""The traffic planner: bucket lists that serve recorded requests with the least padded work, within limits."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from neuron_aot_runtime.contract.buckets import prefill_grid, round_up
from neuron_aot_runtime.contract.errors import UsageError
from neuron_aot_runtime.contract.rules import CONTEXT_MULTIPLE
from neuron_aot_runtime.contract.serving import ServingConfig

from ..program import ModelLayout
from .cost import Cost, Speed, model_cost
from .decode import DecodeChoice, DecodePlanner
from .occupancy import Limits, Occupancy, needed_replicas, simulate
from .optimize import choose_prefill, prefill_work, prompt_pieces, rounded_contexts, token_padding
from .traffic import Traffic

#: Context buckets below max_model_len, when nothing else limits them.
MAX_CONTEXT_BUCKETS = 3
#: Programs that together save less than this share of the work are not worth compiling.
WORTH = 0.001


@dataclass(frozen=True)
class Buckets:
    """Bucket lists under their names in neuron_config; contexts without the implicit max_model_len."""

    num_batched_tokens_buckets: tuple[int, ...]
    num_seqs_buckets: tuple[int, ...]
    decode_context_length_buckets: tuple[int, ...]

    def as_neuron_config(self) -> dict[str, list[int] | None]:
        """As a recipe has it."""
        return {name: list(sizes) or None for name, sizes in vars(self).items()}


@dataclass(frozen=True)
class Score:
    """What ``buckets`` cost for some traffic. Shares of the real: prompt tokens, decoded tokens, their context.

    ``prefill_work`` and ``decode_work``: in units of one token's linear work; padding included.
    """

    buckets: Buckets
    programs: int
    padding: dict[str, float]
    prefill_work: float
    decode_work: float

    @property
    def work(self) -> float:
        return self.prefill_work + self.decode_work


@dataclass(frozen=True, kw_only=True)
class PlanLimits:
    """``max_prefill_buckets``: token buckets; ``max_programs``: of both phases together; None: as the default has.

    ``replicas``: servers that share the traffic; None: as many as keep up with it.
    """

    max_prefill_buckets: int | None = None
    max_programs: int | None = None
    replicas: int | None = None


@dataclass(frozen=True, kw_only=True)
class TrafficPlan:
    """``default``: powers of two. ``least_decode_work``: below any choice.

    ``held_out``: (default, chosen) planned from the first half of the requests, scored on the second; None for few.
    """

    default: Score
    chosen: Score
    occupancy: Occupancy
    least_decode_work: float
    held_out: tuple[Score, Score] | None


class TrafficPlanner:
    """Plans for one serving configuration, whose bucket lists are today's default. Raises UsageError."""

    def __init__(
        self,
        serving: ServingConfig,
        layout: ModelLayout,
        model_config: Mapping[str, Any],
        speed: Speed,
        limits: PlanLimits,
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
        self._unit = max(CONTEXT_MULTIPLE, serving.block_size)
        self._prefill_contexts_C = rounded_contexts(serving.prefill_contexts(), serving.block_size)
        neuron = serving.neuron_config
        self._default = Buckets(neuron.num_batched_tokens_buckets, neuron.num_seqs_buckets, ())

    def plan(self, traffic: Traffic) -> TrafficPlan:
        """Choose from all of ``traffic``; and from its first half, to be scored on its second."""
        replicas = self._limits.replicas or needed_replicas(traffic, *self._scheduling())
        occupancy = self._simulate(traffic, replicas)
        chosen = self._choose(traffic, occupancy)
        held_out = None
        if len(traffic) >= 4:
            first, second = traffic.halves()
            later = self._simulate(second, replicas)
            buckets = self._choose(first, self._simulate(first, replicas))
            held_out = (self._score(self._default, second, later), self._score(buckets, second, later))
        return TrafficPlan(
            default=self._score(self._default, traffic, occupancy),
            chosen=self._score(chosen, traffic, occupancy),
            occupancy=occupancy,
            least_decode_work=self._decode(occupancy).least_work(),
            held_out=held_out,
        )

    def _choose(self, traffic: Traffic, occupancy: Occupancy) -> Buckets:
        """The split between prefill buckets, batches and contexts with the fewest programs among the cheapest."""
        serving, limits = self._serving, self._limits
        most_prefill = limits.max_prefill_buckets or len(self._default.num_batched_tokens_buckets)
        pieces = prompt_pieces(traffic.prompts_R, serving.max_num_batched_tokens)
        prefill = choose_prefill(
            pieces, serving.max_num_batched_tokens, most_prefill, **self._prefill_terms()
        )  # fmt: skip
        prefill_costs = [prefill_work(pieces, buckets, **self._prefill_terms()) for buckets in prefill]
        decode = self._decode(occupancy)
        splits = [
            (batches, contexts)
            for batches in range(1, len(self._default.num_seqs_buckets) + 1)
            for contexts in range(MAX_CONTEXT_BUCKETS + 1)
        ]
        choices = [decode.choose(*split) for split in splits]
        if not occupancy.sequence_steps:  # nothing was decoded, so nothing is known against the default
            choices = [DecodeChoice(self._default.num_seqs_buckets, (), 0.0)]
        allowed = [
            (work + choice.work, programs, made)
            for buckets, work in zip(prefill, prefill_costs, strict=True)
            for choice in choices
            if (programs := self._programs(made := Buckets(buckets, choice.batches, choice.contexts)))
            <= (limits.max_programs or programs)
        ]
        if not allowed:
            fewest = self._programs(Buckets(prefill[0], (serving.max_num_seqs,), ()))
            raise UsageError(
                f"{limits.max_programs} programs are too few for this configuration",
                wanted=f"--max-programs {fewest} or more",
                found=str(limits.max_programs),
                next_command="raise --max-programs",
            )
        enough = min(work for work, _, _ in allowed) * (1 + WORTH)
        return min((item for item in allowed if item[0] <= enough), key=lambda item: (item[1], item[0]))[2]

    def _score(self, buckets: Buckets, traffic: Traffic, occupancy: Occupancy) -> Score:
        pieces = prompt_pieces(traffic.prompts_R, self._serving.max_num_batched_tokens)
        decode = self._decode(occupancy)
        contexts = (*buckets.decode_context_length_buckets, self._longest)
        return Score(
            buckets=buckets,
            programs=self._programs(buckets),
            padding={
                "num_batched_tokens_buckets": token_padding(pieces, buckets.num_batched_tokens_buckets),
                "num_seqs_buckets": decode.batch_padding(buckets.num_seqs_buckets),
                "decode_context_length_buckets": decode.context_padding(contexts, occupancy.context_tokens),
            },
            prefill_work=prefill_work(pieces, buckets.num_batched_tokens_buckets, **self._prefill_terms()),
            decode_work=decode.work(buckets.num_seqs_buckets, contexts),
        )

    def _programs(self, buckets: Buckets) -> int:
        serving = self._serving
        prefill = prefill_grid(
            buckets.num_batched_tokens_buckets, serving.prefill_contexts(), serving.max_model_len, serving.block_size
        )
        return len(prefill) + len(buckets.num_seqs_buckets) * (len(buckets.decode_context_length_buckets) + 1)

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
