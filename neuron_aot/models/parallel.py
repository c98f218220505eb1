"""What tensor parallelism does to a decoder's program: where tensors that the ranks divide are put together.

Column-parallel projections divide what they give, row-parallel ones what they take, so the sum over the ranks follows
each of the latter: an all-reduce, or with sequence parallelism (prefill only) a reduce-scatter over the tokens and an
all-gather before the next projection, with norms and residuals on a rank's own tokens in between. With one rank nothing
is added to a program.

Legend: N tokens, R rows, V vocabulary, v = ceil(V / ranks) its part of one rank.
"""

from __future__ import annotations

import torch
from neuron_aot_runtime.contract.errors import RecipeError
from neuron_aot_runtime.contract.manifest import RANK_INPUT
from torch import Tensor

from ..program import ProgramPlan
from . import blocks, collectives

_MASKED = -1e30
_EXACT = 1 << 24  # integers below are exact in float32


class Ranks:
    """The collectives of one program; ``inputs`` are the program's."""

    def __init__(self, plan: ProgramPlan, inputs: dict) -> None:
        self._world = plan.model.world_size
        self._rank = inputs.get(RANK_INPUT)
        self._by_tokens = plan.phase == "prefill" and plan.model.sequence_parallel and self._world > 1

    def embed(self, table: Tensor, token_ids: Tensor) -> Tensor:
        """Rows of an embedding [V, width], of which a rank has [v, width]; as ``combine`` gives them."""
        if self._world == 1:
            return table.index_select(0, token_ids)
        return self.combine(self._own_rows(table, token_ids))

    def combine(self, partial: Tensor) -> Tensor:
        """The sum over the ranks of [N, width]: all N tokens, or this rank's N / ranks of them."""
        if self._world == 1:
            return partial
        if self._by_tokens:
            return collectives.reduce_scatter(partial, 0, self._world)
        return collectives.all_reduce(partial, self._world)

    def every_token(self, hidden: Tensor) -> Tensor:
        """All N tokens of what ``combine`` gave."""
        return collectives.all_gather(hidden, 0, self._world) if self._by_tokens else hidden

    def tokens(self, hidden: Tensor, index: Tensor) -> Tensor:
        """The tokens at ``index`` [R] of what ``combine`` gave, on every rank."""
        if not self._by_tokens:
            return hidden.index_select(0, index)
        return collectives.all_reduce(self._own_rows(hidden, index), self._world)

    def row_linear(self, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        """A row-parallel projection; the bias is added once, to the sum."""
        if self._world == 1:
            return blocks.linear(x, weight, bias)
        total = self.combine(blocks.linear(x, weight))
        return total if bias is None else total + bias

    def sample(self, logits: Tensor, vocab_size: int, *, greedy: bool) -> dict[str, Tensor]:
        """The program's outputs, of this rank's logits [R, v]: see ``blocks.sample``.

        Greedy, no logits are gathered: each rank gives its largest logit and that one's token id, as a pair of float32.
        """
        if self._world == 1:
            return blocks.sample(logits, greedy=greedy)
        if not greedy:
            return {"logits": collectives.all_gather(logits, 1, self._world).narrow(1, 0, vocab_size)}
        if vocab_size > _EXACT:
            raise RecipeError(
                "greedy sampling over several ranks passes token ids as float32, which is exact below 2^24",
                wanted=f"vocab_size of at most {_EXACT}",
                found=str(vocab_size),
                next_command="leave on_device_sampling_config out",
            )
        rows, part = logits.shape
        index = torch.arange(part, dtype=torch.int32, device=logits.device) + self._rank * part
        if part * self._world > vocab_size:
            logits = logits.masked_fill(index >= vocab_size, _MASKED)
        best = logits.argmax(-1) + self._rank * part
        own = torch.cat((logits.amax(-1, keepdim=True), best.float().unsqueeze(1)), dim=-1)
        everyone = collectives.all_gather(own, 1, self._world).view(rows, self._world, 2)
        values, tokens = (half.squeeze(-1) for half in everyone.split(1, dim=-1))
        # The first of the largest: the rank that it comes from has the lower indices.
        chosen = tokens.gather(1, values.argmax(-1, keepdim=True)).squeeze(1)
        return {"tokens": chosen.to(torch.int32)}

    def _own_rows(self, table: Tensor, index: Tensor) -> Tensor:
        """``index`` of a table that the ranks divide by rows: this rank's rows, and zeros where they are another's."""
        part = table.shape[0]
        mine = (index // part == self._rank).to(table.dtype)
        return table.index_select(0, index % part) * mine.unsqueeze(1)
