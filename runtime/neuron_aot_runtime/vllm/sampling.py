"""Sampling on the host: vLLM's own sampler and its batch of per-request state, kept to the rows of each step.

A step whose every row is plain greedy never comes here (see runner.py), so the batch is brought up to date only when
a row needs it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import torch
from vllm.config import VllmConfig
from vllm.sampling_params import SamplingParams, SamplingType
from vllm.v1.core.sched.output import GrammarOutput, SchedulerOutput
from vllm.v1.outputs import LogprobsLists
from vllm.v1.sample.logits_processor import build_logitsprocs
from vllm.v1.sample.sampler import Sampler
from vllm.v1.structured_output.utils import apply_grammar_bitmask
from vllm.v1.worker.gpu_input_batch import CachedRequestState, InputBatch

from .host_sampler import HostTopKTopPSampler

_CPU = torch.device("cpu")


class HostSampler:
    """Samples with everything vLLM offers. ``vocab_size`` is the width of the programs' logits."""

    def __init__(self, vllm_config: VllmConfig, *, vocab_size: int) -> None:
        model = vllm_config.model_config
        custom = model.logits_processors or ()
        self.has_custom_processors = bool(custom)
        self._sampler = Sampler(logprobs_mode=model.logprobs_mode, use_fp64_gumbel=model.use_fp64_gumbel)
        self._sampler.topk_topp_sampler = HostTopKTopPSampler(model.logprobs_mode, model.use_fp64_gumbel)
        self._batch = InputBatch(
            max_num_reqs=vllm_config.scheduler_config.max_num_seqs,
            max_model_len=model.max_model_len,
            max_num_batched_tokens=vllm_config.scheduler_config.max_num_batched_tokens,
            device=_CPU,
            vocab_size=vocab_size,
            # Blocks live in batch.Slots; vLLM's own table stays at its smallest size, and empty.
            block_sizes=[vllm_config.cache_config.block_size],
            max_num_blocks_per_req=[1],
            logitsprocs=build_logitsprocs(vllm_config, _CPU, False, False, custom),
            logitsprocs_need_output_token_ids=self.has_custom_processors,
            reasoning_config=vllm_config.reasoning_config,
        )

    def forget(self, req_ids: Iterable[str]) -> None:
        """Requests that are gone; an id may come back as another request."""
        for req_id in req_ids:
            self._batch.remove_request(req_id)

    def sample(
        self,
        rows: Sequence[CachedRequestState],
        logits: torch.Tensor,
        scheduler_output: SchedulerOutput,
        grammar_output: GrammarOutput | None,
    ) -> tuple[list[int], LogprobsLists | None]:
        """One token for each row of ``logits`` [rows, vocab] float32, which is overwritten.

        Logprobs come for every row as soon as one row asks for them.
        """
        self._match(rows)
        batch = self._batch
        # vLLM orders its batch as it likes: bring the logits into that order, and the results back.
        position = {req_id: index for index, req_id in enumerate(batch.req_ids)}
        there = [position[row.req_id] for row in rows]
        straight = there == list(range(len(rows)))
        if not straight:
            back = torch.tensor(there)
            logits = logits[torch.argsort(back)]
        if grammar_output is not None:
            apply_grammar_bitmask(scheduler_output, grammar_output, batch, logits)
        output = self._sampler(logits, batch.sampling_metadata)
        tokens, logprobs = output.sampled_token_ids.view(-1), output.logprobs_tensors
        if not straight:
            tokens = tokens[back]
            if logprobs is not None:
                logprobs = logprobs._replace(
                    logprob_token_ids=logprobs.logprob_token_ids[back],
                    logprobs=logprobs.logprobs[back],
                    selected_token_ranks=logprobs.selected_token_ranks[back],
                )
        return tokens.tolist(), None if logprobs is None else logprobs.tolists()

    def _match(self, rows: Sequence[CachedRequestState]) -> None:
        """Make the batch hold exactly ``rows``."""
        batch = self._batch
        wanted = {row.req_id for row in rows}
        for req_id in [req_id for req_id in batch.req_id_to_index if req_id not in wanted]:
            batch.remove_request(req_id)
        for row in rows:
            if row.req_id not in batch.req_id_to_index:
                batch.add_request(row)
        batch.condense()
        batch.refresh_metadata()


def make_generator(params: SamplingParams) -> torch.Generator | None:
    """The request's own random generator, when it has a seed."""
    if params.sampling_type != SamplingType.RANDOM_SEED:
        return None
    generator = torch.Generator(device=_CPU)
    generator.manual_seed(params.seed)
    return generator
