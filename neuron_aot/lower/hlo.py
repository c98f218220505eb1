"""JAX function -> normalised ``HloModuleProto``: the same bytes in every process, folder and user account."""

from __future__ import annotations

import io
from collections.abc import Callable, Sequence

import jax
from jaxlib import _jax
from jaxlib.mlir import ir
from jaxlib.mlir.passmanager import PassManager
from neuron_aot_runtime.contract.manifest import TensorSpec

from . import hlo_proto

_MODULE_NAME = "program"
_ID_FIELD = 5  # HloModuleProto.id (xla/service/hlo.proto): a counter of the lowering process


def lower_to_hlo(
    function: Callable, arguments: Sequence[TensorSpec], aliases: dict[int, int], *, origins: bool = False
) -> tuple[bytes, dict[int, str]]:
    """(serialized ``HloModuleProto`` of ``function``, scope of each instruction by its id).

    ``arguments``: the flat arguments' shapes and dtypes. ``aliases``: argument index -> index of the result that
    overwrites it in place (``input_output_alias`` in the module). The scopes, those that ``jax.named_scope`` gave,
    stay outside the module; they are read only with ``origins``.
    """

    def program(*tensors):
        return function(*tensors)

    shapes = [jax.ShapeDtypeStruct(spec.shape, jax.numpy.dtype(spec.dtype)) for spec in arguments]
    # Without the jit of jnp's own helpers there is one computation and no call in it, for compilers that want none.
    with jax.disable_jit():
        lowered = jax.jit(program, keep_unused=True).lower(*shapes)
    module = lowered.compiler_ir("stablehlo")
    with module.context:
        _set_aliases(module, aliases)
        module.operation.attributes["sym_name"] = ir.StringAttr.get(_MODULE_NAME)
        scopes = _scopes(_to_hlo(module)) if origins else {}
        PassManager.parse("builtin.module(strip-debuginfo)").run(module.operation)
        return without_field(_to_hlo(module), _ID_FIELD), scopes


def _to_hlo(module: ir.Module) -> bytes:
    code = io.BytesIO()
    module.operation.write_bytecode(code)
    computation = _jax.mlir.mlir_module_to_xla_computation(code.getvalue(), use_tuple_args=False, return_tuple=False)
    return computation.as_serialized_hlo_module_proto()


def _scopes(hlo: bytes) -> dict[int, str]:
    """Instruction id -> scope; conversion numbers instructions alike with and without debug locations (tested)."""
    scopes = {}
    for computation in hlo_proto.parse_module(hlo).computations:
        for instruction in computation.instructions:
            _, *path = instruction.metadata.op_name.split("/")  # jit(program)/<scope>/<primitive>
            if path:
                scopes[instruction.id] = path[0]
    return scopes


def _set_aliases(module: ir.Module, aliases: dict[int, int]) -> None:
    main = next(op for op in module.body.operations if ir.StringAttr(op.attributes["sym_name"]).value == "main")
    int32 = ir.IntegerType.get_signless(32)
    merged = []
    for index, attribute in enumerate(main.arg_attrs):
        entries = {named.name: named.attr for named in ir.DictAttr(attribute)}
        if index in aliases:
            entries["tf.aliasing_output"] = ir.IntegerAttr.get(int32, aliases[index])
        merged.append(ir.DictAttr.get(entries))
    main.arg_attrs = ir.ArrayAttr.get(merged)


def without_field(message: bytes, number: int) -> bytes:
    """A serialized protobuf message without its top-level field ``number``.

    Wire format: https://protobuf.dev/programming-guides/encoding. Raises ValueError for bytes that are not one.
    """
    kept = bytearray()
    offset = 0
    while offset < len(message):
        start = offset
        tag, offset = _varint(message, offset)
        kind = tag & 7
        if kind == 0:
            _, offset = _varint(message, offset)
        elif kind == 1:
            offset += 8
        elif kind == 2:
            length, offset = _varint(message, offset)
            offset += length
        elif kind == 5:
            offset += 4
        else:
            raise ValueError(f"wire type {kind} at byte {start}: not a protobuf message")
        if tag >> 3 != number:
            kept += message[start:offset]
    if offset != len(message):
        raise ValueError("a protobuf message that ends in the middle of a field")
    return bytes(kept)


def _varint(message: bytes, offset: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        if offset >= len(message):
            raise ValueError("a protobuf message that ends in the middle of a number")
        byte = message[offset]
        offset += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, offset
        shift += 7
