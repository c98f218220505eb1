"""The runner: a scheduler's step in, programs executed, sampled tokens out (vLLM 0.32's V1 runner contract).

A request whose one scheduled token is its newest goes into the decode batch, any other becomes a prefill execution
of its own; so a step is served whatever mixture it is, though our scheduler never mixes.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from vllm.config import VllmConfig
from vllm.v1.core.sched.output import CachedRequestData, GrammarOutput, NewRequestData, SchedulerOutput
from vllm.v1.outputs import EMPTY_MODEL_RUNNER_OUTPUT, LogprobsLists, ModelRunnerOutput
from vllm.v1.worker.gpu_input_batch import CachedRequestState

from ..batch import Batcher, Slots, Step
from ..contract.manifest import Manifest
from ..device import Device
from ..loader import ProgramLoader
from .metrics import WorkerMetrics
from .requests import more_than_argmax
from .sampling import HostSampler, make_generator


@dataclass(slots=True)
class Sequence:
    """One request. ``state`` is vLLM's record of it, ``plain`` whether its next token is the argmax of its logits."""

    state: CachedRequestState
    slot: int | None
    num_tokens: int
    plain: bool


@dataclass(slots=True)
class PendingStep:
    """An executed step that waits for sampling. ``results``: logits [rows, vocab], or with a greedy bundle tokens."""

    scheduler_output: SchedulerOutput
    rows: list[Sequence]
    results: np.ndarray
    unfinished: list[str]


