"""vLLM's scheduler, with every step either a prefill step or a decode step, never both.

A request decodes when only its newest token has no K/V yet; everything else (a new prompt, the next segment of a
long one, a resumed request) is prefill. While both wait, the two kinds of step take turns: a long prompt delays each
running request by at most one segment, and running requests delay a prompt by at most one token.

Under KV pressure decoding wins. A prefill step never preempts a decoding request (it does not see them), and a
decode step preempts prefilling requests first. So the running requests always finish and free their blocks, and a
prefill step that could admit nothing turns into a decode step in the same call: there is no empty step to spin on.
"""

from __future__ import annotations

from vllm.v1.core.sched.output import SchedulerOutput
from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.request import Request


class PhasedScheduler(Scheduler):
    """Splits the phases around vLLM's ``schedule``; admission, blocks, preemption and stopping are vLLM's own."""

    def __init__(self, *args, **kwargs) -> None:
        super().__init__(*args, **kwargs)
        self._prefilled_last = False

    def schedule(self, throttle_prefills: bool = False) -> SchedulerOutput:
        """One step of one phase. See ``vllm.v1.core.sched.scheduler.Scheduler.schedule``."""
        decoding = [request for request in self.running if not request.is_prefill_chunk]
        if not decoding or (self._has_prefill_work(decoding) and not self._prefilled_last):
            output = self._schedule_prefill(decoding, throttle_prefills)
            self._prefilled_last = True
            if output.total_num_scheduled_tokens or not decoding:
                return output
            # Nothing fits now. The output's news (finished, preempted) must reach the worker all the same.
            merged = self._schedule_decode(decoding, throttle_prefills)
            merged.finished_req_ids |= output.finished_req_ids
            merged.preempted_req_ids = (merged.preempted_req_ids or set()) | (output.preempted_req_ids or set())
            return merged
        return self._schedule_decode(decoding, throttle_prefills)

    def _has_prefill_work(self, decoding: list[Request]) -> bool:
        if len(decoding) < len(self.running):
            return True
        held = len(self.running) + self.num_waiting_for_streaming_input
        return bool(self.waiting or self.kv_holding_waiting) and held < self.max_num_active_reqs

    def _schedule_prefill(self, decoding: list[Request], throttle_prefills: bool) -> SchedulerOutput:
        """Admit and continue prompts, with the decoding requests out of sight but counted."""
        if not decoding:
            return super().schedule(throttle_prefills)
        order = self.running
        hidden = set(decoding)
        limit = self.max_num_active_reqs
        self.running = [request for request in order if request not in hidden]
        self.max_num_active_reqs = limit - len(decoding)
        try:
            return super().schedule(throttle_prefills)
        finally:
            self.max_num_active_reqs = limit
            # Admission order decides who is preempted first: keep it.
            kept = hidden.union(self.running)
            known = set(order)
            self.running = [request for request in order if request in kept] + [
                request for request in self.running if request not in known
            ]

    def _schedule_decode(self, decoding: list[Request], throttle_prefills: bool) -> SchedulerOutput:
        """One token for every decoding request.

        Each of them takes exactly one token of the budget, so with a budget of their number vLLM's scheduler is done
        when it comes to the prefilling ones, and these stand behind, where it looks for a request to preempt.
        """
        self._prefilled_last = False
        order = self.running
        first = set(decoding)
        budget = self.max_num_scheduled_tokens
        self.running = decoding + [request for request in order if request not in first]
        self.max_num_scheduled_tokens = min(budget, len(decoding))
        try:
            return super().schedule(throttle_prefills)
        finally:
            self.max_num_scheduled_tokens = budget
            kept = set(self.running)
            self.running = [request for request in order if request in kept]
