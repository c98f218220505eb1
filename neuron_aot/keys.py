"""The two levels of keys; both are 64 hex digits, sha256 over canonical JSON.

    request key   what was asked for: known without tracing, so an unchanged compile answers at once
    program key   what the compiler sees: two requests that lower to the same HLO share one program

Nothing about the user, paths or time is in either, and of the host only what the code generator says it depends on.
"""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Mapping
from functools import cache
from importlib import metadata
from pathlib import Path

from neuron_aot_runtime.contract.canonical import digest_bytes, digest_json

from .program import LoweredProgram, ProgramPlan

REQUEST_SCHEMA = 1
PROGRAM_SCHEMA = 1

#: What lowers a model: a change in any of these files may change the HLO.
_LOWERING_SOURCES = ("models", "lower", "program.py")
#: The libraries that trace and lower; read from their metadata, never imported here.
_LOWERING_LIBRARIES = ("torch", "jax", "jaxlib")


def request_key(plan: ProgramPlan, code_generator: Mapping[str, str], lowering: Mapping) -> str:
    """The key of one planned program. ``code_generator`` is its identity, ``lowering`` from lowering_identity()."""
    model = {field.name: getattr(plan.model, field.name) for field in dataclasses.fields(plan.model)}
    model["facts"] = {fact.name: fact.value for fact in plan.model.facts}
    return _hex(
        {
            "schema": REQUEST_SCHEMA,
            "model": model,
            "phase": plan.phase,
            "bucket": plan.bucket.model_dump(),
            "code_generator": dict(code_generator),
            "lowering": dict(lowering),
        }
    )


def program_key(
    lowered: LoweredProgram,
    *,
    target: str,
    code_generator: Mapping[str, str],
    kernel_sources: Mapping[str, str] | None = None,
) -> str:
    """The key of the work itself. ``code_generator``: its identity; a logical core size is part of that.

    ``kernel_sources``: digest of each hand-written kernel that the HLO calls."""
    return _hex(
        {
            "schema": PROGRAM_SCHEMA,
            "hlo": digest_bytes(lowered.hlo),
            "target": target,
            "code_generator": dict(code_generator),
            "kernel_sources": dict(kernel_sources or {}),
        }
    )


@cache
def lowering_identity() -> dict:
    """Digest of the lowering's own sources and the versions of its libraries; imports neither torch nor jax."""
    return {"sources": source_digest(Path(__file__).parent), "libraries": library_versions()}


def source_digest(package: Path) -> str:
    """The digest of the lowering's Python sources under ``package``: their names there and their contents."""
    state = hashlib.sha256()
    files = [
        path
        for name in _LOWERING_SOURCES
        for path in ([package / name] if name.endswith(".py") else (package / name).rglob("*.py"))
    ]
    for path in sorted(files, key=lambda path: path.relative_to(package).as_posix()):
        content = path.read_bytes()
        state.update(f"{path.relative_to(package).as_posix()}\0{len(content)}\0".encode())
        state.update(content)
    return "sha256:" + state.hexdigest()


@cache
def library_versions() -> dict[str, str]:
    """Versions of the libraries that lower; ``absent`` for one that is not installed."""
    versions = {}
    for name in _LOWERING_LIBRARIES:
        try:
            versions[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            versions[name] = "absent"
    return versions


def _hex(value) -> str:
    return digest_json(value).removeprefix("sha256:")
