"""Every field of the configuration, and whether a program key depends on it.

A field is one of

    key         it decides what is compiled; the text says how it reaches the request key
    irrelevant  no program depends on it, because …; allowed, and carried to ``vllm serve``
    refused     it would change what is computed in a way that no program here covers, because …; allowed only at
                its default, so nothing is ignored in silence

A test compares ``ENGINE`` with vLLM's own argument classes: a field that vLLM gains, or drops, fails the build.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

VLLM_VERSION = "0.32"


@dataclass(frozen=True)
class Field:
    """``allowed``: the values that a refused field may be left at (none: it must not be set)."""

    kind: Literal["key", "irrelevant", "refused"]
    why: str
    allowed: tuple[Any, ...] = ()


def _key(**fields: str) -> dict[str, Field]:
    return {name: Field("key", why) for name, why in fields.items()}


def _irrelevant(why: str, names: str) -> dict[str, Field]:
    return {name: Field("irrelevant", why) for name in names.split()}


def _refused(why: str, unset: str = "", **allowed: Any) -> dict[str, Field]:
    fields = {name: Field("refused", why) for name in unset.split()}
    return fields | {
        name: Field("refused", why, value if isinstance(value, tuple) else (value,)) for name, value in allowed.items()
    }


ENGINE: dict[str, Field] = {
    **_key(
        model="through the facts of its config.json; the recipe names it at its top level",
        dtype="every tensor of the program",
        kv_cache_dtype="the KV cache tensors",
        max_model_len="the largest context bucket",
        max_num_batched_tokens="the largest prefill bucket",
        max_num_seqs="the largest decode bucket",
        block_size="the shape of the KV cache tensors",
        num_gpu_blocks_override="the shape of the KV cache tensors",
        tensor_parallel_size="the shape of every sharded tensor, and the collectives",
        additional_config="carries neuron_config, which is listed field by field",
    ),
    **_irrelevant("prefill programs take prior context whether or not blocks are reused", "enable_prefix_caching "
        "prefix_caching_hash_algo prefix_cache_retention_interval prefix_match_unit"),
    **_irrelevant("names the weights, which are arguments of every program", "model_weights revision code_revision "
        "download_dir ignore_patterns model_loader_extra_config safetensors_load_strategy use_tqdm_on_load "
        "safetensors_prefetch_num_threads safetensors_prefetch_block_size pt_load_map_location hf_token "
        "max_parallel_loading_workers"),
    **_irrelevant("text in and text out happen before and after the programs", "served_model_name tokenizer "
        "tokenizer_mode tokenizer_revision skip_tokenizer_init trust_remote_code generation_config tokens_only "
        "override_generation_config reasoning_parser reasoning_parser_plugin reasoning_config config_format "
        "io_processor_plugin renderer_num_workers structured_outputs_config allowed_local_media_path "
        "allowed_media_domains"),
    **_irrelevant("sampling runs on the host, on the logits a program returns", "seed max_logprobs logprobs_mode "
        "use_fp64_gumbel logits_processors"),
    **_irrelevant("the scheduler decides on the host, within the buckets", "async_scheduling scheduling_policy "
        "stream_interval max_num_scheduled_tokens long_prefill_token_threshold scheduler_reserve_full_isl "
        "long_prefill_token_threshold_adaptive max_num_active_seqs max_num_queued_reqs max_num_queued_tokens "
        "prefill_schedule_interval watermark disable_hybrid_kv_cache_manager performance_mode"),
    **_irrelevant("no memory is profiled while serving; where a recipe's KV cache is sized by it, num_gpu_blocks_override "
        "in the manifest is the result", "gpu_memory_utilization"),
    **_irrelevant("places processes, not computation", "distributed_executor_backend master_addr master_port "
        "distributed_timeout_seconds cpu_distributed_timeout_seconds numa_bind numa_bind_nodes numa_bind_cpus "
        "device_ids ray_workers_use_nsight worker_extension_cls _api_process_count _api_process_rank "
        "fault_tolerance_config enable_fault_tolerance shutdown_timeout"),
    **_irrelevant("observes, and computes nothing", "disable_log_stats aggregate_engine_logging enable_log_requests "
        "show_hidden_metrics_for_version otlp_traces_endpoint collect_detailed_traces kv_cache_metrics "
        "per_request_spec_decode_metrics kv_cache_metrics_sample custom_histogram_buckets cudagraph_metrics "
        "enable_layerwise_nvtx_tracing enable_mfu_metrics enable_logging_iteration_details jit_monitor_mode "
        "jit_monitor_verbose enable_mm_processor_stats profiler_config logging_config log_level log_config_file "
        "kv_events_config fail_on_environ_validation"),
    **_irrelevant("selects among vLLM's own kernels and graphs, none of which run", "enforce_eager model_impl "
        "ir_op_priority kernel_config linear_backend moe_backend all2all_backend sparse_indexer_topk_backend "
        "enable_flashinfer_autotune disable_custom_all_reduce disable_cascade_attn optimization_level "
        "enable_cumem_allocator enable_nccl_comm_suspend enable_shm_tensor_arena gdn_prefill_backend "
        "kda_prefill_backend kda_decode_backend disable_nccl_for_dp_synchronization"),
    **_irrelevant("a replica is an engine of its own, with all of the bundle's ranks",
        "data_parallel_size data_parallel_rank data_parallel_start_rank data_parallel_size_local data_parallel_address data_parallel_rpc_port "
        "data_parallel_hybrid_lb data_parallel_external_lb data_parallel_multi_port_external_lb "
        "data_parallel_backend dp_sync_interval"),
    **_irrelevant("read only together with a parallelism that is refused", "dcp_comm_backend dcp_q_replicate "
        "dcp_kv_cache_interleave_size cp_kv_cache_interleave_size eplb_config expert_placement_strategy "
        "enable_ep_weight_filter elastic_ep_max_dp_size ubatch_size dbo_decode_token_threshold "
        "dbo_prefill_token_threshold"),
    **_irrelevant("read only together with enable_lora, which is refused", "max_loras max_lora_rank "
        "default_mm_loras fully_sharded_loras max_cpu_loras lora_dtype lora_target_modules max_lora_cls_labels "
        "enable_tower_connector_lora specialize_active_lora enable_mixed_moe_lora_format enable_moe_shared_loras"),
    **_irrelevant("read only for Mamba layers, which no supported model has", "mamba_config mamba_cache_dtype "
        "mamba_ssm_cache_dtype mamba_block_size mamba_cache_mode enable_mamba_shared_prefix_checkpoint "
        "replayssm_buffer_len use_replayssm mamba_backend mamba_ssu_algorithm mamba_cache_philox_rounds "
        "enable_mamba_cache_stochastic_rounding"),
    **_irrelevant("read only with offloading or sleep mode, which are refused", "offload_backend offload_params "
        "cpu_offload_params offload_group_size offload_num_in_group offload_prefetch_step kv_offloading_backend "
        "sleep_mode_offload_cudagraph sleep_preserve_parameter_names"),
    **_refused("it replaces the config.json that the programs were made from", "hf_config_path hf_overrides "
        "model_class_overrides engram_config"),
    **_refused("weights are read from safetensors", load_format=("auto", "safetensors")),
    **_refused("programs generate text", "pooler_config diffusion_config", runner=("auto", "generate"),
        convert=("auto", "none")),
    **_refused("programs take token ids", enable_prompt_embeds=False),
    **_refused("a KV cache is sized by num_gpu_blocks_override", "kv_cache_memory_bytes"),
    **_refused("every layer's KV cache has kv_cache_dtype", kv_cache_dtype_skip_layers=[]),
    **_refused("long prompts are always prefilled in segments", enable_chunked_prefill=True),
    **_refused("attention is what the config.json says", disable_sliding_window=False,
        kv_sharing_fast_prefill=False, swa_bounded_replay=True),
    **_refused("programs bring their own attention", "attention_config attention_backend"),
    **_refused("nothing is compiled or captured while serving", "compilation_config cudagraph_capture_sizes "
        "max_cudagraph_capture_size", enable_trace_replay=False),
    **_refused("the plugin brings its own worker and scheduler", "scheduler_cls", worker_cls="auto"),
    **_refused("only tensor parallelism is compiled", pipeline_parallel_size=1, prefill_context_parallel_size=1,
        decode_context_parallel_size=1, nnodes=1, node_rank=0, enable_hc_sp=False,
        enable_expert_parallel=False, enable_elastic_ep=False, enable_eplb=False, enable_dbo=False),
    **_refused("programs return logits or greedy tokens of the whole batch", "aux_output_config watermark_config",
        enable_batch_sharded_sampling=False, return_sampling_mask=False, enable_return_routed_experts=False),
    **_refused("quantized weights are not supported yet", "quantization quantization_config",
        allow_deprecated_quantization=False),
    **_refused("speculative decoding is not supported yet", "speculative_config spec_method spec_model spec_tokens"),
    **_refused("LoRA is not supported yet", enable_lora=False),
    **_refused("disaggregated serving is not supported yet", "kv_transfer_config ec_transfer_config"),
    **_refused("weights and KV cache stay where they are", "kv_offloading_size weight_transfer_config",
        cpu_offload_gb=0, enable_sleep_mode=False),
    **_refused("multimodal models are not supported yet", "media_io_kwargs mm_processor_kwargs "
        "limit_mm_per_prompt mm_encoder_attn_backend mm_encoder_attn_dtype mm_encoder_fp8_scale_path "
        "mm_encoder_fp8_scale_save_path video_pruning_rate ec_manager_config", language_model_only=False,
        enable_mm_embeds=False, interleave_mm_strings=False, mm_processor_cache_gb=4, mm_processor_cache_type="lru",
        mm_hasher_algorithm="blake3", mm_shm_cache_max_object_size_mb=128, mm_encoder_only=False,
        mm_encoder_tp_mode="weights", mm_encoder_fp8_scale_save_margin=1.5, skip_mm_profiling=False,
        video_pruning_method="evs", mm_tensor_ipc="direct_rpc", mm_processor_device="auto", mm_ipc_gpu_memory_gb=0,
        mm_device_do_normalize=True, disable_chunked_mm_input=False),
}  # fmt: skip

NEURON: dict[str, Field] = {
    **_key(
        num_batched_tokens_buckets="one prefill bucket each",
        num_seqs_buckets="one decode bucket each",
        decode_context_length_buckets="one context of every decode bucket each",
        prefill_context_length_buckets="one context of every prefill bucket each",
        kv_segment_size_buckets="equal to num_batched_tokens_buckets, so through them",
        on_device_sampling_config="programs end in an argmax, or not",
        sequence_parallel_enabled="prefill divides its tokens over the ranks between projections, or not",
    ),
    **_refused("quantized weights are not supported yet", "quantization"),
    **_refused("expert parallelism is not supported yet", "ep_degree"),
}

SAMPLING: dict[str, Field] = _key(
    all_greedy="programs end in an argmax", temperature="0 is greedy", top_k="1 is greedy", top_p="not with greedy"
)

RECIPE: dict[str, Field] = {
    **_key(
        model="through the facts of its config.json, not its path",
        engine="field by field, as listed",
        neuron_config="field by field, as listed",
        compile="field by field, as listed",
    ),
}

COMPILE: dict[str, Field] = _key(
    target="the target, and with it the code generator",
    lnc="the logical core size, through the code generator's identity",
    compiler_flags="in canonical form, through the code generator's identity",
)

ADDITIONAL: dict[str, Field] = {
    **_key(neuron_config="field by field, as listed"),
    **_refused("multimodal models are not supported yet", "vision_neuron_config", mm_language_model_only=False),
}

VISION = (
    "num_vision_tokens_buckets", "vision_attention_block_size", "max_vision_seq_len", "tp_size", "dp_size",
    "encoder_cache_num_blocks", "encoder_cache_min_hold_time_ms",
)  # fmt: skip

#: level -> (its fields, where that is in words)
LEVELS: dict[str, tuple[Mapping[str, Field], str]] = {
    "engine": (ENGINE, "it is a vLLM engine argument"),
    "neuron_config": (NEURON, "it belongs under neuron_config"),
    "on_device_sampling_config": (SAMPLING, "it belongs under neuron_config.on_device_sampling_config"),
    "recipe": (RECIPE, "it belongs at the top level of the recipe"),
    "compile": (COMPILE, "it belongs under compile in the recipe"),
    "additional_config": (ADDITIONAL, "it belongs at the top level of additional_config, beside neuron_config"),
}
_ELSEWHERE_ONLY = {"engine": ("model", "additional_config")}


def check_keys(keys: Iterable[Any], level: str) -> list[str]:
    """A line for each key that ``level`` (of LEVELS) does not have: where it belongs, or what is nearest."""
    valid = [name for name in LEVELS[level][0] if name not in _ELSEWHERE_ONLY.get(level, ())]
    prefix = "" if level == "recipe" else f"{level}."
    return [f"{prefix}{key}: {_where(str(key), level, valid)}" for key in keys if key not in valid]


def check_engine_values(engine: Mapping[str, Any]) -> list[str]:
    """A line for each refused engine argument that is set to anything but its default."""
    return _check_values(engine, ENGINE, "engine")


def check_neuron_values(neuron_config: Mapping[str, Any]) -> list[str]:
    """A line for each refused option of neuron_config."""
    return _check_values(neuron_config, NEURON, "neuron_config")


def check_additional_config(additional_config: Mapping[str, Any]) -> list[str]:
    """A line for each key of vLLM's ``additional_config`` that is unknown, misplaced or refused."""
    return check_keys(additional_config, "additional_config") + _check_values(
        additional_config, ADDITIONAL, "additional_config"
    )


