"""Rules of the Neuron targets: the plain forms, out of operators that neuronx-cc documents.

Differences from the cpu target, and why (docs/neuron.md has the list for users):

- the cache is bfloat16 and is written and read as such; raw bits are a need of XLA:CPU only
- no row is padded to two; attention is one form for prefill and decode, batched over (sequence, KV head)
- integer division and remainder are those of non-negative numbers, which indices are: ``sign``-free and without
  ``remainder``, which is not a documented operator
- argmax is two reductions with a documented computation each (max, min), not one over pairs
- indices are in bounds by construction, so nothing clamps or wraps them

Legend: N tokens, R sequences, T tokens of each, K KV heads, G query heads of each, D head size, B blocks of the
cache, M blocks of a table, S block size, C = M*S context.
"""

from __future__ import annotations

import jax.numpy as jnp
from jax import lax

_MASKED = -1e30  # not -inf: a row that sees nothing must not become NaN


def _dot(x, weight):
    """x [N, in] . weight [out, in] -> float32 [N, out]; accumulation is in float32 (PSUM) in any case."""
    return lax.dot_general(x, weight, (((1,), (1,)), ((), ())), preferred_element_type=jnp.float32)


def _linear(x, weight, bias=None):
    product = _dot(x, weight)
    if bias is not None:
        product = product + bias.astype(jnp.float32)
    return product.astype(x.dtype)


def _floor_divide(x, y):
    return lax.div(x, jnp.asarray(y, x.dtype) + jnp.zeros_like(x)) if jnp.ndim(y) == 0 else lax.div(x, y)


def _remainder(x, y):
    return x - _floor_divide(x, y) * y


def _argmax(x, dim=None, keepdim=False):
    """The lowest index of the largest value, as int32."""
    if dim is None:
        x, dim = x.reshape(-1), 0
    axis = dim % x.ndim
    largest = x.max(axis, keepdims=True)
    index = lax.broadcasted_iota(jnp.int32, x.shape, axis)
    return jnp.where(x == largest, index, x.shape[axis]).min(axis, keepdims=keepdim)


def _rows(x, indices):
    """Rows of x's first axis; ``indices`` int32 of any shape, in bounds."""
    dims = lax.GatherDimensionNumbers(
        offset_dims=tuple(range(indices.ndim, indices.ndim + x.ndim - 1)),
        collapsed_slice_dims=(0,),
        start_index_map=(0,),
    )
    mode = lax.GatherScatterMode.PROMISE_IN_BOUNDS
    return lax.gather(x, indices[..., None], dims, (1, *x.shape[1:]), mode=mode)


def _index_select(x, dim, index):
    if dim % x.ndim == 0:
        return _rows(x, index)
    return jnp.moveaxis(_rows(jnp.moveaxis(x, dim, 0), index), 0, dim)


def _gather(x, dim, index):
    """``x[r, index[r, j]]`` for each row r, as one gather of rows of the flattened matrix."""
    assert x.ndim == 2 and dim % 2 == 1, "programs gather along the rows of a block table only"
    first = lax.broadcasted_iota(jnp.int32, index.shape, 0) * x.shape[1]
    return _rows(x.reshape(-1), first + index)


def _kv_write(cache, new, slots):
    """Scatter of whole [K, D] rows, overwriting."""
    size = cache.shape[2]
    where = jnp.stack([_floor_divide(slots, size), _remainder(slots, size)], axis=-1)
    dims = lax.ScatterDimensionNumbers(
        update_window_dims=(1, 2), inserted_window_dims=(0, 2), scatter_dims_to_operand_dims=(0, 2)
    )
    return lax.scatter(cache, where, new.astype(cache.dtype), dims, mode=lax.GatherScatterMode.PROMISE_IN_BOUNDS)


def _context(cache, tables, dtype):
    """[R, K, C, D]: the context of each sequence in one piece."""
    blocks, heads, size, width = cache.shape
    rows = _rows(cache.reshape(blocks, -1), tables).reshape(*tables.shape, heads, size, width)
    return rows.swapaxes(1, 2).reshape(tables.shape[0], heads, -1, width).astype(dtype)


def _paged_attention(q, k_cache, v_cache, tables, positions, scale):
    rows, tokens = positions.shape
    heads, width = k_cache.shape[1], k_cache.shape[3]
    keys, values = (_context(cache, tables, q.dtype) for cache in (k_cache, v_cache))
    context = keys.shape[2]
    scaled = q * jnp.asarray(scale, q.dtype)
    queries = scaled.reshape(rows, tokens, heads, -1, width).transpose(0, 2, 3, 1, 4).reshape(rows, heads, -1, width)
    scores = jnp.einsum("rkqd,rkcd->rkqc", queries, keys, preferred_element_type=jnp.float32)
    scores = scores.reshape(rows, heads, -1, tokens, context)
    index = lax.iota(jnp.int32, context)
    scores = jnp.where(index <= positions[:, None, None, :, None], scores, _MASKED)
    weights = jnp.exp(scores - scores.max(-1, keepdims=True))
    total = weights.sum(-1, keepdims=True)
    flat = weights.astype(q.dtype).reshape(rows, heads, -1, context)
    out = jnp.einsum("rkqc,rkcd->rkqd", flat, values, preferred_element_type=jnp.float32)
    out = (out.reshape(rows, heads, -1, tokens, width) / total).astype(q.dtype)
    return out.transpose(0, 3, 1, 2, 4).reshape(q.shape)


RULES = {
    "neuron_aot.linear.default": _linear,
    "neuron_aot.lm_head.default": _dot,
    "neuron_aot.kv_write.default": _kv_write,
    "neuron_aot.paged_attention.default": _paged_attention,
    "aten.floor_divide.default": _floor_divide,
    "aten.remainder.Scalar": _remainder,
    "aten.argmax.default": _argmax,
    "aten.index_select.default": _index_select,
    "aten.gather.default": _gather,
}
