"""The code generator contract: HLO bytes in, an artifact file out."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Protocol

from neuron_aot_runtime.contract.errors import CompileError


class CodeGenerator(Protocol):
    """One compiler for one target.

    ``name`` and ``artifact_format`` are stable words (``xla-cpu``, ``neuronx-cc``; ``xla-cpu``, ``neff``).
    """

    name: str
    target: str
    artifact_format: str

    def identity(self) -> dict[str, str]:
        """What of this compiler decides the artifact's bytes: name, version, canonical flags, CPU features.

        Part of the program key. Cheap: no compiler is started (its version is remembered) and JAX is not imported.
        """

    def requires(self) -> dict[str, str]:
        """What the serving host must offer; ``Device.check`` compares it. Goes into the manifest."""

    def check(self) -> None:
        """Raise CompileError, saying what to install, unless this host can generate code."""

    def generate(self, hlo: bytes, artifact: Path) -> Mapping[str, Path] | None:
        """Compile ``hlo`` and write the artifact to ``artifact`` (a path that does not exist yet).

        Returns further files to keep with it, by name (``hlo``, ``log``), which lie beside the artifact. Works alone
        in its process or beside others. Raises CompileError naming what the compiler said; leaves no artifact behind
        when it fails.
        """


class CompilerError(CompileError):
    """A compiler's failure. ``log``: what it said, beside the artifact; ``code``: its error code.

    ``remember``: it would fail in the same way again. ``transient``: it was killed, so another try may succeed.
    """

    log: Path | None = None
    code: str | None = None
    remember: bool = False
    transient: bool = False

    def about(
        self, *, log: Path | None = None, code: str | None = None, remember: bool = False, transient: bool = False
    ) -> CompilerError:
        """This error with those facts."""
        self.log, self.code, self.remember, self.transient = log, code, remember, transient
        return self
