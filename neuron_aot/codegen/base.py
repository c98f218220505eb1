"""The code generator contract: HLO bytes in, an artifact file out."""

from __future__ import annotations

from pathlib import Path
from typing import Protocol


class CodeGenerator(Protocol):
    """One compiler for one target.

    ``name`` and ``artifact_format`` are stable words (``xla-cpu``, ``neuronx-cc``; ``xla-cpu``, ``neff``).
    """

    name: str
    target: str
    artifact_format: str

    def identity(self) -> dict[str, str]:
        """What of this compiler decides the artifact's bytes: name, version, canonical flags, CPU features.

        Part of the program key. Cheap: no compiler is started and JAX is not imported.
        """

    def requires(self) -> dict[str, str]:
        """What the serving host must offer; ``Device.check`` compares it. Goes into the manifest."""

    def generate(self, hlo: bytes, artifact: Path) -> None:
        """Compile ``hlo`` and write the artifact to ``artifact`` (a path that does not exist yet).

        Works alone in its process or beside others. Raises CompileError naming what the compiler said; leaves no
        file behind when it fails.
        """
