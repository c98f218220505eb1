"""The rules of a serving configuration, option by option; ``serving.resolve_serving`` runs them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

from .buckets import powers_of_two, round_up
from .canonical import exact_number
from .fields import check_engine_values, check_keys, check_neuron_values

DEFAULT_BLOCK_SIZE = 32
DEFAULT_MAX_NUM_SEQS = 8
DEFAULT_MAX_NUM_BATCHED_TOKENS = 2048
SMALLEST_TOKENS_BUCKET = 128
CONTEXT_MULTIPLE = 128
SEGMENT_SIZES = (512, 1024, 2048, 4096, 8192)

_DTYPES = {"float32": "float32", "float": "float32", "bfloat16": "bfloat16"}
_HALF = ("float16", "half")
_LARGEST = 1 << 30  # positions and slots are int32

_OWN = (
    "dtype", "max_model_len", "max_num_batched_tokens", "max_num_seqs", "block_size", "num_gpu_blocks_override",
    "kv_cache_dtype", "tensor_parallel_size", "enable_prefix_caching",
)  # fmt: skip


class Rules:
    """Reads options one by one and remembers what is wrong, so that one run reports everything."""

    def __init__(self, engine: Mapping[str, Any], neuron_config: Mapping[str, Any]) -> None:
        self.engine = {name: value for name, value in engine.items() if value is not None}
        self.neuron = {name: value for name, value in neuron_config.items() if value is not None}
        self.violations = check_keys(self.engine, "engine") + check_keys(self.neuron, "neuron_config")
        self.violations += check_engine_values(self.engine) + check_neuron_values(self.neuron)

    def resolve(self, model_config: Mapping[str, Any]) -> dict[str, Any] | None:
        """The fields of a ServingConfig, or None when ``violations`` says why there is none."""
        tokens = self.sizes("num_batched_tokens_buckets")
        seqs = self.sizes("num_seqs_buckets")
        segments = self.sizes("kv_segment_size_buckets")
        tokens = tokens or segments
        dtype = self.dtype(model_config)
        self.kv_cache_dtype()
        ranks = self.number("tensor_parallel_size", 1)
        self.utilization()
        greedy = self.sampling()
        prefix_caching = self.boolean("enable_prefix_caching", True)
        block_size = self.block_size()

        max_model_len = self.max_model_len(model_config)
        max_num_seqs = self.number("max_num_seqs", seqs[-1] if seqs else DEFAULT_MAX_NUM_SEQS)
        shorter = max(min(DEFAULT_MAX_NUM_BATCHED_TOKENS, max_model_len or _LARGEST), max_num_seqs or 1)
        max_num_batched_tokens = self.number("max_num_batched_tokens", tokens[-1] if tokens else shorter)
        contexts = {
            name: self.contexts(name, max_model_len, block_size)
            for name in ("decode_context_length_buckets", "prefill_context_length_buckets")
        }
        if not (max_model_len and max_num_seqs and max_num_batched_tokens and block_size):
            return None  # the rest compares these with one another

        self.largest("num_batched_tokens_buckets", tokens, "max_num_batched_tokens", max_num_batched_tokens)
        self.largest("num_seqs_buckets", seqs, "max_num_seqs", max_num_seqs)
        if max_num_batched_tokens < max_num_seqs:
            self.add("engine.max_num_batched_tokens", f"at least max_num_seqs ({max_num_seqs})", max_num_batched_tokens)
        self.segments(segments, tokens, block_size)
        num_blocks = self.num_blocks(max_model_len, max_num_seqs, block_size)
        prefills = tokens or powers_of_two(SMALLEST_TOKENS_BUCKET, max_num_batched_tokens)
        by_tokens = self.sequence_parallel(prefills, ranks or 1)
        if self.violations:
            return None
        return {
            "dtype": dtype,
            "max_model_len": max_model_len,
            "max_num_batched_tokens": max_num_batched_tokens,
            "max_num_seqs": max_num_seqs,
            "block_size": block_size,
            "num_gpu_blocks_override": num_blocks,
            "tensor_parallel_size": ranks,
            "enable_prefix_caching": prefix_caching,
            "neuron_config": {
                "num_batched_tokens_buckets": prefills,
                "num_seqs_buckets": seqs or powers_of_two(1, max_num_seqs),
                "kv_segment_size_buckets": segments,
                "on_device_sampling_config": {"all_greedy": True} if greedy else None,
                "sequence_parallel_enabled": by_tokens,
                **contexts,
            },
            "engine_extras": {name: exact_number(value) for name, value in self.engine.items() if name not in _OWN},
        }

    def add(self, key: str, wanted: str, found: Any) -> None:
        self.violations.append(f"{key}: wanted {wanted}, found {found!r}")

    def number(self, name: str, default: int) -> int | None:
        value = self.engine.get(name, default)
        if not _is_int(value) or not 1 <= value <= _LARGEST:
            self.add(f"engine.{name}", "a positive whole number", value)
            return None
        return value

    def utilization(self) -> None:
        value = self.engine.get("gpu_memory_utilization", 1)
        try:
            wrong = isinstance(value, bool) or not 0 < float(value) <= 1
        except (TypeError, ValueError):
            wrong = True
        if wrong:
            self.add("engine.gpu_memory_utilization", "a share of the device's memory, above 0 and at most 1", value)

    def boolean(self, name: str, default: bool) -> bool:
        value = self.engine.get(name, default)
        if not isinstance(value, bool):
            self.add(f"engine.{name}", "true or false", value)
        return value

    def sizes(self, name: str) -> tuple[int, ...] | None:
        """A bucket list of neuron_config: whole numbers, strictly ascending; None when not set or not a list."""
        value = self.neuron.get(name)
        if value is None:
            return None
        ok = isinstance(value, Sequence) and not isinstance(value, str) and len(value) > 0
        if not ok or not all(_is_int(item) and 1 <= item <= _LARGEST for item in value):
            self.add(f"neuron_config.{name}", "a list of positive whole numbers", value)
            return None
        if any(later <= earlier for earlier, later in pairwise(value)):
            self.add(f"neuron_config.{name}", "strictly ascending sizes", list(value))
            return None
        return tuple(value)

    def largest(self, name: str, buckets: tuple[int, ...] | None, limit_name: str, limit: int) -> None:
        if buckets and buckets[-1] != limit:
            self.add(f"neuron_config.{name}", f"a largest bucket equal to {limit_name} ({limit})", list(buckets))

    def contexts(self, name: str, max_model_len: int | None, block_size: int | None) -> tuple[int, ...] | None:
        key = f"neuron_config.{name}"
        contexts = self.sizes(name)
        if contexts is None:
            return None
        multiple = max(CONTEXT_MULTIPLE, block_size or 1)
        if odd := [context for context in contexts if context % multiple]:
            self.add(key, f"multiples of {multiple}", odd)
        if max_model_len and (long := [context for context in contexts if context >= max_model_len]):
            self.add(key, f"lengths below max_model_len ({max_model_len}, which has its own bucket)", long)
        return contexts

    def segments(self, segments: tuple[int, ...] | None, tokens: tuple[int, ...] | None, block_size: int) -> None:
        key = "neuron_config.kv_segment_size_buckets"
        if segments is None:
            return
        if len(segments) > 1:
            self.add(key, "a single segment size", list(segments))
        if wrong := [size for size in segments if size not in SEGMENT_SIZES]:
            self.add(key, f"sizes out of {', '.join(map(str, SEGMENT_SIZES))}", wrong)
        elif wrong := [size for size in segments if size % block_size]:
            self.add(key, f"sizes divisible by block_size ({block_size})", wrong)
        if tokens != segments:
            self.add(key, f"the same sizes as num_batched_tokens_buckets ({list(tokens or ())})", list(segments))

    def block_size(self) -> int | None:
        size = self.number("block_size", DEFAULT_BLOCK_SIZE)
        if size is not None and (size & (size - 1) or size > 1024):
            self.add("engine.block_size", "a power of two up to 1024", size)
            return None
        return size

    def num_blocks(self, max_model_len: int, max_num_seqs: int, block_size: int) -> int:
        one_sequence = round_up(max_model_len, block_size) // block_size
        num_blocks = self.number("num_gpu_blocks_override", max_num_seqs * one_sequence + 1)
        if num_blocks is not None and num_blocks <= one_sequence:
            wanted = f"at least {one_sequence + 1} (one sequence of max_model_len {max_model_len}, and the null block)"
            self.add("engine.num_gpu_blocks_override", wanted, num_blocks)
        if num_blocks is not None and num_blocks * block_size > _LARGEST:
            self.add("engine.num_gpu_blocks_override", f"at most {_LARGEST // block_size} blocks", num_blocks)
        return num_blocks or 0

    def max_model_len(self, model_config: Mapping[str, Any]) -> int | None:
        allowed = longest_sequence(model_config)
        if allowed is None and "max_model_len" not in self.engine:
            self.violations.append("engine.max_model_len: config.json states no max_position_embeddings; set it")
            return None
        length = self.number("max_model_len", allowed or 0)
        if length and allowed and length > allowed:
            self.add("engine.max_model_len", f"at most {allowed} (config.json's max_position_embeddings)", length)
        return length

    def dtype(self, model_config: Mapping[str, Any]) -> str | None:
        value, where = self.engine.get("dtype", "auto"), "engine.dtype"
        if value == "auto":
            value, where = model_config.get("dtype") or model_config.get("torch_dtype"), "config.json's dtype"
        if value is None:
            self.violations.append("engine.dtype: config.json states no dtype; set float32 or bfloat16")
        elif value in _HALF:
            self.violations.append(
                f"{where}: float16 is not supported, because models trained in bfloat16 overflow its range; "
                "set dtype: bfloat16 (or float32)"
            )
        elif not isinstance(value, str) or value not in _DTYPES:
            self.add(where, "auto, float32 or bfloat16", value)
        else:
            return _DTYPES[value]
        return None

    def kv_cache_dtype(self) -> None:
        value = self.engine.get("kv_cache_dtype", "auto")
        if isinstance(value, str) and value.startswith("fp8"):
            self.violations.append(f"engine.kv_cache_dtype: {value} is not supported yet; leave it at auto")
        elif value != "auto":
            self.add("engine.kv_cache_dtype", "auto", value)

    def sequence_parallel(self, prefills: tuple[int, ...], ranks: int) -> bool:
        """Whether prefill divides its tokens over the ranks: where it can, unless it is said."""
        key = "neuron_config.sequence_parallel_enabled"
        odd = [size for size in prefills if size % ranks]
        value = self.neuron.get("sequence_parallel_enabled", ranks > 1 and not odd)
        if not isinstance(value, bool):
            self.add(key, "true or false", value)
        elif value and ranks == 1:
            self.violations.append(f"{key}: there is nothing to divide with a tensor_parallel_size of 1; leave it out")
        elif value and odd:
            self.add(
                key, f"prefill buckets (num_batched_tokens_buckets) that tensor_parallel_size {ranks} divides", odd
            )
        return bool(value)

    def sampling(self) -> bool:
        """Whether programs sample greedily on the device. ``temperature: 0`` and ``top_k: 1`` say the same."""
        key = "neuron_config.on_device_sampling_config"
        value = self.neuron.get("on_device_sampling_config")
        if value is None:
            return False
        if not isinstance(value, Mapping):
            self.add(key, "a mapping or null", value)
            return False
        self.violations += check_keys(value, "on_device_sampling_config")
        greedy = (
            value.get("all_greedy") is True or str(value.get("temperature")) in ("0", "0.0") or value.get("top_k") == 1
        )
        if not greedy or value.get("all_greedy") is False:
            self.violations.append(
                f"{key}: on-device sampling is greedy only, {{all_greedy: true}}, found {dict(value)!r}; remove "
                "on_device_sampling_config to sample on the host with every sampling parameter"
            )
        return greedy


def longest_sequence(model_config: Mapping[str, Any]) -> int | None:
    """The longest sequence that a ``config.json`` allows, the way vLLM derives it; None when it does not say."""
    longest = model_config.get("max_position_embeddings")
    if not _is_int(longest):
        return None
    rope = model_config.get("rope_parameters") or model_config.get("rope_scaling") or {}
    kind = rope.get("rope_type") or rope.get("type")
    if kind in ("linear", "dynamic"):
        return int(longest * rope.get("factor", 1))
    if kind == "yarn":
        return int(rope.get("original_max_position_embeddings", longest) * rope.get("factor", 1))
    return longest


def _is_int(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)