def nearest(name: str, valid: Iterable[str]) -> str | None:
    """The valid name that ``name`` was most likely meant to be, or None."""
    folded = name.lower().replace("-", "_")
    names = list(valid)
    if folded in names:
        return folded
    return next(iter(difflib.get_close_matches(folded, names, n=1, cutoff=0.6)), None)


def _check_values(values: Mapping[str, Any], fields: Mapping[str, Field], level: str) -> list[str]:
    lines = []
    for name, value in values.items():
        field = fields.get(name)
        if field is None or field.kind != "refused" or value is None:
            continue
        if not any(type(value) is type(allowed) and value == allowed for allowed in field.allowed):
            only = f"only {' or '.join(map(repr, field.allowed))} is accepted" if field.allowed else "leave it out"
            lines.append(f"{level}.{name}: {value!r} is refused, because {field.why}; {only}")
    return lines


def _where(key: str, level: str, valid: list[str]) -> str:
    if key in VISION or key == "vision_neuron_config":
        return "is for multimodal models (vision_neuron_config), which are not supported yet"
    for other, (fields, words) in LEVELS.items():
        if other != level and key in fields:
            if key == "additional_config":
                break
            if other == "engine":
                words = f"{words}: it belongs under engine in a recipe, on the command line of vllm serve otherwise"
            return f"is not an option of {_spoken(level)}; {words}"
    if key == "additional_config":
        return "write neuron_config at the top level of the recipe instead"
    everywhere = {name: other for other, (fields, _) in LEVELS.items() for name in fields}
    if close := nearest(key, valid):
        return f"unknown; the nearest valid name is {close}"
    if close := nearest(key, everywhere):
        return f"unknown here; the nearest valid name is {close}, and {LEVELS[everywhere[close]][1]}"
    listed = ", ".join(valid) if len(valid) <= 12 else f"one of vLLM {VLLM_VERSION}'s {len(valid)} engine arguments"
    return f"unknown; valid here: {listed}"


def _spoken(level: str) -> str:
    return {"recipe": "the recipe's top level", "engine": "vLLM's engine"}.get(level, level)
