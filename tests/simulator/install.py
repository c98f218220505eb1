"""Installs the simulator for a test, and tells it how to misbehave."""

from __future__ import annotations

import json
import os
import sys
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).parent


@dataclass
class Simulator:
    """``folder`` holds the executable, its instructions and its diary. ``environment``: what makes it be found."""

    folder: Path

    def __post_init__(self) -> None:
        program = self.folder / "neuronx-cc"
        program.write_text(
            f"#!{sys.executable}\nimport runpy\nrunpy.run_path({str(HERE / 'neuronx_cc.py')!r}, run_name='__main__')\n"
        )
        program.chmod(0o755)
        self.tell()

    @property
    def environment(self) -> dict[str, str]:
        path = [str(HERE / "python"), *filter(None, [os.environ.get("PYTHONPATH")])]
        return {
            "PATH": f"{self.folder}{os.pathsep}{os.environ['PATH']}",
            "PYTHONPATH": os.pathsep.join(path),
            "NEURON_SIMULATOR": str(self.folder / "told.json"),
            "XDG_CACHE_HOME": str(self.folder / "cache"),
        }

    def tell(self, **told) -> None:
        """``version``; ``unlisted``: operators; ``faults``: program tag -> fault (see neuronx_cc.py); ``runtime``: see nrtpy.py."""
        (self.folder / "told.json").write_text(json.dumps(told))

    @property
    def runs(self) -> list[str]:
        """The tags of the programs compiled so far, in order."""
        diary = self.folder / "told.json.diary"
        return diary.read_text().split() if diary.exists() else []

    def commands(self) -> list[list[str]]:
        """The command lines of those runs."""
        path = self.folder / "told.json.commands"
        return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
