"""``HloModuleProto`` in Python: the fields that we read or write, described at run time.

jaxlib ships no ``hlo_pb2``. Field numbers are those of the public ``xla/service/hlo.proto`` and ``xla/xla_data.proto``,
which never change for a serialized format; what is not described here is kept byte for byte when a module is
serialized again. Parsing is protobuf's own C code: the module of an 80-layer model takes milliseconds.
"""

from __future__ import annotations

from functools import cache

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

#: ``xla.PrimitiveType``, as ``ShapeProto.element_type`` holds it.
PRIMITIVE_TYPES = {
    1: "pred", 2: "s8", 3: "s16", 4: "s32", 5: "s64", 6: "u8", 7: "u16", 8: "u32", 9: "u64", 10: "f16", 11: "f32",
    12: "f64", 13: "tuple", 14: "opaque", 15: "c64", 16: "bf16", 17: "token", 18: "c128", 19: "f8e5m2",
    20: "f8e4m3fn", 21: "s4", 22: "u4", 23: "f8e4m3b11fnuz", 24: "f8e5m2fnuz", 25: "f8e4m3fnuz", 26: "s2", 27: "u2",
    28: "f8e4m3", 29: "f8e3m4", 32: "f4e2m1fn", 33: "f8e8m0fnu",
}  # fmt: skip
BITS = {
    "pred": 8, "s8": 8, "u8": 8, "s16": 16, "u16": 16, "f16": 16, "bf16": 16, "s32": 32, "u32": 32, "f32": 32,
    "s64": 64, "u64": 64, "f64": 64, "c64": 64, "c128": 128, "s4": 4, "u4": 4, "s2": 2, "u2": 2, "f4e2m1fn": 4,
}  # fmt: skip

MUST_ALIAS = 2  # HloInputOutputAliasProto.Kind

_PACKAGE = "neuron_aot_hlo"  # ours: another library in the process may have registered xla's own
_I64, _STR, _BYTES, _BOOL, _INT, _U64 = (
    getattr(descriptor_pb2.FieldDescriptorProto, f"TYPE_{name}")
    for name in ("INT64", "STRING", "BYTES", "BOOL", "INT32", "UINT64")
)
_MANY = "*"  # marks a repeated field

# message -> field -> (number, scalar type or message name[, repeated])
_MESSAGES = {
    "Module": {
        "name": (1, _STR), "entry_computation_name": (2, _STR), "computations": (3, "Computation", _MANY),
        "id": (5, _I64), "entry_computation_id": (6, _I64), "input_output_alias": (8, "Aliases"),
    },
    "Computation": {
        "name": (1, _STR), "instructions": (2, "Instruction", _MANY), "id": (5, _I64), "root_id": (6, _I64),
    },
    "Instruction": {
        "name": (1, _STR), "opcode": (2, _STR), "shape": (3, "Shape"), "metadata": (7, "Metadata"),
        "literal": (8, "Literal"), "parameter_number": (9, _I64), "dimensions": (14, _I64, _MANY),
        "window": (15, "Window"),
        "custom_call_target": (28, _STR), "gather_dimension_numbers": (33, "GatherDims"), "id": (35, _I64),
        "operand_ids": (36, _I64, _MANY), "called_computation_ids": (38, _I64, _MANY), "backend_config": (43, _BYTES),
        "scatter_dimension_numbers": (48, "ScatterDims"), "replica_groups": (49, "ReplicaGroup", _MANY),
        "frontend_attributes": (68, "Frontend"), "rng_algorithm": (70, _INT),
        "collective_device_list": (87, "DeviceList"),
    },
    "Shape": {
        "element_type": (2, _INT), "dimensions": (3, _I64, _MANY), "tuple_shapes": (4, "Shape", _MANY),
        "is_dynamic_dimension": (6, _BOOL, _MANY),
    },
    "Metadata": {
        "op_type": (1, _STR), "op_name": (2, _STR), "source_file": (3, _STR), "source_line": (4, _INT),
    },
    "Literal": {"u64s": (7, _U64, _MANY)},
    "Window": {"dimensions": (1, "WindowDimension", _MANY)},
    "WindowDimension": {
        "size": (1, _I64), "stride": (2, _I64), "window_dilation": (5, _I64), "base_dilation": (6, _I64),
    },
    "GatherDims": {"start_index_map": (3, _I64, _MANY)},
    "ScatterDims": {"scatter_dims_to_operand_dims": (3, _I64, _MANY)},
    "ReplicaGroup": {"replica_ids": (1, _I64, _MANY)},
    "DeviceList": {"replica_groups": (1, "ReplicaGroup", _MANY)},
    "Frontend": {"map": (1, "FrontendEntry", _MANY)},
    "FrontendEntry": {"key": (1, _STR), "value": (2, _STR)},
    "Aliases": {"entries": (1, "AliasEntry", _MANY)},
    "AliasEntry": {
        "output_shape_index": (1, _I64, _MANY), "parameter_number": (2, _I64),
        "parameter_shape_index": (3, _I64, _MANY), "kind": (4, _INT),
    },
}  # fmt: skip


@cache
def _module_class():
    file = descriptor_pb2.FileDescriptorProto(name="neuron_aot/hlo.proto", package=_PACKAGE, syntax="proto3")
    for message, fields in _MESSAGES.items():
        described = file.message_type.add(name=message)
        for name, (number, kind, *repeated) in fields.items():
            field = described.field.add(name=name, number=number)
            field.label = field.LABEL_REPEATED if repeated else field.LABEL_OPTIONAL
            if isinstance(kind, str):
                field.type, field.type_name = field.TYPE_MESSAGE, f".{_PACKAGE}.{kind}"
            else:
                field.type = kind
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName(f"{_PACKAGE}.Module"))


def parse_module(hlo: bytes):
    """The module as a message. Raises ValueError for bytes that are not an ``HloModuleProto``."""
    from google.protobuf.message import DecodeError

    module = _module_class()()
    try:
        module.ParseFromString(hlo)
    except DecodeError as error:
        raise ValueError(f"not an HloModuleProto: {error}") from error
    if not module.computations:
        raise ValueError("not an HloModuleProto: it has no computation")
    return module


def serialize(module) -> bytes:
    """The module's bytes; the same for the same content."""
    return module.SerializeToString(deterministic=True)


def entry_computation(module):
    """The computation that parameters and results belong to."""
    for computation in module.computations:
        if computation.id == module.entry_computation_id:
            return computation
    raise ValueError("the module names an entry computation that it does not have")


def element_type(shape) -> str:
    """``bf16``, ``s32``, …; ``type 99`` for one that this file does not know."""
    return PRIMITIVE_TYPES.get(shape.element_type, f"type {shape.element_type}")


def leaf_shapes(shape) -> list:
    """The arrays of a shape: itself, or those of a tuple, flattened."""
    if element_type(shape) != "tuple":
        return [shape]
    return [leaf for part in shape.tuple_shapes for leaf in leaf_shapes(part)]
