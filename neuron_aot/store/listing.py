"""What a store holds, and how two bundles differ."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from neuron_aot_runtime.contract.errors import IntegrityError, NotFoundError
from neuron_aot_runtime.contract.layout import blob_path, program_path
from neuron_aot_runtime.contract.manifest import Manifest
from neuron_aot_runtime.store import read_manifest, read_ref, refs

from .check import check_programs
from .store import Store


@dataclass(frozen=True, kw_only=True)
class Listed:
    """One bundle. ``state``: ``unverified`` (all is there, with the right size), ``incomplete``, ``damaged``, or, after
    every byte was read, ``healthy``. Nothing is called healthy that was not read."""

    bundle: str
    refs: tuple[str, ...]
    state: str
    problems: tuple[str, ...]
    signatures: tuple[str, ...]
    target: str | None = None
    model: str | None = None
    programs: int = 0
    nbytes: int = 0


def list_bundles(store: Store, *, verify: bool = False) -> list[Listed]:
    """Every bundle, those with refs first; ``verify`` reads every byte."""
    named: dict[str, list[str]] = {}
    for name in refs(store.backend):
        named.setdefault(read_ref(store.backend, name).bundle, []).append(name)
    there = {Path(path).stem for path in store.names("bundles")}
    objects = {entry.path: entry.size for kind in ("blobs", "programs", "signatures") for entry in store.list(kind)}
    listed = [_listed(store, bundle, named.get(bundle, []), objects, verify) for bundle in sorted(there | set(named))]
    return sorted(listed, key=lambda item: (not item.refs, item.refs, item.bundle))


def _listed(store: Store, bundle: str, names: list[str], objects: dict[str, int], verify: bool) -> Listed:
    signatures = tuple(Path(path).stem for path in objects if path.startswith(f"signatures/{bundle}/"))
    base = {"bundle": bundle, "refs": tuple(names), "signatures": signatures}
    try:
        manifest = read_manifest(store.backend, bundle)
    except NotFoundError as error:
        return Listed(**base, state="incomplete", problems=(error.message,))
    except IntegrityError as error:
        return Listed(**base, state="damaged", problems=(error.message,))
    missing, wrong = [], []
    for program in manifest.programs:
        size = objects.get(blob_path(program.artifact.digest))
        if size is None or program_path(program.program_key) not in objects:
            missing.append(f"{program.name}: missing")
        elif size != program.artifact.size:
            wrong.append(f"{program.name}: {size} bytes instead of {program.artifact.size}")
    if verify and not missing and not wrong:
        wrong = [f"{problem.subject}: {problem.error.message}" for problem in check_programs(store, manifest)]
    state = "damaged" if wrong else "incomplete" if missing else "healthy" if verify else "unverified"
    blobs = {program.artifact.digest: program.artifact.size for program in manifest.programs}
    return Listed(
        **base,
        state=state,
        problems=(*wrong, *missing),
        target=manifest.target,
        model=manifest.model.architecture,
        programs=len(manifest.programs),
        nbytes=sum(blobs.values()),
    )


@dataclass(frozen=True)
class Change:
    """One field that differs; None where a side does not have it."""

    field: str
    a: object
    b: object


def diff_manifests(a: Manifest, b: Manifest) -> list[Change]:
    """Every difference between two bundles, field by field; programs by name."""
    left, right = _fields(a), _fields(b)
    return [
        Change(field, left.get(field), right.get(field))
        for field in dict.fromkeys((*left, *right))
        if left.get(field) != right.get(field)
    ]


def _fields(manifest: Manifest) -> dict[str, object]:
    data = manifest.model_dump(mode="json")
    found: dict[str, object] = {name: data[name] for name in ("target", "world_size")}
    found |= {f"model.{name}": data["model"][name] for name in ("architecture", "vocab_size", "hidden_size")}
    found |= {f"fact.{fact['name']}": fact["value"] for fact in data["model"]["facts"]}
    for group in ("engine", "neuron_config"):
        found |= {f"{group}.{name}": value for name, value in data["serving"][group].items()}
    for group in ("kv_cache", "requires", "toolchain"):
        found |= {f"{group}.{name}": value for name, value in data[group].items()}
    found |= {f"param.{item['name']}": f"{item['shape']} {item['dtype']}" for item in data["params"]}
    for program in manifest.programs:
        found[f"program.{program.name}.key"] = program.program_key
        found[f"program.{program.name}.artifact"] = program.artifact.digest
    return found
