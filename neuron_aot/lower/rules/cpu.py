"""Rules of the cpu target: the forms that XLA:CPU runs fast (figures: benchmarks and docs/architecture.md).

Legend: N tokens, R sequences, T tokens of each, K KV heads, G query heads of each, D head size, B blocks of the
cache, M blocks of a table, S block size, C = M*S context.
"""

from __future__ import annotations

import jax.numpy as jnp
from jax import lax

_MASKED = -1e30  # not -inf: a row that sees nothing must not become NaN


def _dot(x, weight):
    """x [N, in] . weight [out, in] -> float32 [N, out].

    One contracting dimension, operands of one type, float32 result: anything else leaves XLA:CPU's fast path. A
    single row would run as scalar code (ten times slower), so it is padded to two.
    """
    rows = x.shape[0]
    if rows == 1:
        x = lax.pad(x, jnp.zeros((), x.dtype), ((0, 1, 0), (0, 0, 0)))
    product = lax.dot_general(x, weight, (((1,), (1,)), ((), ())), preferred_element_type=jnp.float32)
    return product[:rows]


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


def _gather_blocks(cache, tables, dtype):
    """[R, M, K, S, D] of the cache [B, K, S, D], as ``dtype``; only the gathered rows are reinterpreted."""
    blocks, heads, size, width = cache.shape
    rows = jnp.take(cache.reshape(blocks, -1), tables.reshape(-1), axis=0, mode="clip")
    return _bits(rows, jnp.zeros((), dtype)).reshape(*tables.shape, heads, size, width)


def _paged_attention(q, k_cache, v_cache, tables, positions, scale):
    keys, values = (_gather_blocks(cache, tables, q.dtype) for cache in (k_cache, v_cache))
    attend = _attend_blocks if positions.shape[1] == 1 else _attend_context
    return attend(q * jnp.asarray(scale, q.dtype), keys, values, positions).reshape(q.shape)


def _attend_blocks(q, keys, values, positions):
    """One query a sequence: batched over (R, M, K), so that no gathered block is transposed."""
    rows, tables, heads, size, width = keys.shape
    queries = jnp.broadcast_to(q.reshape(rows, 1, heads, -1, width), (rows, tables, heads, q.shape[1] // heads, width))
    scores = jnp.einsum("rmkgd,rmksd->rmkgs", queries, keys, preferred_element_type=jnp.float32)
    index = lax.iota(jnp.int32, tables * size).reshape(1, tables, 1, 1, size)
    scores = jnp.where(index <= positions.reshape(rows, 1, 1, 1, 1), scores, _MASKED)
    weights = jnp.exp(scores - scores.max((1, 4), keepdims=True))
    out = jnp.einsum("rmkgs,rmksd->rmkgd", weights.astype(q.dtype), values, preferred_element_type=jnp.float32).sum(1)
    return (out / weights.sum((1, 4))[..., None]).astype(q.dtype)


def _attend_context(q, keys, values, positions):
    """Many queries a sequence: batched over (R, K) with the context in one piece."""
    rows, tables, heads, size, width = keys.shape
    tokens = positions.shape[1]
    keys, values = (x.swapaxes(1, 2).reshape(rows, heads, tables * size, width) for x in (keys, values))
    queries = q.reshape(rows, tokens, heads, -1, width).transpose(0, 2, 3, 1, 4).reshape(rows, heads, -1, width)
    scores = jnp.einsum("rkqd,rkcd->rkqc", queries, keys, preferred_element_type=jnp.float32)
    scores = scores.reshape(rows, heads, -1, tokens, tables * size)
    index = lax.iota(jnp.int32, tables * size)
    scores = jnp.where(index <= positions[:, None, None, :, None], scores, _MASKED)
    weights = jnp.exp(scores - scores.max(-1, keepdims=True))
    total = weights.sum(-1, keepdims=True)
    flat = weights.astype(q.dtype).reshape(rows, heads, -1, tables * size)
    out = jnp.einsum("rkqc,rkcd->rkqd", flat, values, preferred_element_type=jnp.float32)
    out = (out.reshape(rows, heads, -1, tokens, width) / total).astype(q.dtype)
    return out.transpose(0, 3, 1, 2, 4)


RULES = {
    "neuron_aot.linear.default": _linear,
    "neuron_aot.lm_head.default": _dot,
    "neuron_aot.kv_write.default": _kv_write,
    "neuron_aot.paged_attention.default": _paged_attention,
}
