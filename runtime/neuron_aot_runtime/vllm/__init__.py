"""The vLLM plugin: plugin -> platform -> scheduler, worker -> runner.

``engine_args(reference)`` is the one name for users: ``LLM(**engine_args("./store@smollm2/demo"), model=…)``.
"""

from __future__ import annotations

from typing import Any


def engine_args(reference: str) -> dict[str, Any]:
    """Keyword arguments for vLLM's LLM or EngineArgs that serve exactly what the bundle ``reference`` holds.

    The model is not among them unless the recipe gave it. NEURON_COMPILED_ARTIFACTS must name the same bundle.
    Raises StoreError.
    """
    from .active import open_once
    from .arguments import serving_arguments

    return serving_arguments(open_once(reference).manifest)
