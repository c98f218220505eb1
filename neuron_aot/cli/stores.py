"""neuron-aot ls, diff, gc, purge: what a store holds, and what should go."""

from __future__ import annotations

from typing import Annotated

import typer

from . import _output

_Store = Annotated[str, typer.Argument(help="A directory, s3://BUCKET/PREFIX, or a URL that fsspec knows.")]
_Reference = Annotated[str, typer.Argument(help="STORE@REF, STORE@BUNDLE_ID or STORE.", show_default=False)]
_Json = Annotated[bool, typer.Option("--json", help="Print the result as JSON on stdout.")]


def ls_command(
    store: _Store = "./store",
    verify: Annotated[
        bool, typer.Option("--verify", help="Read every byte; else no bundle is called healthy.")
    ] = False,
    json_output: _Json = False,
) -> int:
    """List a store's bundles, their refs, and whether they are whole."""
    from dataclasses import asdict

    from ..store import open_existing
    from ..store.listing import list_bundles

    listed = list_bundles(open_existing(store), verify=verify)
    if json_output:
        _output.data({"store": store, "bundles": [asdict(item) for item in listed]})
    else:
        rows = [
            [
                ", ".join(item.refs) or "-",
                item.bundle[:16],
                item.state + (f" ({len(item.problems)})" if item.problems else ""),
                item.target or "?",
                item.model or "?",
                str(item.programs),
                _output.size(item.nbytes),
                str(len(item.signatures)),
            ]
            for item in listed
        ]
        columns = ["ref", "bundle", "state", "target", "model", ">programs", ">size", ">signatures"]
        _output.table(f"{len(listed)} bundles in {store}", columns, rows)
    for item in listed:
        for problem in item.problems:
            _output.talk(f"{', '.join(item.refs) or item.bundle[:16]}: {problem}", style="red")
    return 6 if any(item.state == "damaged" for item in listed) else 4 if any(item.problems for item in listed) else 0


def diff_command(a: _Reference, b: _Reference, json_output: _Json = False) -> None:
    """Show every field in which two bundles differ."""
    from neuron_aot_runtime.store import open_bundle

    from ..store.listing import diff_manifests

    left, right = open_bundle(a), open_bundle(b)
    changes = diff_manifests(left.manifest, right.manifest)
    if json_output:
        fields = [{"field": change.field, "a": change.a, "b": change.b} for change in changes]
        _output.data({"a": left.bundle_id, "b": right.bundle_id, "same": not changes, "differences": fields})
        return
    rows = [[change.field, _short(change.a), _short(change.b)] for change in changes]
    _output.table(f"{len(changes)} differences", ["field", a, b], rows)


def gc_command(
    store: _Store,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="List what would go; remove nothing.")] = False,
    keep_last: Annotated[
        int, typer.Option(min=1, help="Entries of each ref's history that stay, the present included.")
    ] = 1,
    grace_hours: Annotated[
        float, typer.Option(min=0, help="What is younger stays; longer than any push or compile.")
    ] = 24,
    json_output: _Json = False,
) -> None:
    """Remove what no ref leads to."""
    from ..store import open_existing
    from ..store.gc import collect, plan_gc

    opened, grace = open_existing(store), grace_hours * 3600
    plan = (plan_gc if dry_run else collect)(opened, keep_last=keep_last, grace=grace)
    verb = "would go" if dry_run else "removed"
    if json_output:
        _output.data(
            {
                "dry_run": dry_run,
                "removed": [{"path": entry.path, "bytes": entry.size} for entry in plan.doomed],
                "bytes": plan.nbytes,
                "kept": plan.kept,
                "kept_bytes": plan.kept_bytes,
            }
        )
        return
    for entry in plan.doomed:
        print(f"{entry.path}  {_output.size(entry.size)}")
    _output.talk(
        f"{len(plan.doomed)} objects {verb}, {_output.size(plan.nbytes)}; "
        f"{plan.kept} stay, {_output.size(plan.kept_bytes)}"
    )


def purge_command(
    store: _Store,
    name: Annotated[str, typer.Argument(help="A bundle id or a program key.", show_default=False)],
    force: Annotated[bool, typer.Option("--force", help="Even if something names it.")] = False,
    json_output: _Json = False,
) -> None:
    """Remove one bundle, or one program with its artifact."""
    from ..store import open_existing
    from ..store.gc import purge

    removed = purge(open_existing(store), name, force=force)
    if json_output:
        _output.data({"removed": [{"path": entry.path, "bytes": entry.size} for entry in removed]})
        return
    for entry in removed:
        print(f"{entry.path}  {_output.size(entry.size)}")


def _short(value) -> str:
    text = "-" if value is None else str(value)
    return text if len(text) <= 40 else text[:37] + "…"
