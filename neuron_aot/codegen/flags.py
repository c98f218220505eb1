"""Compiler flags in one form: order and spelling do not change a key, meaning does.

``--lnc=2``, ``--lnc 2`` and ``--logical-nc-config 2`` are one flag; so are ``-O1`` and ``--optlevel 1``. Flags come from
the recipe and from NEURON_CC_FLAGS; one that both set to different values is refused rather than guessed.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from neuron_aot_runtime.contract.errors import UsageError

from ..targets import NeuronTarget

LNC = "--logical-nc-config"
DEFAULTS = {"--model-type": "transformer", "--auto-cast": "none", "--optlevel": "2"}

_SPELLINGS = {"--lnc": LNC, "-O": "--optlevel", "--optimization-level": "--optlevel", "-v": "--verbose"}
#: Set by neuron-aot itself: where files lie, and what the recipe already says.
_OURS = {
    "--output": "neuron-aot names the output",
    "--logfile": "neuron-aot keeps each program's log",
    "--framework": "the input is XLA's",
    "--target": "it belongs in compile.target of the recipe, or --target of neuron-aot",
    "--cache_dir": "it is an option of another front end; neuron-aot compiles into --store",
    "--retry_failed_compilation": "it is an option of another front end; neuron-aot has --retry-failed",
}
#: Decide what the compiler says, not what it makes.
_TALK = ("--verbose", "--logfile-verbose")
#: Options of the documented command line without a value; an unknown one has a value when a word follows it.
_SWITCHES = (
    "--enable-fast-loading-neuron-binaries", "--enable-mixed-precision-accumulation", "--enable-saturate-infinity",
    "--disable-mixed-precision-accumulation", "--enable-fast-context-switch",
)  # fmt: skip


@dataclass(frozen=True)
class Flags:
    """Canonical flags: option -> its values in order ('' for a switch). ``lnc`` is among them under its long name."""

    values: Mapping[str, tuple[str, ...]]

    def arguments(self) -> list[str]:
        """The command line, sorted by option."""
        return [word for name in sorted(self.values) for value in self.values[name] for word in _words(name, value)]

    def identity(self) -> str:
        """What of the flags decides the artifact, as one line."""
        quiet = {name: values for name, values in self.values.items() if name not in _TALK}
        return shlex.join(Flags(quiet).arguments())


def merge_flags(
    target: NeuronTarget, *, recipe: Iterable[str] = (), environment: str = "", lnc: int | None = None
) -> Flags:
    """All flags of a compile: the defaults, over them the recipe's and NEURON_CC_FLAGS, and the logical core size.

    Raises UsageError for a flag that is ours to set, for a stray word, and where two sources disagree.
    """
    sources = {"the recipe's compiler_flags": parse_flags(recipe), "NEURON_CC_FLAGS": parse_flags(_split(environment))}
    if lnc is not None:
        sources["--lnc (or the recipe's lnc)"] = {LNC: (str(lnc),)}
    merged: dict[str, tuple[str, ...]] = {}
    origin: dict[str, str] = {}
    for source, flags in sources.items():
        for name, values in flags.items():
            if name in _OURS and (name, values) not in (("--target", (target.name,)), ("--framework", ("XLA",))):
                raise UsageError(f"{name} cannot be a compiler flag: {_OURS[name]}", found=f"{name} in {source}")
            if merged.get(name, values) != values:
                raise UsageError(
                    f"{origin[name]} and {source} disagree about {name}",
                    found=f"{' '.join(merged[name])} and {' '.join(values)}",
                    next_command="remove one of the two",
                )
            merged[name], origin[name] = values, source
    for name in _OURS:
        merged.pop(name, None)
    (size,) = merged.get(LNC, (str(target.default_core_size),))[-1:]
    if not size.isdigit():
        raise UsageError(f"{LNC} wants a number", wanted="1 | 2", found=size)
    return Flags(
        {**{name: (value,) for name, value in DEFAULTS.items()}, **merged, LNC: (str(target.core_size(int(size))),)}
    )


def parse_flags(words: Iterable[str]) -> dict[str, tuple[str, ...]]:
    """Words of a command line to option -> values. The last value of a repeated known option wins, as on its own
    command line; an option that we do not know keeps all of its values, in order. Raises UsageError."""
    found: dict[str, tuple[str, ...]] = {}
    waiting: str | None = None
    for word in words:
        if waiting is not None and not word.startswith("-"):
            _add(found, waiting, word)
            waiting = None
            continue
        if waiting is not None:
            _add(found, waiting, "")
            waiting = None
        if not word.startswith("-"):
            raise UsageError("a compiler flag must start with a dash", found=word)
        name, equals, value = word.partition("=")
        if not equals and name[:2] == "-O" and name[2:]:
            name, equals, value = "-O", "=", name[2:]
        name = _SPELLINGS.get(name, name)
        if equals:
            _add(found, name, value)
        elif name in _SWITCHES:
            _add(found, name, "")
        else:
            waiting = name
    if waiting is not None:
        _add(found, waiting, "")
    return found


def _add(found: dict[str, tuple[str, ...]], name: str, value: str) -> None:
    known = name in DEFAULTS or name == LNC or name in _SWITCHES or name in _TALK or name in _OURS
    found[name] = (value,) if known else (*found.get(name, ()), value)


def _words(name: str, value: str) -> list[str]:
    if value == "":
        return [name]
    return [f"{name}={value}"] if value.startswith("-") or " " in value else [name, value]


def _split(text: str) -> list[str]:
    try:
        return shlex.split(text)
    except ValueError as error:
        raise UsageError("NEURON_CC_FLAGS cannot be split into words", found=f"{text}: {error}") from None
