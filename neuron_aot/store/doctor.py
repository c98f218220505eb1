"""What the settings are, and what a store says to each kind of access. No secret is ever part of an answer."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from importlib import metadata

from neuron_aot_runtime.contract.errors import NeuronAotError
from neuron_aot_runtime.settings import read_store_settings
from neuron_aot_runtime.store import refs
from neuron_aot_runtime.store.aws import Setting, settings

from . import leases
from .store import open_existing

_PACKAGES = ("neuron-aot", "neuron-aot-runtime", "obstore", "fsspec", "cryptography", "boto3")


@dataclass(frozen=True)
class Step:
    """One thing that was tried. ``needed``: whether reading needs it."""

    name: str
    said: str
    error: NeuronAotError | None = None
    needed: bool = True


def settings_in_force() -> list[Setting]:
    """Every setting that decides how stores are read. Raises ConfigError."""
    own = read_store_settings()
    found = [Setting(name, _text(getattr(own, name)), source) for name, source in own.sources.items()]
    return found + [Setting(f"aws {item.name}", item.value, item.source) for item in settings()]


def versions() -> dict[str, str]:
    """The packages that reading and writing stores may need."""
    found = {}
    for name in _PACKAGES:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            found[name] = "not installed"
    return found


def try_store(url: str) -> list[Step]:
    """List, read and write the store, and say what each got; stops at the first failure that reading cannot do without."""
    steps: list[Step] = []

    def attempt(name: str, work: Callable[[], str], *, needed: bool = True) -> bool:
        try:
            steps.append(Step(name, work()))
        except NeuronAotError as error:
            steps.append(Step(name, f"{type(error).__name__}: {error.message}", error if needed else None, needed))
            return False
        return True

    store = None

    def opened() -> str:
        nonlocal store
        store = open_existing(url)
        return store.location

    def written() -> str:
        with leases.held(store.backend, "push"):
            return "an object was written and removed"

    if (
        attempt("open", opened)
        and attempt("read", lambda: f"{len(store.names('bundles'))} bundles")
        and attempt("refs", lambda: ", ".join(refs(store.backend)) or "no refs")
    ):
        attempt("write", written, needed=False)
    return steps


def _text(value) -> str | None:
    return None if value is None else str(value)
