"""The command line: thin commands over ``pipeline``; each imports what is heavy when it runs."""

from __future__ import annotations


def main() -> None:
    """The entry point of ``neuron-aot``."""
    from .app import app

    app()
