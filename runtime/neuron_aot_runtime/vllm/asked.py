"""What a vLLM configuration asks for, as the plain data that ``check.compare`` takes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from vllm.config import VllmConfig


def asked_engine(vllm_config: VllmConfig) -> dict[str, Any]:
    """vLLM's engine arguments under their own names, read back from the resolved configuration.

    All that programs depend on, and all that a bundle may refuse. None: not set.
    """
    model, cache = vllm_config.model_config, vllm_config.cache_config
    scheduler, parallel = vllm_config.scheduler_config, vllm_config.parallel_config
    return {
        "dtype": str(model.dtype).removeprefix("torch."),
        "max_model_len": model.max_model_len,
        "quantization": model.quantization,
        "runner": model.runner_type,
        "enable_prompt_embeds": model.enable_prompt_embeds,
        "disable_sliding_window": model.disable_sliding_window,
        "enable_sleep_mode": model.enable_sleep_mode,
        "hf_overrides": model.hf_overrides or None,
        "kv_cache_dtype": cache.cache_dtype,
        "block_size": cache.block_size,
        "num_gpu_blocks_override": cache.num_gpu_blocks_override,
        "kv_cache_memory_bytes": cache.kv_cache_memory_bytes,
        "kv_sharing_fast_prefill": cache.kv_sharing_fast_prefill,
        "kv_offloading_size": cache.kv_offloading_size,
        "max_num_batched_tokens": scheduler.max_num_batched_tokens,
        "max_num_seqs": scheduler.max_num_seqs,
        "enable_chunked_prefill": scheduler.enable_chunked_prefill,
        "tensor_parallel_size": parallel.tensor_parallel_size,
        "pipeline_parallel_size": parallel.pipeline_parallel_size,
        "data_parallel_size": parallel.data_parallel_size,
        "prefill_context_parallel_size": parallel.prefill_context_parallel_size,
        "decode_context_parallel_size": parallel.decode_context_parallel_size,
        "nnodes": parallel.nnodes,
        "enable_expert_parallel": parallel.enable_expert_parallel,
        "enable_eplb": parallel.enable_eplb,
        "enable_dbo": parallel.enable_dbo,
        "load_format": str(vllm_config.load_config.load_format),
        "cpu_offload_gb": _whole(vllm_config.offload_config.uva.cpu_offload_gb),
        "enable_lora": vllm_config.lora_config is not None,
        "speculative_config": _method(vllm_config.speculative_config),
        "kv_transfer_config": _set(vllm_config.kv_transfer_config),
        "ec_transfer_config": _set(vllm_config.ec_transfer_config),
        "weight_transfer_config": _set(vllm_config.weight_transfer_config),
        "watermark_config": _set(vllm_config.watermark_config),
    }


def served_config(vllm_config: VllmConfig) -> dict[str, Any]:
    """The raw config.json of the served model, local or from the hub; {} when there is none."""
    from vllm.transformers_utils.repo_utils import get_hf_file_to_dict

    model = vllm_config.model_config
    return get_hf_file_to_dict("config.json", model.model, model.revision) or {}


def _whole(number: float) -> float | int:
    return int(number) if number == int(number) else number


def _method(speculative: Any) -> str | None:
    return None if speculative is None else speculative.method


def _set(config: Any) -> str | None:
    return None if config is None else "set"
