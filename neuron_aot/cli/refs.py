"""neuron-aot refs, rollback: the names that move."""

from __future__ import annotations

from typing import Annotated

import typer

from . import _output

_Ref = Annotated[str, typer.Argument(help="STORE@REF.", show_default=False)]
_Json = Annotated[bool, typer.Option("--json", help="Print the result as JSON on stdout.")]


def set_command(
    ref: _Ref,
    bundle: Annotated[str, typer.Argument(help="A bundle id, or another ref of the same store.", show_default=False)],
    json_output: _Json = False,
) -> None:
    """Let a ref mean a bundle: promote it."""
    from neuron_aot_runtime.contract.layout import is_bundle_id
    from neuron_aot_runtime.store import RefRecord, read_ref

    store, name = _named(ref)
    record = RefRecord(bundle=bundle) if is_bundle_id(bundle) else read_ref(store.backend, bundle)
    _tell(ref, store.set_ref(name, RefRecord(bundle=record.bundle, model=record.model)), json_output)


def rm_command(ref: _Ref, json_output: _Json = False) -> None:
    """Remove a ref; its history stays."""
    from ..store.refs import remove_ref

    store, name = _named(ref)
    remove_ref(store.backend, name)
    if json_output:
        _output.data({"removed": name})


def log_command(ref: _Ref, json_output: _Json = False) -> None:
    """Show what a ref has meant, the latest first."""
    from neuron_aot_runtime.contract.errors import NotFoundError
    from neuron_aot_runtime.store import read_ref

    from ..store.refs import history

    store, name = _named(ref)
    entries = history(store.backend, name)
    try:
        current = read_ref(store.backend, name)
    except NotFoundError:
        if not entries:
            raise
        current = None
    if json_output:
        _output.data(
            {
                "ref": name,
                "bundle": current.bundle if current else None,
                "history": [entry.model_dump(mode="json") for entry in entries],
            }
        )
        return
    rows = [
        [
            str(entry.number),
            entry.set_at or "-",
            entry.bundle,
            "now" if current and entry.number == current.number else "",
        ]
        for entry in entries
    ]
    _output.table(f"{name}: {len(entries)} entries", [">number", "set at", "bundle", ""], rows)


def rollback_command(ref: _Ref, json_output: _Json = False) -> None:
    """Let a ref mean the bundle it meant before."""
    from ..store.refs import rollback

    store, name = _named(ref)
    _tell(ref, rollback(store.backend, name), json_output)


def _named(text: str):
    from neuron_aot_runtime.contract.errors import UsageError
    from neuron_aot_runtime.contract.layout import is_bundle_id
    from neuron_aot_runtime.store import parse_reference

    from ..store import open_existing

    reference = parse_reference(text)
    if reference.name is None or is_bundle_id(reference.name):
        raise UsageError(f"{text!r} does not name a ref", wanted="STORE@REF", found=text)
    return open_existing(reference.store), reference.name


def _tell(ref: str, record, json_output: bool) -> None:
    _output.talk(f"{ref} is {record.bundle} (number {record.number})")
    if json_output:
        _output.data(record.model_dump(mode="json"))
    else:
        print(record.bundle)
