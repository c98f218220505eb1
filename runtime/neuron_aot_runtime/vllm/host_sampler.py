"""Top-k, top-p and the random draw on the host, where vLLM's generic version sorts and draws with torch.

Same choice of tokens that may be drawn, same distribution. With top-p, at batch 8 and a vocabulary of 49152, vLLM's
takes 60 ms (a full sort with indices, one exponential draw per token); this takes 5. Seeded requests repeat here, but
their tokens are not those of another vLLM back end (vLLM's own differ from each other as well).

Shapes: B rows, V vocabulary.
"""

from __future__ import annotations

import numpy as np
import torch
from vllm.v1.sample.ops.topk_topp_sampler import TopKTopPSampler


class HostTopKTopPSampler(TopKTopPSampler):
    """Takes the place of ``Sampler.topk_topp_sampler``."""

    def __init__(self, logprobs_mode: str, use_fp64_gumbel: bool) -> None:
        super().__init__(logprobs_mode, use_fp64_gumbel)
        if not use_fp64_gumbel:  # who asks for that noise gets vLLM's
            self.forward = self.forward_host

    def forward_host(
        self,
        logits: torch.Tensor,
        generators: dict[int, torch.Generator],
        k: torch.Tensor | None,
        p: torch.Tensor | None,
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        """One token for each row of ``logits`` [B, V] float32; and what ``logprobs_mode`` returns after the filters.

        ``k`` [B] int32 and ``p`` [B] float32, None where no row uses them. ``logits`` may be overwritten.
        """
        rows = logits.numpy()
        draws = torch.rand(len(rows), dtype=torch.float64)
        for row, generator in generators.items():
            draws[row] = torch.rand((), dtype=torch.float64, generator=generator)
        ks = [rows.shape[1]] * len(rows) if k is None else k.tolist()
        ps = [1.0] * len(rows) if p is None else p.tolist()
        processed = self.logprobs_mode in ("processed_logits", "processed_logprobs")
        tokens = []
        for row_V, top_k, top_p, draw in zip(rows, ks, ps, draws.tolist(), strict=True):
            kept = _kept(row_V, top_k, top_p)
            tokens.append(_draw(row_V, kept, draw))
            if processed and kept is not None:
                values = row_V[kept]
                row_V.fill(-np.inf)
                row_V[kept] = values
        returned = None
        if processed:
            returned = logits if self.logprobs_mode == "processed_logits" else logits.log_softmax(dim=-1)
        return torch.tensor(tokens), returned


def _kept(row_V: np.ndarray, top_k: int, top_p: float) -> np.ndarray | None:
    """Indices of the tokens that may be drawn, or None for all. Tokens that tie with the last one stay."""
    size = len(row_V)
    if top_k >= size and top_p >= 1:
        return None
    candidates = None
    if top_k < size:
        candidates = np.flatnonzero(row_V >= np.partition(row_V, size - top_k)[size - top_k])
    if top_p < 1:
        ascending = np.sort(row_V if candidates is None else row_V[candidates])
        mass = np.cumsum(np.exp(ascending - ascending[-1]), dtype=np.float64)
        # As vLLM: drop the smallest while their mass is within 1 - p, and keep at least one.
        dropped = min(int(np.searchsorted(mass, (1 - top_p) * mass[-1], side="right")), len(ascending) - 1)
        above = row_V >= ascending[dropped]
        candidates = np.flatnonzero(above)
    return candidates


def _draw(row_V: np.ndarray, kept: np.ndarray | None, draw: float) -> int:
    """The token at ``draw`` (in [0, 1)) of the cumulated probabilities."""
    values = row_V if kept is None else row_V[kept]
    mass = np.cumsum(np.exp(values - values.max()), dtype=np.float64)
    index = min(int(np.searchsorted(mass, draw * mass[-1], side="right")), len(values) - 1)
    return index if kept is None else int(kept[index])
