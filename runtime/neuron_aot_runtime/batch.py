"""What one step feeds the programs: slots with each sequence's tokens and blocks, bucket choice, padding.

Plain numpy, no vLLM and no device. Shapes: S slots, L max_model_len, M blocks of the longest context; a program's
own are n = bucket.size and m = bucket.context / block_size.

A returned input dict holds views of arrays that belong to the program's bucket: they are filled again by the next
step that uses the bucket, so the step must have run by then (``Device.execute`` blocks until it has).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from .contract.buckets import round_up, smallest_fitting
from .contract.manifest import RANK_INPUT, Manifest, Program

Inputs = dict[str, np.ndarray]


class NoBucketError(LookupError):
    """A step that no program of the bundle holds; the check at start makes this our bug, not the user's."""


@dataclass(frozen=True)
class Step:
    """One execution: the program, its inputs, and how much of the bucket is padding."""

    program: Program
    inputs: Inputs
    padding: int


class Slots:
    """Each running sequence's tokens and blocks, one row a sequence.

    ``tokens_SL`` int32: every known token. ``blocks_SM`` int32: its KV blocks in order, then zeros (the null block).
    """

    def __init__(self, *, num_slots: int, max_model_len: int, block_size: int) -> None:
        self.block_size = block_size
        self.tokens_SL = np.zeros((num_slots, max_model_len), np.int32)
        self.blocks_SM = np.zeros((num_slots, round_up(max_model_len, block_size) // block_size), np.int32)
        self._num_blocks = [0] * num_slots
        self._free = list(range(num_slots - 1, -1, -1))

    def take(self) -> int:
        """A free slot, its row of blocks zeroed. Raises IndexError when there is none."""
        slot = self._free.pop()
        self.set_blocks(slot, ())
        return slot

    def release(self, slot: int) -> None:
        """Give a slot back."""
        self._free.append(slot)

    def set_tokens(self, slot: int, tokens: Sequence[int]) -> None:
        """Replace a sequence's tokens."""
        self.tokens_SL[slot, : len(tokens)] = tokens

    def set_blocks(self, slot: int, blocks: Sequence[int]) -> None:
        """Replace a sequence's blocks."""
        row = self.blocks_SM[slot]
        row[: len(blocks)] = blocks
        row[len(blocks) : self._num_blocks[slot]] = 0
        self._num_blocks[slot] = len(blocks)

    def append_blocks(self, slot: int, blocks: Sequence[int]) -> None:
        """Add blocks behind those that a sequence has."""
        first = self._num_blocks[slot]
        last = first + len(blocks)
        self.blocks_SM[slot, first:last] = blocks
        self._num_blocks[slot] = last


class Batcher:
    """Chooses the smallest fitting bucket for a step and fills its inputs."""

    def __init__(self, manifest: Manifest, slots: Slots) -> None:
        self._slots = slots
        self._block_size = manifest.kv_cache.block_size
        self._programs = {(program.phase, program.bucket): program for program in manifest.programs}
        self._buckets = {
            phase: [bucket for kind, bucket in self._programs if kind == phase] for phase in ("prefill", "decode")
        }
        self._inputs = {program.name: _allocate(program) for program in manifest.programs}

    def prefill(self, slot: int, *, num_computed: int, num_tokens: int) -> Step:
        """The next ``num_tokens`` tokens of one sequence, of which ``num_computed`` are in the cache.

        Raises NoBucketError.
        """
        program = self._choose("prefill", num_tokens, num_computed + num_tokens)
        inputs = self._inputs[program.name]
        token_ids_n, block_table_m = inputs["token_ids"], inputs["block_table"]
        token_ids_n[:num_tokens] = self._slots.tokens_SL[slot, num_computed : num_computed + num_tokens]
        token_ids_n[num_tokens:] = 0
        inputs["num_computed_tokens"][0] = num_computed
        inputs["num_tokens"][0] = num_tokens
        _fill_row(block_table_m, self._slots.blocks_SM[slot])
        return Step(program, inputs, padding=program.bucket.size - num_tokens)

    def decode(self, slots: Sequence[int], positions: Sequence[int]) -> Step:
        """One token for each of ``slots``; ``positions`` are where the tokens stand. Raises NoBucketError."""
        count = len(slots)
        program = self._choose("decode", count, max(positions) + 1)
        inputs = self._inputs[program.name]
        token_ids_n, positions_n, tables_nm = inputs["token_ids"], inputs["positions"], inputs["block_tables"]
        rows = np.fromiter(slots, np.intp, count)
        positions_n[:count] = positions
        positions_n[count:] = 0
        token_ids_n[:count] = self._slots.tokens_SL[rows, positions_n[:count]]
        token_ids_n[count:] = 0
        blocks_SM = self._slots.blocks_SM
        width = min(tables_nm.shape[1], blocks_SM.shape[1])
        tables_nm[:count, :width] = blocks_SM[rows, :width]
        tables_nm[count:] = 0
        return Step(program, inputs, padding=program.bucket.size - count)

    def _choose(self, phase: str, size: int, context: int) -> Program:
        bucket = smallest_fitting(self._buckets[phase], size=size, context=context)
        if bucket is None:
            raise NoBucketError(f"no {phase} program holds {size} and a context of {context} tokens")
        return self._programs[phase, bucket]


def padding_inputs(program: Program) -> Inputs:
    """Inputs of an execution that computes nothing of use: it writes to the null block only."""
    inputs = _allocate(program)
    if program.phase == "prefill":
        inputs["num_tokens"][0] = 1
    return inputs


def _allocate(program: Program) -> Inputs:
    specs = (spec for spec in program.inputs if spec.name != RANK_INPUT)  # which the device fills
    return {spec.name: np.zeros(spec.shape, np.dtype(spec.dtype)) for spec in specs}


def _fill_row(table_m: np.ndarray, blocks_M: np.ndarray) -> None:
    # A prefill bucket's own context may be larger than max_model_len rounded up, so either can be the wider one.
    width = min(len(table_m), len(blocks_M))
    table_m[:width] = blocks_M[:width]
