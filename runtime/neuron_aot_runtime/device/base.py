"""The device contract: everything the runner asks of a machine that executes programs.

A device is opened once per process, in the worker. Order of calls:

    check(requires)                  before anything is read
    load(program, path) …            once per program; the blob's digest has been verified by the caller
    put_param(spec, array) …         once per param
    allocate_states(specs)           once
    execute(name, inputs) …          every step
    close()

With more than one rank every rank makes the same calls of load and execute in the same order, for executing is a
collective. The input ``rank`` of a program is the device's own to fill.

Host arrays are numpy; bfloat16 is ``ml_dtypes.bfloat16``. No two executions and no two loads run at once; with
``loads_while_serving`` a load may run in another thread during an execution.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import numpy as np

from ..contract.manifest import Manifest, Program, TensorSpec
from ..ranks import RankGroup


@dataclass(frozen=True)
class Place:
    """Which of an engine's ranks a device is. ``core``: the logical core it was given, None for the visible one of
    its rank; ``ranks``: how it meets the others, None where there are none; ``replica``: which engine of several."""

    rank: int = 0
    world_size: int = 1
    core: int | None = None
    ranks: RankGroup | None = None
    replica: int = 0


ALONE = Place()


class Device(Protocol):
    """``keeps_params``: whether arrays given to ``put_param`` must stay as they are.

    ``loads_while_serving``: whether the server may say that it is ready before every program is loaded. Not where a
    program takes device memory of its own: what does not fit must show before the first request."""

    target: str
    loads_while_serving: bool
    keeps_params: bool

    def check(self, requires: Mapping[str, str]) -> None:
        """Raise IncompatibleArtifactError, listing every unmet requirement, unless this host meets them all."""

    def load(self, manifest: Manifest, program: Program, artifact: Path) -> None:
        """Load one program's artifact, and check that what it reports matches the manifest's signature.

        Raises IncompatibleArtifactError (wrong build), IntegrityError (not an artifact), DeviceError.
        """

    def put_param(self, spec: TensorSpec, array: np.ndarray) -> None:
        """Place one weight. ``array`` has ``spec``'s shape and dtype; the device may keep a view of it.

        Raises ValueError when shape or dtype differ.
        """

    def allocate_states(self, specs: Sequence[TensorSpec]) -> None:
        """Allocate the KV cache, zeroed, once; programs overwrite it in place."""

    def execute(self, name: str, inputs: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        """Run a loaded program. ``inputs`` by name, all but ``rank``, of the program's exact shapes and dtypes.

        Blocks until the outputs are readable and returns them by name, as host arrays that stay valid.
        Raises DeviceError.
        """

    def close(self) -> None:
        """Release everything; the device cannot be used again."""
