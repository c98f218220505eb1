"""Model facts: the fields of a ``config.json`` that decide what a program computes.

A model family declares its facts as data; the bundle's manifest carries them with their values. So the runtime
can tell another model from this one by reading the served ``config.json``, without any model code, and a
fine-tune that only renames itself or bumps a library version still matches.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from pydantic import BaseModel, ConfigDict, JsonValue

from .canonical import exact_number


class Fact(BaseModel):
    """One fact. ``sources`` are dotted paths into ``config.json``, first present and non-null one wins."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    name: str
    sources: tuple[str, ...]
    default: JsonValue = None
    value: JsonValue = None

    def read(self, config: Mapping) -> JsonValue:
        """This fact's value in a raw ``config.json``, in exact form (see ``canonical.exact_number``)."""
        for source in self.sources:
            found = _lookup(config, source)
            if found is not None:
                return exact_number(found)
        return self.default


def fact(name: str, *sources: str, default: JsonValue = None) -> Fact:
    """Declare a fact; without ``sources`` it is the field of that name at the top level."""
    return Fact(name=name, sources=sources or (name,), default=exact_number(default))


def read_facts(declared: Sequence[Fact], config: Mapping) -> tuple[Fact, ...]:
    """The declared facts with their values in ``config``."""
    return tuple(item.model_copy(update={"value": item.read(config)}) for item in declared)


def compare_facts(facts: Sequence[Fact], config: Mapping) -> list[tuple[str, JsonValue, JsonValue]]:
    """(name, value in the bundle, value in ``config``) of every fact that differs."""
    return [(item.name, item.value, found) for item in facts if (found := item.read(config)) != item.value]


def _lookup(config: Mapping, path: str):
    value = config
    for part in path.split("."):
        if not isinstance(value, Mapping):
            return None
        value = value.get(part)
    return value
