"""The page of a bundle: its grid, what made it, and what it takes."""

from __future__ import annotations

from neuron_aot_runtime.contract.manifest import Manifest, Program
from neuron_aot_runtime.store import Bundle, ProgramRecord, read_program

from ..plan.bounds import padding_bounds
from ..units import duration, size
from .page import Bars, Cell, Page, Table, bars, heatmaps, share
from .timeline import timelines


def bundle_page(bundle: Bundle) -> Page:
    """Reads the manifest and the programs' records, no artifact. Raises AccessDeniedError, IntegrityError."""
    manifest = bundle.manifest
    records = {program.name: read_program(bundle.reader, program.program_key) for program in manifest.programs}
    made = [(name, record.provenance) for name, record in records.items() if record is not None]
    return Page(
        title=manifest.model.architecture,
        subtitle=f"bundle {bundle.bundle_id}",
        facts=_facts(bundle, unrecorded=len(records) - len(made)),
        sections=(*_grid(manifest, records), _memory(manifest), *timelines(made), _sizes(manifest), _table(manifest)),
    )


def _facts(bundle: Bundle, *, unrecorded: int) -> tuple[tuple[str, str], ...]:
    manifest = bundle.manifest
    facts = [
        ("reference", str(bundle.reference)),
        ("target", f"{manifest.target} x {manifest.world_size}"),
        ("programs", str(len(manifest.programs))),
        ("artifacts", size(_artifact_bytes(manifest))),
        *((name, str(value)) for name, value in manifest.serving.engine.items() if value is not None),
        ("built with", ", ".join(f"{name} {version}" for name, version in manifest.toolchain.items())),
    ]
    if unrecorded:
        facts.append(("without a record", f"{unrecorded} programs: when they were made is not known"))
    return tuple(facts)


def _grid(manifest: Manifest, records: dict[str, ProgramRecord | None]):
    seconds = {
        name: (record.provenance.lower_ms + record.provenance.generate_ms) / 1000 if record else 0.0
        for name, record in records.items()
    }
    longest = max(seconds.values())

    def cell(program: Program) -> Cell:
        took = duration(seconds[program.name]) if records[program.name] else "no record"
        return Cell(share(seconds[program.name], longest), took, size(program.artifact.size), program.name)

    return heatmaps(
        manifest.programs, cell, "The stronger the colour, the longer the compile; below, the artifact's size."
    )


def _memory(manifest: Manifest) -> Bars:
    parts = [
        ("weights", sum(spec.nbytes for spec in manifest.params)),
        ("KV cache", sum(spec.nbytes for spec in manifest.states)),
    ]
    if memory := manifest.memory:
        parts.append(("left for programs", memory.left_bytes))
        note = f"Of {size(memory.device_bytes)} on each rank; the KV cache is sized by {memory.sized_by}."
    else:
        parts.append(("programs", _artifact_bytes(manifest)))
        note = f"{manifest.target} has no budget: host memory is not divided at compile time."
    return bars("Device memory", note, [(name, amount, size(amount)) for name, amount in parts])


def _sizes(manifest: Manifest) -> Bars:
    ordered = sorted(manifest.programs, key=lambda program: (-program.artifact.size, program.name))
    amounts = [(program.name, program.artifact.size, size(program.artifact.size)) for program in ordered]
    return bars("Sizes of the programs", f"{size(_artifact_bytes(manifest))} of artifacts in all.", amounts)


def _table(manifest: Manifest) -> Table:
    bounds = padding_bounds(manifest.programs)
    rows = []
    for program in manifest.programs:
        bound = bounds[program.name]
        least = f"{bound.least_size} of {bound.least_context}"
        rows.append(
            (program.name, least, f"{bound.padding:.0%}", program.program_key[:16], program.artifact.digest[7:23])
        )
    return Table(
        title="Programs",
        note="The smallest step that runs a program, and how much of that step is padding.",
        columns=("program", "smallest step", "pads up to", "program key", "sha256"),
        numeric=(1, 2),
        rows=tuple(rows),
    )


def _artifact_bytes(manifest: Manifest) -> int:
    return sum({program.artifact.digest: program.artifact.size for program in manifest.programs}.values())
