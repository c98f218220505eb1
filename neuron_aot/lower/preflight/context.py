"""What a rule sees: the target and the module, with quick ways from an instruction to its operands."""

from __future__ import annotations

from ...targets import NeuronTarget
from ..hlo_proto import element_type, leaf_shapes

#: Operators that hand their operand's elements on as they are.
_TRANSPARENT = ("reshape", "broadcast", "convert", "copy", "transpose", "bitcast")


class Context:
    """``instructions``: by id, in the module's order. ``unlisted``: opcodes that the installed compiler does not list."""

    def __init__(self, module, target: NeuronTarget, unlisted: frozenset[str] = frozenset()) -> None:
        self.target = target
        self.unlisted = unlisted
        self.computations = {item.id: item for item in module.computations}
        self.instructions = {item.id: item for computation in module.computations for item in computation.instructions}

    def operands(self, instruction) -> list:
        return [self.instructions[number] for number in instruction.operand_ids]

    def types(self, instruction) -> list[str]:
        """Element types of the instruction's result, one for each array of a tuple."""
        return [element_type(shape) for shape in leaf_shapes(instruction.shape)]

    def root(self, computation_id: int):
        """The instruction whose result is the computation's."""
        return self.instructions[self.computations[computation_id].root_id]

    def source(self, instruction):
        """The instruction that made the elements, seen through reshapes and the like."""
        while instruction.opcode in _TRANSPARENT:
            instruction = self.instructions[instruction.operand_ids[0]]
        return instruction
