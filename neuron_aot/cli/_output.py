"""Data on stdout, talk on stderr. Colour only on a terminal, and never with NO_COLOR."""

from __future__ import annotations

import json
import os
import sys
from functools import cache

from ..units import size

__all__ = ["console", "data", "discard_stdout", "size", "table", "talk"]


@cache
def console():
    """The rich console for talk."""
    from rich.console import Console

    return Console(stderr=True, highlight=False, soft_wrap=True)


def talk(text: str, *, style: str | None = None) -> None:
    """Tell people something."""
    console().print(text, style=style, markup=False)


def data(value) -> None:
    """One line of JSON for programs."""
    print(json.dumps(value, separators=(", ", ": ")), flush=True)


def table(title: str, columns: list[str], rows: list[list[str]]) -> None:
    """A table as a command's result."""
    from rich.console import Console
    from rich.table import Table

    made = Table(title=title, title_justify="left", box=None, pad_edge=False, header_style="bold")
    for column in columns:
        made.add_column(column.removeprefix(">"), justify="right" if column.startswith(">") else "left", no_wrap=True)
    for row in rows:
        made.add_row(*row)
    out = Console(highlight=False)
    if not out.is_terminal:
        out.width = 200  # a file or a pipe has no width to fit
    out.print(made, markup=False)


def discard_stdout() -> None:
    """Let the interpreter's last flush go nowhere instead of failing."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
