"""The ranks in a module: its collectives and their replica groups."""

from __future__ import annotations

from . import hlo_proto

COLLECTIVES = ("all-reduce", "all-gather", "reduce-scatter", "all-to-all")


def spell_groups(hlo: bytes) -> bytes:
    """``hlo`` with the replica groups of its collectives in the field that every version of XLA reads.

    Ours writes them to ``collective_device_list``, which older readers, and so the Neuron compiler's, may not know: they
    would take a collective without groups. A module without collectives comes back as it is.
    """
    module = hlo_proto.parse_module(hlo)
    found = [
        instruction
        for computation in module.computations
        for instruction in computation.instructions
        if instruction.HasField("collective_device_list")
    ]
    for instruction in found:
        instruction.replica_groups.extend(instruction.collective_device_list.replica_groups)
        instruction.ClearField("collective_device_list")
    return hlo_proto.serialize(module) if found else hlo


def replica_count(hlo: bytes) -> int:
    """How many ranks run the module together: the largest replica group of its collectives; 1 without any."""
    sizes = (
        len(group.replica_ids)
        for computation in hlo_proto.parse_module(hlo).computations
        for instruction in computation.instructions
        if instruction.opcode in COLLECTIVES
        for group in instruction.replica_groups
    )
    return max(sizes, default=1)
