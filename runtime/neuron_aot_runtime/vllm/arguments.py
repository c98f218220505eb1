"""The engine arguments that a bundle serves with, under vLLM's names."""

from __future__ import annotations

from typing import Any

from ..contract.manifest import Manifest


def serving_arguments(manifest: Manifest) -> dict[str, Any]:
    """What makes vLLM serve exactly what the bundle holds. The model is among them only if the recipe gave it."""
    engine = {name: value for name, value in manifest.serving.engine.items() if value is not None}
    engine["async_scheduling"] = False
    if padded := padded_heads(manifest):
        engine["hf_overrides"] = padded
    return engine


def padded_heads(manifest: Manifest) -> dict[str, int] | None:
    """``hf_overrides`` that say the query heads as the ranks hold them, with padding; None where they divide evenly.

    vLLM refuses ranks that do not divide the query heads of ``config.json``; its models would need that, ours pad. It
    uses the number for nothing else here, but for the head size, which is therefore given.
    """
    heads = next((fact.value for fact in manifest.model.facts if fact.name == "num_attention_heads"), None)
    if not isinstance(heads, int) or heads % manifest.world_size == 0:
        return None
    per_rank = -(-heads // manifest.world_size)
    return {"num_attention_heads": per_rank * manifest.world_size, "head_dim": manifest.kv_cache.head_size}
