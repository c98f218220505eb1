"""Progress of a copy: a bar on a terminal, a line a second or so elsewhere."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

from ..store.transfer import Progress, Report
from . import _output


@contextmanager
def copy_progress(verb: str) -> Iterator[Progress]:
    """The Progress to hand to a copy."""
    if not _output.console().is_terminal:
        yield _Lines(verb)
        return
    from rich.progress import BarColumn, DownloadColumn, TransferSpeedColumn
    from rich.progress import Progress as Bar

    with Bar(
        f"{verb}", BarColumn(), DownloadColumn(), TransferSpeedColumn(), console=_output.console(), transient=True
    ) as bar:
        task = bar.add_task(verb)
        yield lambda done, total: bar.update(task, completed=done, total=total)


class _Lines:
    def __init__(self, verb: str) -> None:
        self.verb, self.told = verb, time.monotonic()

    def __call__(self, done: int, total: int) -> None:
        if time.monotonic() - self.told > 1:
            self.told = time.monotonic()
            _output.talk(f"{self.verb}: {_output.size(done)} of {_output.size(total)}")


def tell_copy(report: Report, where: str, *, as_json: bool) -> None:
    """The result of a copy."""
    name = f"{where}@{report.ref or report.bundle}"
    rate = f", {_output.size(report.moved_bytes / report.seconds)}/s" if report.moved_bytes and report.seconds else ""
    _output.talk(
        f"{name}: {report.moved_blobs} blobs copied ({_output.size(report.moved_bytes)}), "
        f"{report.kept_blobs} there already ({_output.size(report.kept_bytes)}), {report.seconds:.2f} s{rate}"
    )
    for program in report.adopted:
        _output.talk(f"{program}: not reproducible: another writer's bytes differ and were first; they were adopted")
    if as_json:
        _output.data(
            {
                "bundle": report.bundle,
                "source_bundle": report.source_bundle,
                "ref": report.ref,
                "moved": {"blobs": report.moved_blobs, "bytes": report.moved_bytes},
                "kept": {"blobs": report.kept_blobs, "bytes": report.kept_bytes},
                "not_reproducible": list(report.adopted),
                "seconds": round(report.seconds, 3),
            }
        )
    else:
        print(name)
