"""Building blocks of the model definitions: plain PyTorch, and four operators that stay whole when lowered.

Each operator has its definition here, in PyTorch (that is what ``verify --execute`` compares with), and one
lowering rule a target. They stay whole because the targets want different forms: XLA:CPU is fast with [out, in]
weights, K/V as raw bits and attention over blocks; Neuron takes plain bfloat16.

Legend: N tokens, R sequences, T tokens of each (N = R*T), H query heads, K KV heads, D head size, S block size,
B blocks of the cache, M blocks of a table.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F


@torch.library.custom_op("neuron_aot::linear", mutates_args=())
def linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """x [N, in] times weight [out, in] transposed, accumulated in float32, plus bias [out]; in x's dtype."""
    return F.linear(x, weight, bias)


@linear.register_fake
def _(x, weight, bias=None):
    return x.new_empty(x.shape[0], weight.shape[0])


@torch.library.custom_op("neuron_aot::lm_head", mutates_args=())
def lm_head(x: Tensor, weight: Tensor) -> Tensor:
    """float32 logits [N, vocab] of x [N, width] and weight [vocab, width]."""
    return F.linear(x.float(), weight.float())


@lm_head.register_fake
def _(x, weight):
    return x.new_empty(x.shape[0], weight.shape[0], dtype=torch.float32)


@torch.library.custom_op("neuron_aot::kv_write", mutates_args=())
def kv_write(cache: Tensor, new: Tensor, slots: Tensor) -> Tensor:
    """``cache`` [B, K, S, D] with the rows ``new`` [N, K, D] put at ``slots`` [N] (block * S + offset)."""
    size = cache.shape[2]
    written = cache.clone()
    written[slots // size, :, slots % size] = new.to(cache.dtype)
    return written


@kv_write.register_fake
def _(cache, new, slots):
    return torch.empty_like(cache)


@torch.library.custom_op("neuron_aot::paged_attention", mutates_args=())
def paged_attention(
    q: Tensor, k_cache: Tensor, v_cache: Tensor, tables: Tensor, positions: Tensor, scale: float
) -> Tensor:
    """Causal attention of q [N, H, D] over the cached blocks of each sequence: [N, H, D].

    ``tables`` [R, M] block ids, ``positions`` [R, T]: query t of row r sees the cached tokens at positions up to
    its own. Query head h reads KV head h // (H/K). Scores and softmax in float32.
    """
    rows, tokens = positions.shape
    kv_heads, size, width = k_cache.shape[1:]
    context = tables.shape[1] * size
    queries = q.view(rows, tokens, kv_heads, -1, width).float() * scale
    keys, values = (
        cache[tables].transpose(1, 2).reshape(rows, kv_heads, context, width).float() for cache in (k_cache, v_cache)
    )
    seen = torch.arange(context, device=q.device) <= positions[:, :, None]
    scores = torch.einsum("rtkgd,rkcd->rkgtc", queries, keys).masked_fill(~seen[:, None, None], -torch.inf)
    out = torch.einsum("rkgtc,rkcd->rtkgd", scores.softmax(-1), values)
    return out.reshape(q.shape).to(q.dtype).contiguous()


@paged_attention.register_fake
def _(q, k_cache, v_cache, tables, positions, scale):
    return torch.empty_like(q)


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """Root mean square norm over the last axis, in float32 (Zhang and Sennrich 2019)."""
    wide = x.float()
    wide = wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + eps)
    return weight * wide.to(x.dtype)


def rope_tables(positions: Tensor, inverse_frequencies: tuple[float, ...], dtype: torch.dtype):
    """cos and sin [N, 1, D] of each position times each frequency (float32), in ``dtype``; positions [R, T]."""
    frequencies = torch.tensor(inverse_frequencies, dtype=torch.float32, device=positions.device)
    angles = positions.reshape(-1, 1).float() * frequencies
    angles = torch.cat((angles, angles), dim=-1).unsqueeze(1)
    return angles.cos().to(dtype), angles.sin().to(dtype)


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotary embedding of x [N, heads, D], halves convention (Su et al. 2021, as in the Hugging Face models)."""
    first, second = x.chunk(2, dim=-1)
    return x * cos + torch.cat((-second, first), dim=-1) * sin


def silu(x: Tensor) -> Tensor:
    """x * sigmoid(x), rounded once."""
    return F.silu(x)


def sample(logits: Tensor, *, greedy: bool) -> dict[str, Tensor]:
    """The program's outputs: ``logits`` [R, V], or ``tokens`` int32 [R], the lowest index of the largest logit."""
    return {"tokens": logits.argmax(-1).to(torch.int32)} if greedy else {"logits": logits}
