"""Names of a program's tensors in its NEFF, and aliases that the compiler must keep.

``neff_input_names`` on each parameter and ``neff_output_names`` (joined by commas) on the root are frontend attributes
that the Neuron compiler reads; without them a NEFF's tensors are called input0, output0, …
"""

from __future__ import annotations

from collections.abc import Sequence

from . import hlo_proto


def name_tensors(hlo: bytes, inputs: Sequence[str], outputs: Sequence[str]) -> bytes:
    """``hlo`` with its parameters and results named, and every input/output alias a must-alias.

    Raises ValueError when the counts differ or a name holds a comma.
    """
    module = hlo_proto.parse_module(hlo)
    entry = hlo_proto.entry_computation(module)
    parameters = {item.parameter_number: item for item in entry.instructions if item.opcode == "parameter"}
    (root,) = (item for item in entry.instructions if item.id == entry.root_id)
    results = len(root.shape.tuple_shapes) if root.opcode == "tuple" else 1
    if (len(parameters), results) != (len(inputs), len(outputs)):
        raise ValueError(
            f"the module takes {len(parameters)} and gives {results} tensors, not {len(inputs)} and {len(outputs)}"
        )
    if odd := [name for name in (*inputs, *outputs) if "," in name]:
        raise ValueError(f"a NEFF's tensor name cannot hold a comma: {odd[0]}")
    for number, name in enumerate(inputs):
        parameters[number].frontend_attributes.map.add(key="neff_input_names", value=name)
    root.frontend_attributes.map.add(key="neff_output_names", value=",".join(outputs))
    for entry in module.input_output_alias.entries:
        entry.kind = hlo_proto.MUST_ALIAS
    return hlo_proto.serialize(module)
