"""neuron-aot show: what a bundle holds."""

from __future__ import annotations

from typing import Annotated

import typer

from . import _output


def show_command(
    reference: Annotated[str, typer.Argument(help="STORE@REF, STORE@BUNDLE_ID or STORE.", show_default=False)],
    json_output: Annotated[bool, typer.Option("--json", help="Print the result as JSON on stdout.")] = False,
) -> None:
    """Show a bundle's programs, buckets, sizes and keys, and what built them."""
    from neuron_aot_runtime.store import open_bundle, read_program

    from ..plan import budget_lines

    bundle = open_bundle(reference)
    manifest = bundle.manifest
    records = {program.name: read_program(bundle.reader, program.program_key) for program in manifest.programs}
    if json_output:
        programs = []
        for program in manifest.programs:
            record = records[program.name]
            shown = program.model_dump(mode="json", exclude={"inputs", "outputs"})
            programs.append(shown | {"provenance": record.provenance.model_dump(mode="json") if record else None})
        _output.data(
            {
                "bundle": bundle.bundle_id,
                "reference": str(bundle.reference),
                "model_hint": bundle.ref.model if bundle.ref else None,
                **manifest.model_dump(mode="json", exclude={"programs", "params", "states", "weight_map"}),
                "params": len(manifest.params),
                "programs": programs,
            }
        )
        return
    rows = []
    for program in manifest.programs:
        record = records[program.name]
        made = record.provenance if record else None
        rows.append(
            [
                program.name,
                str(program.bucket.size),
                str(program.bucket.context),
                _output.size(program.artifact.size),
                program.program_key[:16],
                program.artifact.digest.removeprefix("sha256:")[:16],
                f"{made.built_at}  {(made.lower_ms + made.generate_ms) / 1000:.1f} s" if made else "no record",
            ]
        )
    total = _output.size(sum({p.artifact.digest: p.artifact.size for p in manifest.programs}.values()))
    print(f"bundle     {bundle.bundle_id}")
    print(
        f"model      {manifest.model.architecture}, {_output.size(sum(p.nbytes for p in manifest.params))} of weights"
    )
    print(f"target     {manifest.target} x {manifest.world_size}, needs {_pairs(manifest.requires)}")
    for line in budget_lines(manifest.memory) if manifest.memory else ():
        print(f"memory     {line}")
    print(f"engine     {_pairs(manifest.serving.engine)}")
    print(f"neuron     {_pairs(manifest.serving.neuron_config)}")
    print(f"built with {_pairs(manifest.toolchain)}\n")
    columns = ["program", ">size", ">context", ">artifact", "program key", "sha256", "made"]
    _output.table(f"{len(rows)} programs, {total}", columns, rows)


def _pairs(values: dict) -> str:
    shown = {name: str(value) for name, value in values.items() if value is not None}
    return ", ".join(f"{name} {text if len(text) <= 60 else text[:57] + '…'}" for name, text in shown.items())
