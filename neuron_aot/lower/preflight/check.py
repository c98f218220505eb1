"""Applies every rule to every instruction of a module."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass

from neuron_aot_runtime.contract.errors import LoweringError

from ...targets import NeuronTarget
from ..hlo_proto import parse_module
from .context import Context
from .rules import RULES, Rule

_SHOWN = 20


@dataclass(frozen=True, kw_only=True)
class Violation:
    """One instruction that the compiler would refuse. ``line``: the model line it comes from, None when unknown."""

    program: str
    codes: tuple[str, ...]
    rule: str
    instruction: str
    found: str
    line: str | None
    fix: str

    def as_dict(self) -> dict:
        """Plain data, for ``--json``."""
        return asdict(self) | {"codes": list(self.codes)}

    def __str__(self) -> str:
        where = f" at {self.line}" if self.line else ""
        return (
            f"{self.program}: {'/'.join(self.codes)}: {self.rule}; {self.instruction}: {self.found}{where}; {self.fix}"
        )


def check_hlo(
    hlo: bytes,
    target: NeuronTarget,
    *,
    program: str,
    origins: Mapping[int, str] | None = None,
    unlisted: frozenset[str] = frozenset(),
) -> list[Violation]:
    """Every violation in ``hlo``, in the module's order. Raises ValueError for bytes that are no HloModuleProto.

    ``unlisted``: opcodes that the installed compiler does not list, as ``operators.unlisted`` finds them.
    """
    context = Context(parse_module(hlo), target, unlisted)
    by_opcode: dict[str, list[Rule]] = defaultdict(list)
    general = [rule for rule in RULES if not rule.opcodes]
    for rule in RULES:
        for opcode in rule.opcodes:
            by_opcode[opcode].append(rule)
    found = []
    for instruction in context.instructions.values():
        for rule in (*general, *by_opcode.get(instruction.opcode, ())):
            if (problem := rule.check(context, instruction)) is not None:
                found.append(
                    Violation(
                        program=program,
                        codes=rule.codes,
                        rule=rule.says,
                        instruction=f"{instruction.opcode} {instruction.name}",
                        found=problem,
                        line=(origins or {}).get(instruction.id),
                        fix=rule.fix,
                    )
                )
    return found


def violations_error(violations: Sequence[Violation], target: str) -> LoweringError:
    """The error of a program that the compiler for ``target`` would refuse."""
    count = len(violations)
    lines = [str(item) for item in violations[:_SHOWN]]
    if count > _SHOWN:
        lines.append(f"and {count - _SHOWN} more")
    return LoweringError(
        f"{violations[0].program}: neuronx-cc would refuse {count} instruction{'s' if count > 1 else ''} for {target}",
        details=lines,
        next_command="change the model lines named above; no compiler was started",
    )
