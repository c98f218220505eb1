"""The rules that all targets share.

Arithmetic follows PyTorch: Python scalars are weakly typed, a result has the promoted type of its operands, and
functions such as rsqrt, cos or silu compute narrow types in float32 and round once. Indices are int32 throughout:
where PyTorch says int64, the module has int32.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jax import lax

from .dtypes import jax_dtype

RULES: dict = {}


def rule(*names: str):
    """Register a function as the rule of the operators ``names``."""

    def register(function):
        RULES.update(dict.fromkeys(names, function))
        return function

    return register


def _wide(function):
    """``function`` of one array, computed in float32 and rounded once."""

    def apply(x):
        return function(x.astype(jnp.float32)).astype(x.dtype) if x.dtype.itemsize < 4 else function(x)

    return apply


RULES.update(
    {
        "aten.mul.Tensor": lambda x, y: x * y,
        "aten.neg.default": lambda x: -x,
        "aten.rsqrt.default": _wide(lax.rsqrt),
        "aten.cos.default": _wide(jnp.cos),
        "aten.sin.default": _wide(jnp.sin),
        "aten.silu.default": _wide(jax.nn.silu),
        "aten.floor_divide.default": lambda x, y: x // y,
        "aten.remainder.Scalar": lambda x, y: x % y,
        "aten.lt.Tensor": lambda x, y: x < y,
        "aten.gt.Tensor": lambda x, y: x > y,
        "aten.eq.Tensor": lambda x, y: x == y,
        "aten.ge.Scalar": lambda x, y: x >= y,
        "aten.masked_fill.Scalar": lambda x, mask, value: jnp.where(mask, jnp.asarray(value, x.dtype), x),
        "aten.amax.default": lambda x, dim, keepdim=False: x.max(tuple(dim), keepdims=keepdim),
        "aten.unsqueeze.default": lambda x, dim: jnp.expand_dims(x, dim),
        "aten.squeeze.dim": lambda x, dim: jnp.squeeze(x, dim),
        "aten.view.default": lambda x, shape: x.reshape(shape),
        "aten.cat.default": lambda xs, dim=0: jnp.concatenate(xs, dim),
        "aten.lift_fresh_copy.default": lambda x: x,
        "_operator.getitem": lambda xs, index: xs[index],
    }
)


@rule("aten.add.Tensor")
def _add(x, y, *, alpha=1):
    return x + (y if alpha == 1 else y * alpha)


@rule("aten.sub.Tensor")
def _sub(x, y, *, alpha=1):
    return x - (y if alpha == 1 else y * alpha)


@rule("aten._to_copy.default")
def _to_copy(x, *, dtype=None, **_):
    return x if dtype is None else x.astype(jax_dtype(dtype))


@rule("aten.pow.Tensor_Scalar")
def _pow(x, exponent):
    return x * x if exponent == 2 else x**exponent


@rule("aten.mean.dim")
def _mean(x, dim, keepdim=False, *, dtype=None):
    return jnp.mean(x.astype(jnp.float32), axis=tuple(dim), keepdims=keepdim).astype(jax_dtype(dtype) or x.dtype)


@rule("aten.argmax.default")
def _argmax(x, dim=None, keepdim=False):
    return jnp.argmax(x, axis=dim, keepdims=keepdim).astype(jnp.int32)


@rule("aten.arange.default")
def _arange(end, *, dtype=None, **_):
    return lax.iota(jax_dtype(dtype) or jnp.int32, end)


@rule("aten.split_with_sizes.default")
def _split_with_sizes(x, sizes, dim=0):
    starts = [sum(sizes[:index]) for index in range(len(sizes))]
    return [lax.slice_in_dim(x, start, start + size, axis=dim) for start, size in zip(starts, sizes, strict=True)]


@rule("aten.split.Tensor")
def _split(x, size, dim=0):
    length = x.shape[dim]
    return _split_with_sizes(x, [min(size, length - start) for start in range(0, length, size)], dim)


@rule("aten.slice.Tensor")
def _slice(x, dim=0, start=0, end=None):
    return lax.slice_in_dim(x, start, min(end, x.shape[dim]), axis=dim)


@rule("aten.index_select.default")
def _index_select(x, dim, index):
    # Programs only select what exists; "clip" also spares the compare-and-select of a negative index.
    return jnp.take(x, index, axis=dim, mode="clip")


@rule("aten.gather.default")
def _gather(x, dim, index):
    return jnp.take_along_axis(x, index, axis=dim, mode="clip")
