"""A stand-in for the model classes that vLLM looks at and never builds here."""

from __future__ import annotations

import torch
from torch import nn


class StubModel(nn.Module):
    """A plain text-generation model, as far as vLLM's inspection can tell."""

    def __init__(self, vllm_config, prefix: str = "") -> None:
        raise AssertionError("programs come from the bundle: no model is ever built")

    def embed_input_ids(self, input_ids: torch.Tensor) -> torch.Tensor:
        raise AssertionError

    def forward(self, input_ids: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        raise AssertionError

    def compute_logits(self, hidden_states: torch.Tensor) -> torch.Tensor:
        raise AssertionError
