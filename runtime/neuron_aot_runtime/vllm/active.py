"""The bundle that this process serves, and how its errors end a process."""

from __future__ import annotations

import logging
import sys
from functools import cache
from typing import NoReturn

from .. import store
from ..contract.errors import ConfigError, NeuronAotError
from ..settings import ARTIFACTS, read_settings
from ..store.fetch import fetch_bundle

# A child of vLLM's logger, so that its handlers and format serve ours too.
logger = logging.getLogger("vllm.neuron_aot")


def active_bundle() -> store.Bundle:
    """The bundle named by NEURON_COMPILED_ARTIFACTS, opened once per process. Raises StoreError, ConfigError."""
    reference = read_settings().artifacts
    if reference is None:
        raise ConfigError(f"{ARTIFACTS} is not set", wanted="<path or store url>@<ref or bundle id>", found="nothing")
    return open_once(reference)


@cache
def open_once(reference: str) -> store.Bundle:
    """The bundle, its artifacts on this host; the same for every caller of this process. Raises StoreError."""
    # Cached across fork: the engine and its workers inherit what the frontend has resolved, so a ref that moves
    # between the two cannot make them serve different bundles. So no client of a remote store may live here.
    return fetch_bundle(reference)


class CommandLine:
    """Whether vLLM's command line runs this process: then an error is a message and an exit code, not a traceback."""

    active = False

    @classmethod
    def fail(cls, error: NeuronAotError) -> NoReturn:
        """End the command with the error's own exit code, or raise the error in a Python program."""
        if not cls.active:
            raise error
        print(f"error: {error}", file=sys.stderr, flush=True)
        raise SystemExit(error.exit_code)
