"""neuron-aot push, pull, export, import, import-cache: bundles and programs from one place to another."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from . import _output

_Source = Annotated[str, typer.Argument(help="STORE@REF, STORE@BUNDLE_ID or STORE.", show_default=False)]
_Store = Annotated[
    str, typer.Argument(help="A directory, s3://BUCKET/PREFIX, or a URL that fsspec knows.", show_default=False)
]
_Ref = Annotated[str | None, typer.Option(help="The ref to set there; default: the source's.")]
_Json = Annotated[bool, typer.Option("--json", help="Print the result as JSON on stdout.")]


def push_command(source: _Source, destination: _Store, ref: _Ref = None, json_output: _Json = False) -> None:
    """Copy a bundle into another store: only the blobs that it lacks, each verified, the ref last."""
    _copy("push", source, destination, ref, json_output)


def pull_command(source: _Source, destination: _Store, ref: _Ref = None, json_output: _Json = False) -> None:
    """The same as push, under the name that fits when the other store is the near one."""
    _copy("pull", source, destination, ref, json_output)


def _copy(verb: str, source: str, destination: str, ref: str | None, json_output: bool) -> None:
    from neuron_aot_runtime.contract.layout import ref_path
    from neuron_aot_runtime.store import open_bundle

    from ..store import open_store
    from ..store.transfer import copy_bundle, default_ref
    from ._transfers import copy_progress, tell_copy

    if ref is not None:
        ref_path(ref)
    store = open_store(destination)
    bundle = open_bundle(source)
    with copy_progress(verb) as progress:
        report = copy_bundle(bundle, store, ref=ref or default_ref(bundle), progress=progress)
    tell_copy(report, destination, as_json=json_output)


def export_command(
    reference: _Source,
    file: Annotated[Path, typer.Argument(help="The tar file to write.", show_default=False)],
    json_output: _Json = False,
) -> None:
    """Write a bundle, with its records and signatures, as one file."""
    from neuron_aot_runtime.store import open_bundle

    from ..store.archive import export_bundle

    bundle = open_bundle(reference)
    nbytes = export_bundle(bundle, file)
    _output.talk(f"{file}: {len(bundle.manifest.programs)} programs, {_output.size(nbytes)}")
    if json_output:
        _output.data({"bundle": bundle.bundle_id, "file": str(file), "bytes": nbytes})
    else:
        print(bundle.bundle_id)


def import_command(
    file: Annotated[Path, typer.Argument(help="A file of neuron-aot export.", show_default=False)],
    destination: _Store,
    ref: Annotated[str | None, typer.Option(help="The ref to set.")] = None,
    json_output: _Json = False,
) -> None:
    """Verify all of a file and store the bundle in it."""
    from ..store import open_store
    from ..store.archive import import_bundle
    from ._transfers import copy_progress, tell_copy

    with copy_progress("import") as progress:
        report = import_bundle(file, open_store(destination), ref=ref, progress=progress)
    tell_copy(report, destination, as_json=json_output)


def import_cache_command(
    directory: Annotated[Path, typer.Argument(help="A Neuron compile cache.", show_default=False)],
    store: _Store = "./store",
    json_output: _Json = False,
) -> int:
    """Adopt the programs of a Neuron compile cache (MODULE_…/ folders), recognised by their content."""
    from ..store import open_store
    from ..store.adopt import adopt_cache

    outcomes = adopt_cache(directory, open_store(store))
    for outcome in outcomes:
        said = "known already" if outcome.known else "adopted"
        _output.talk(f"{outcome.folder}: {outcome.error or said}", style="red" if outcome.error else None)
    failed = [outcome for outcome in outcomes if outcome.error]
    if json_output:
        _output.data(
            {
                "adopted": [
                    {"folder": item.folder, "known": item.known, "program_key": item.record.program_key,
                     "target": item.record.target, **item.record.artifact.model_dump()}
                    for item in outcomes if item.record
                ],
                "refused": [{"folder": item.folder, **item.error.as_dict()} for item in failed],
            }
        )  # fmt: skip
    else:
        for item in outcomes:
            if item.record:
                print(item.record.program_key)
    return failed[0].error.exit_code if failed else 0
