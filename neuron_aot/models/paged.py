"""The interface that every decoder's programs share: inputs, outputs, positions and cache slots of a phase.

Legend: T prompt tokens, B sequences, R rows (1 in prefill, B in decode), N tokens in all, C context tokens.
"""

from __future__ import annotations

from neuron_aot_runtime.contract.manifest import RANK_INPUT, TensorSpec

from ..program import ProgramPlan


def program_inputs(plan: ProgramPlan) -> tuple[TensorSpec, ...]:
    """The per-step inputs of a program; all int32.

    prefill: token_ids [T], num_computed_tokens [1], num_tokens [1], block_table [C/block_size]
    decode:  token_ids [B], positions [B], block_tables [B, C/block_size]
    both, with more than one rank: rank [1]
    """
    size, blocks = plan.bucket.size, -(-plan.bucket.context // plan.model.block_size)
    if plan.phase == "prefill":
        shapes = {"token_ids": (size,), "num_computed_tokens": (1,), "num_tokens": (1,), "block_table": (blocks,)}
    else:
        shapes = {"token_ids": (size,), "positions": (size,), "block_tables": (size, blocks)}
    if plan.model.world_size > 1:
        shapes[RANK_INPUT] = (1,)
    return tuple(TensorSpec(name=name, role="input", shape=shape, dtype="int32") for name, shape in shapes.items())


def program_outputs(plan: ProgramPlan, vocab_size: int) -> tuple[TensorSpec, ...]:
    """``logits`` float32 [R, vocab], or ``tokens`` int32 [R] where the program samples greedily."""
    rows = 1 if plan.phase == "prefill" else plan.bucket.size
    if plan.model.greedy:
        return (TensorSpec(name="tokens", role="output", shape=(rows,), dtype="int32"),)
    return (TensorSpec(name="logits", role="output", shape=(rows, vocab_size), dtype="float32"),)


class Step:
    """Where one program's tokens go.

    ``token_ids`` [N], ``positions`` [R, N/R], ``tables`` [R, C/block_size], ``slots`` [N] (block * block_size +
    offset). Padding tokens of a prefill write to the null block 0, and so do a decode's padding rows, whose block
    table is all zeros.
    """

    def __init__(self, plan: ProgramPlan, inputs: dict) -> None:
        import torch

        block_size = plan.model.block_size
        self.token_ids = inputs["token_ids"]
        if plan.phase == "prefill":
            index = torch.arange(plan.bucket.size, dtype=torch.int32, device=self.token_ids.device)
            valid = (index < inputs["num_tokens"]).to(torch.int32)
            # A padding token's own position may lie past the table, so it takes position 0's place in it.
            positions = inputs["num_computed_tokens"] + index
            held = positions * valid
            block = inputs["block_table"].index_select(0, held // block_size) * valid
            self.positions = positions.unsqueeze(0)
            self.tables = inputs["block_table"].unsqueeze(0)
            self.slots = block * block_size + held % block_size
            self._last = inputs["num_tokens"] - 1
        else:
            self.positions = inputs["positions"].unsqueeze(1)
            self.tables = inputs["block_tables"]
            block = self.tables.gather(1, self.positions // block_size).squeeze(1)
            self.slots = block * block_size + inputs["positions"] % block_size
            self._last = None

    def last_tokens(self, hidden, ranks):
        """[N, width] as ``ranks`` divides it -> [R, width]: the rows that the next token is wanted for."""
        return hidden if self._last is None else ranks.tokens(hidden, self._last)