class ModelRunner:
    """Host side of every step.

    ``device`` has all params placed and the KV cache allocated; ``loader`` has, or gets, each program loaded.
    """

    def __init__(
        self,
        vllm_config: VllmConfig,
        manifest: Manifest,
        device: Device,
        metrics: WorkerMetrics,
        loader: ProgramLoader,
    ) -> None:
        self._device = device
        self._loader = loader
        self._metrics = metrics
        self._max_model_len = vllm_config.model_config.max_model_len
        self._slots = Slots(
            num_slots=vllm_config.scheduler_config.max_num_seqs,
            max_model_len=self._max_model_len,
            block_size=manifest.kv_cache.block_size,
        )
        self._batcher = Batcher(manifest, self._slots)
        self._greedy = any(output.name == "tokens" for output in manifest.programs[0].outputs)
        self._sampler = None if self._greedy else HostSampler(vllm_config, vocab_size=manifest.model.vocab_size)
        self._sequences: dict[str, Sequence] = {}
        self._pending: PendingStep | None = None

    def execute(self, step: SchedulerOutput) -> ModelRunnerOutput | None:
        """Run one step's programs. Returns None when :meth:`sample` must follow. Raises DeviceError."""
        computed = self._update(step)
        if not step.total_num_scheduled_tokens:
            return EMPTY_MODEL_RUNNER_OUTPUT
        decoding: list[Sequence] = []
        positions: list[int] = []
        prefills: list[tuple[Sequence, int, int]] = []
        for req_id, count in step.num_scheduled_tokens.items():
            sequence = self._sequences[req_id]
            if count == 1 and computed[req_id] + 1 == sequence.num_tokens:
                decoding.append(sequence)
                positions.append(computed[req_id])
            else:
                prefills.append((sequence, computed[req_id], count))
        rows, results, unfinished = decoding, [], []
        if decoding:
            slots = [sequence.slot for sequence in decoding]
            results.append(self._run(self._batcher.decode(slots, positions))[: len(decoding)])
        for sequence, num_computed, count in prefills:
            prefill = self._batcher.prefill(sequence.slot, num_computed=num_computed, num_tokens=count)
            result = self._run(prefill)
            if num_computed + count == sequence.num_tokens:
                rows.append(sequence)
                results.append(result)
            else:
                unfinished.append(sequence.state.req_id)
        joined = results[0] if len(results) == 1 else np.concatenate(results) if results else np.empty(0)
        self._pending = PendingStep(step, rows, joined, unfinished)
        return None

    def sample(self, grammar_output: GrammarOutput | None) -> ModelRunnerOutput:
        """The tokens of the step that :meth:`execute` ran."""
        pending, self._pending = self._pending, None
        assert pending is not None, "sample() without a preceding execute()"
        logprobs = None
        if not pending.rows:
            tokens = []
        elif self._greedy:
            tokens = pending.results.tolist()
        else:
            tokens, logprobs = self._sample_on_host(pending, grammar_output)
        for sequence, token in zip(pending.rows, tokens, strict=True):
            sequence.state.output_token_ids.append(token)
            if sequence.num_tokens < self._max_model_len:
                self._slots.tokens_SL[sequence.slot, sequence.num_tokens] = token
            sequence.num_tokens += 1
        # Logprob rows are found by a request's index: sampled requests come first.
        req_ids = [sequence.state.req_id for sequence in pending.rows] + pending.unfinished
        return ModelRunnerOutput(
            req_ids=req_ids,
            req_id_to_index={req_id: index for index, req_id in enumerate(req_ids)},
            sampled_token_ids=[[token] for token in tokens] + [[] for _ in pending.unfinished],
            logprobs=logprobs,
        )

    def _sample_on_host(
        self, pending: PendingStep, grammar_output: GrammarOutput | None
    ) -> tuple[list[int], LogprobsLists | None]:
        if grammar_output is None and all(sequence.plain for sequence in pending.rows):
            # What vLLM's sampler does for such a batch, without its bookkeeping. numpy's argmax, because torch's
            # takes thirty times as long; both take the first of equal logits.
            return pending.results.argmax(axis=-1).tolist(), None
        logits = torch.from_numpy(_writable(pending.results))
        states = [sequence.state for sequence in pending.rows]
        return self._sampler.sample(states, logits, pending.scheduler_output, grammar_output)

    def _run(self, step: Step) -> np.ndarray:
        name = step.program.name
        with self._loader.use(name):
            outputs = self._device.execute(name, step.inputs)
        self._metrics.executed(name, step.padding)
        return outputs["tokens" if self._greedy else "logits"]

    # Keeping up with the scheduler

    def _update(self, step: SchedulerOutput) -> dict[str, int]:
        """Take over what changed since the last step. Returns each scheduled request's number of computed tokens."""
        self._forget(step.finished_req_ids)
        for req_id in step.preempted_req_ids or ():
            # A preempted request may stay away for long, and its slot is for those that run.
            if (sequence := self._sequences.get(req_id)) is not None:
                self._release(sequence)
        computed = {}
        for new in step.scheduled_new_reqs:
            self._add(new)
            computed[new.req_id] = new.num_computed_tokens
        cached = step.scheduled_cached_reqs
        for index, req_id in enumerate(cached.req_ids):
            computed[req_id] = cached.num_computed_tokens[index]
            blocks = cached.new_block_ids[index]
            if req_id in cached.resumed_req_ids:
                self._resume(req_id, cached, blocks)
            elif blocks is not None:
                self._slots.append_blocks(self._sequences[req_id].slot, blocks[0])
        return computed

    def _add(self, new: NewRequestData) -> None:
        self._forget((new.req_id,))  # the next input of a streaming session comes as a new request
        params = new.sampling_params
        prompt = new.prompt_token_ids
        slot = self._slots.take()
        self._slots.set_tokens(slot, prompt)
        self._slots.set_blocks(slot, new.block_ids[0])
        state = CachedRequestState(
            req_id=new.req_id,
            prompt_token_ids=prompt,
            mm_features=[],
            sampling_params=params,
            generator=make_generator(params),
            block_ids=([],),
            num_computed_tokens=new.num_computed_tokens,
            output_token_ids=[],
        )
        custom = self._sampler is not None and self._sampler.has_custom_processors
        plain = not custom and more_than_argmax(params) is None
        self._sequences[new.req_id] = Sequence(state, slot, len(prompt), plain)

    def _resume(self, req_id: str, cached: CachedRequestData, blocks: tuple[list[int], ...]) -> None:
        """A preempted request is back: its blocks are all new, and its tokens what the scheduler says."""
        sequence = self._sequences[req_id]
        self._release(sequence)
        sequence.slot = self._slots.take()
        tokens = cached.all_token_ids[req_id]
        # In place: the sampler's batch holds this list.
        sequence.state.output_token_ids[:] = tokens[sequence.state.num_prompt_tokens :]
        sequence.num_tokens = len(tokens)
        self._slots.set_tokens(sequence.slot, tokens)
        self._slots.set_blocks(sequence.slot, blocks[0])

    def _forget(self, req_ids) -> None:
        gone = [req_id for req_id in req_ids if req_id in self._sequences]
        for req_id in gone:
            self._release(self._sequences.pop(req_id))
        if gone and self._sampler is not None:
            self._sampler.forget(gone)

    def _release(self, sequence: Sequence) -> None:
        if sequence.slot is not None:
            self._slots.release(sequence.slot)
            sequence.slot = None


def _writable(array: np.ndarray) -> np.ndarray:
    # Samplers work in place, and torch refuses to alias memory that it must not write.
    return array if array.flags.writeable else array.copy()
