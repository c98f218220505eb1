"""The serving configuration and its rules: one place, for the recipe before compiling and the plugin at start.

Names, defaults and rules are those of vLLM and of the vLLM Neuron configuration reference. Ours, and not theirs:

    max_model_len            default: what the model's config.json allows (max_position_embeddings)
    max_num_seqs             default: the largest of num_seqs_buckets, or 8
    max_num_batched_tokens   default: the largest of num_batched_tokens_buckets, or 2048 (less for a shorter model)
    num_gpu_blocks_override  default: room for max_num_seqs sequences of max_model_len, plus the null block
    prefill_context_length_buckets   context lengths, prior tokens included, that prefill programs are compiled for
                             beside their own tokens and max_model_len; the rules of decode_context_length_buckets
    sequence_parallel_enabled        prefill divides its tokens over the ranks between projections; default: where
                             tensor_parallel_size divides every prefill bucket

All violations of one configuration come in one ConfigError, a line each: ``key: what is wrong``.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, JsonValue

from .buckets import decode_grid, prefill_grid
from .errors import ConfigError
from .manifest import Bucket, Serving
from .rules import Rules


class NeuronConfig(BaseModel):
    """``neuron_config``, resolved: the bucket lists are spelled out; null means off."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    num_batched_tokens_buckets: tuple[int, ...]
    num_seqs_buckets: tuple[int, ...]
    decode_context_length_buckets: tuple[int, ...] | None = None
    prefill_context_length_buckets: tuple[int, ...] | None = None
    kv_segment_size_buckets: tuple[int, ...] | None = None
    on_device_sampling_config: dict[str, bool] | None = None
    sequence_parallel_enabled: bool = False


class ServingConfig(BaseModel):
    """A serving configuration that keeps every rule, with no default left open; made by :func:`resolve_serving`.

    ``engine_extras`` are vLLM engine arguments that no program depends on; a bundle carries them for ``serve``.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    dtype: Literal["float32", "bfloat16"]
    max_model_len: int
    max_num_batched_tokens: int
    max_num_seqs: int
    block_size: int
    num_gpu_blocks_override: int
    kv_cache_dtype: Literal["auto"] = "auto"
    tensor_parallel_size: int = 1
    enable_prefix_caching: bool = True
    neuron_config: NeuronConfig
    engine_extras: dict[str, JsonValue] = {}

    @property
    def kv_dtype(self) -> str:
        """The KV cache's logical element type."""
        return self.dtype

    @property
    def num_blocks(self) -> int:
        """KV cache blocks, the null block included."""
        return self.num_gpu_blocks_override

    @property
    def greedy(self) -> bool:
        """Whether programs end in an argmax instead of logits."""
        return self.neuron_config.on_device_sampling_config is not None

    @property
    def sequence_parallel(self) -> bool:
        """Whether the ranks of a prefill divide its tokens between projections."""
        return self.neuron_config.sequence_parallel_enabled

    def prefill_contexts(self) -> tuple[int, ...]:
        """Ascending; the implicit ``max_model_len`` is the last."""
        return (*(self.neuron_config.prefill_context_length_buckets or ()), self.max_model_len)

    def decode_contexts(self) -> tuple[int, ...]:
        """Ascending; the implicit ``max_model_len`` is the last."""
        return (*(self.neuron_config.decode_context_length_buckets or ()), self.max_model_len)

    def prefill_buckets(self) -> list[Bucket]:
        """Every prefill bucket that the scheduler can ask for."""
        tokens = self.neuron_config.num_batched_tokens_buckets
        return prefill_grid(tokens, self.prefill_contexts(), self.max_model_len, self.block_size)

    def decode_buckets(self) -> list[Bucket]:
        """Every decode bucket that the scheduler can ask for."""
        return decode_grid(self.neuron_config.num_seqs_buckets, self.decode_contexts(), self.block_size)

    def as_manifest_serving(self) -> Serving:
        """The configuration as a bundle's manifest holds it: vLLM's names, nothing left to a default."""
        engine = self.model_dump(mode="json", exclude={"neuron_config", "engine_extras"})
        return Serving(engine=engine | self.engine_extras, neuron_config=self.neuron_config.model_dump(mode="json"))

    @classmethod
    def from_manifest(cls, serving: Serving) -> ServingConfig:
        """The inverse of :meth:`as_manifest_serving`. Raises pydantic.ValidationError for a foreign manifest."""
        own = {name: value for name, value in serving.engine.items() if name in cls.model_fields}
        extras = {name: value for name, value in serving.engine.items() if name not in own}
        return cls(**own, neuron_config=NeuronConfig(**serving.neuron_config), engine_extras=extras)


def resolve_serving(
    engine: Mapping[str, Any], neuron_config: Mapping[str, Any], *, model_config: Mapping[str, Any]
) -> ServingConfig:
    """Apply defaults to vLLM's engine arguments and ``neuron_config`` and check every rule.

    ``engine`` holds only what the user set (a key with None counts as not set); ``model_config`` is the raw
    ``config.json``. Raises ConfigError with one detail line for each violation.
    """
    rules = Rules(engine, neuron_config)
    values = rules.resolve(model_config)
    if rules.violations or values is None:
        count = len(rules.violations)
        raise ConfigError(
            f"the serving configuration breaks {count} rule{'s' if count != 1 else ''}", details=rules.violations
        )
    return ServingConfig(**values)
