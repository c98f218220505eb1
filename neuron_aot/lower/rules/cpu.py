"""Rules of the cpu target: the forms that XLA:CPU runs fast (figures: benchmarks and docs/architecture.md).

Legend: N tokens, R sequences, T tokens of each, K KV heads, G query heads of each, D head size, B blocks of the
cache, M blocks of a table, S block size, C = M*S context.
"""

from __future__ import annotations

import jax.numpy as jnp
from jax import lax

_FEW_ROWS = 16  # up to here reading the weight bounds a dot
_MASKED = -1e30  # not -inf: a row that sees nothing must not become NaN


def _dot(x, weight):
    """x [N, in] . weight [out, in] -> float32 [N, out].

    One contracting dimension, operands of one type, float32 result: anything else leaves XLA:CPU's fast path. A
    single row would run as scalar code (ten times slower), so it is padded to two.
    """
    rows = x.shape[0]
    if rows == 1:
        x = lax.pad(x, jnp.zeros((), x.dtype), ((0, 1, 0), (0, 0, 0)))
    if rows <= _FEW_ROWS and weight.shape[0] % 2 == 0:
        return _dot_weight_first(x, weight)[:rows]
    product = lax.dot_general(x, weight, (((1,), (1,)), ((), ())), preferred_element_type=jnp.float32)
    return product[:rows]


def _dot_weight_first(x, weight):
    """The same with the weight as the left operand, which XLA:CPU reads as it lies; the right one it packs anew.

    A batch of two halves keeps XLA from swapping the operands back. A third faster with a few rows.
    """
    halves = weight.reshape(2, -1, weight.shape[1])
    product = lax.dot_general(
        halves, jnp.broadcast_to(x, (2, *x.shape)), (((2,), (2,)), ((0,), (0,))), preferred_element_type=jnp.float32
    )
    return product.reshape(weight.shape[0], -1).T


def _linear(x, weight, bias=None):
    product = _dot(x, weight)
    if bias is not None:
        product = product + bias.astype(jnp.float32)
    return product.astype(x.dtype)


def _bits(x, like):
    """``x`` as the cache stores it: raw bits where the cache is unsigned."""
    return x if x.dtype == like.dtype else lax.bitcast_convert_type(x, like.dtype)


def _kv_write(cache, new, slots):
    """Scatter of whole [K, D] rows; on raw bits, for XLA:CPU widens a bfloat16 scatter's buffer to float32."""
    size = cache.shape[2]
    where = jnp.stack([slots // size, slots % size], axis=-1)
    dims = lax.ScatterDimensionNumbers(
        update_window_dims=(1, 2), inserted_window_dims=(0, 2), scatter_dims_to_operand_dims=(0, 2)
    )
    mode = lax.GatherScatterMode.PROMISE_IN_BOUNDS  # XLA itself skips a row that is not
    return lax.scatter(cache, where, _bits(new, cache), dims, mode=mode)


def _take_rows(cache, rows, dtype):
    """Rows of a cache [rows, …] as ``dtype``; only what is gathered is reinterpreted."""
    return _bits(jnp.take(cache, rows.reshape(-1), axis=0, mode="clip"), jnp.zeros((), dtype))


def _paged_attention(q, k_cache, v_cache, tables, positions, scale):
    """Batched over (R, K). Each head of each block is gathered as a row of its own, so the context of a head comes in
    one piece without a transposition.

    Batching decode over (R, M, K), block by block, is as fast alone, but then jaxlib 0.10.2 computes wrong values in
    the linear behind it from some shapes on (tests/e2e/test_numerics.py).
    """
    blocks, heads, _, width = k_cache.shape
    rows, tokens = positions.shape
    head_rows = tables[:, None] * heads + lax.iota(jnp.int32, heads)[None, :, None]
    keys, values = (
        _take_rows(cache.reshape(blocks * heads, -1), head_rows, q.dtype).reshape(rows, heads, -1, width)
        for cache in (k_cache, v_cache)
    )
    queries = (
        (q * jnp.asarray(scale, q.dtype))
        .reshape(rows, tokens, heads, -1, width)
        .transpose(0, 2, 3, 1, 4)
        .reshape(rows, heads, -1, width)
    )
    scores = jnp.einsum("rkqd,rkcd->rkqc", queries, keys, preferred_element_type=jnp.float32)
    scores = scores.reshape(rows, heads, -1, tokens, keys.shape[2])
    index = lax.iota(jnp.int32, keys.shape[2])
    scores = jnp.where(index <= positions[:, None, None, :, None], scores, _MASKED)
    weights = jnp.exp(scores - scores.max(-1, keepdims=True))
    flat = weights.astype(q.dtype).reshape(rows, heads, -1, keys.shape[2])
    out = jnp.einsum("rkqc,rkcd->rkqd", flat, values, preferred_element_type=jnp.float32)
    out = out.reshape(rows, heads, -1, tokens, width) / weights.sum(-1, keepdims=True)
    return out.astype(q.dtype).transpose(0, 3, 1, 2, 4).reshape(q.shape)


RULES = {
    "neuron_aot.linear.default": _linear,
    "neuron_aot.lm_head.default": _dot,
    "neuron_aot.kv_write.default": _kv_write,
    "neuron_aot.paged_attention.default": _paged_attention,
}
