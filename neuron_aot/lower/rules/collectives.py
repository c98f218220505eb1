"""Rules of the collectives: one StableHLO operation each, over all ranks as one replica group.

They are primitives of our own, for JAX's belong to its meshes and axis names. No channel: a rank is a replica.
"""

from __future__ import annotations

from collections.abc import Callable

import jax.numpy as jnp
import numpy as np
from jax.core import ShapedArray
from jax.extend.core import Primitive
from jax.interpreters import mlir
from jaxlib.mlir import ir
from jaxlib.mlir.dialects import stablehlo
from neuron_aot_runtime.contract.errors import LoweringError


def _groups(world_size: int) -> ir.Attribute:
    return ir.DenseIntElementsAttr.get(np.arange(world_size, dtype=np.int64)[None])


def _add_region(operation, kind: ir.Type) -> None:
    """The reduction of a collective: a sum of two scalars of the tensor type ``kind``'s elements."""
    scalar = ir.RankedTensorType.get([], ir.RankedTensorType(kind).element_type)
    block = operation.regions[0].blocks.append(scalar, scalar)
    with ir.InsertionPoint(block):
        stablehlo.return_([stablehlo.add(*block.arguments)])


def _primitive(name: str, shape: Callable, emit: Callable) -> Callable:
    """A function of (array, *numbers, world size). ``shape``: of the result; ``emit``: (operand, result type, …)."""
    primitive = Primitive(f"neuron_aot_{name}")

    @primitive.def_abstract_eval
    def _(x, *, numbers):
        return ShapedArray(shape(x.shape, *numbers), x.dtype)

    def lower(context, x, *, numbers):
        (result,) = context.avals_out
        kind = ir.RankedTensorType.get(result.shape, ir.RankedTensorType(x.type).element_type)
        return emit(x, kind, *numbers).results

    mlir.register_lowering(primitive, lower)

    def apply(x, *numbers):
        if not jnp.issubdtype(x.dtype, jnp.floating):
            raise LoweringError(
                f"{name} of {x.dtype}: collectives take floats only (NCC_EVRF061, NCC_EVRF063)",
                next_command="convert to float32 first; integers below 2^24 stay exact",
            )
        return primitive.bind(x, numbers=numbers)

    return apply


def _scaled(shape: tuple[int, ...], dim: int, times: int, over: int) -> tuple[int, ...]:
    return tuple(size * times // over if axis == dim else size for axis, size in enumerate(shape))


def _all_reduce(x, result, world_size):
    operation = stablehlo.AllReduceOp([result], [x], replica_groups=_groups(world_size))
    _add_region(operation, result)
    return operation


def _all_gather(x, result, dim, world_size):
    return stablehlo.AllGatherOp([result], [x], all_gather_dim=dim, replica_groups=_groups(world_size))


def _reduce_scatter(x, result, dim, world_size):
    operation = stablehlo.ReduceScatterOp(result, x, scatter_dimension=dim, replica_groups=_groups(world_size))
    _add_region(operation, result)
    return operation


def _all_to_all(x, result, split_dim, concat_dim, world_size):
    operation = stablehlo.AllToAllOp(
        [x], split_dimension=split_dim, concat_dimension=concat_dim, split_count=world_size,
        replica_groups=_groups(world_size),
    )  # fmt: skip
    assert operation.results[0].type == result, "StableHLO infers this one's result itself"
    return operation


RULES = {
    "neuron_aot.all_reduce.default": _primitive("all_reduce", lambda shape, _: shape, _all_reduce),
    "neuron_aot.all_gather.default": _primitive(
        "all_gather", lambda shape, dim, world_size: _scaled(shape, dim, world_size, 1), _all_gather
    ),
    "neuron_aot.reduce_scatter.default": _primitive(
        "reduce_scatter", lambda shape, dim, world_size: _scaled(shape, dim, 1, world_size), _reduce_scatter
    ),
    "neuron_aot.all_to_all.default": _primitive(
        "all_to_all",
        lambda shape, split, concat, world_size: _scaled(_scaled(shape, split, 1, world_size), concat, world_size, 1),
        _all_to_all,
    ),
}
