"""The Neuron targets: logical core sizes, device memory per logical core, float8 types. Data only.

Sources: the compiler's command line reference (targets, ``--logical-nc-config``, NCC_EARG001), the architecture guides
(memory per chip and cores per chip), the compiler's error reference (float8 types: NCC_EVRF051, NCC_EVRF052).
"""

from __future__ import annotations

from dataclasses import dataclass

from neuron_aot_runtime.contract.errors import UsageError

CPU = "cpu"
_GB = 10**9


@dataclass(frozen=True, kw_only=True)
class NeuronTarget:
    """``memory``: logical core size -> bytes of device memory per logical core; the first size is the default."""

    name: str
    memory: dict[int, int]
    float8: tuple[str, ...]

    @property
    def default_core_size(self) -> int:
        return next(iter(self.memory))

    def core_size(self, wanted: int | None) -> int:
        """The logical core size to compile for. Raises UsageError for one that the hardware does not have."""
        size = wanted or self.default_core_size
        if size not in self.memory:
            raise UsageError(
                f"{self.name} has no logical cores of size {size} (the compiler would say NCC_EARG001)",
                wanted=f"--lnc {' | '.join(map(str, sorted(self.memory)))}",
                found=f"--lnc {size}",
                next_command="leave --lnc out, or compile for trn2 or trn3",
            )
        return size


_TABLE = (
    # 32 GB a chip, 2 cores
    NeuronTarget(name="inf2", memory={1: 16 * _GB}, float8=("f8e4m3", "f8e5m2")),
    NeuronTarget(name="trn1", memory={1: 16 * _GB}, float8=("f8e4m3", "f8e5m2")),
    NeuronTarget(name="trn1n", memory={1: 16 * _GB}, float8=("f8e4m3", "f8e5m2")),
    # 96 GB a chip, 8 physical cores
    NeuronTarget(name="trn2", memory={2: 24 * _GB, 1: 12 * _GB}, float8=("f8e4m3", "f8e5m2")),
    # 144 GB a chip, 8 physical cores
    NeuronTarget(name="trn3", memory={2: 36 * _GB, 1: 18 * _GB}, float8=("f8e4m3", "f8e4m3fn", "f8e5m2")),
)
NEURON_TARGETS = {target.name: target for target in _TABLE}
TARGETS = (CPU, *NEURON_TARGETS)


def neuron_target(name: str) -> NeuronTarget:
    """The target of that name. Raises UsageError, naming the known ones."""
    if name not in NEURON_TARGETS:
        raise UsageError(f"unknown target {name!r}", wanted=" | ".join(TARGETS), found=name)
    return NEURON_TARGETS[name]


@dataclass(frozen=True, kw_only=True)
class CompileOptions:
    """What a user asks of the code generator: logical core size (None: the target's default) and extra flags.

    ``timeout``: seconds for one compile, None for no limit; no artifact depends on it.
    """

    lnc: int | None = None
    flags: tuple[str, ...] = ()
    timeout: int | None = None
