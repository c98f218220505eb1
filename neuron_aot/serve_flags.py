"""How vLLM's server reads its command line, as data: vLLM itself takes ten seconds to import.

Engine arguments are ``contract.fields.ENGINE``; here is what they do not say. A test compares all of it with vLLM.
"""

from __future__ import annotations


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


#: Flags without a value; each has a ``--no-`` form as well.
BOOLEAN = _words(
    """
    aggregate_engine_logging allow_deprecated_quantization async_scheduling cudagraph_metrics data_parallel_external_lb
    data_parallel_hybrid_lb data_parallel_multi_port_external_lb dcp_q_replicate disable_cascade_attn
    disable_chunked_mm_input disable_custom_all_reduce disable_hybrid_kv_cache_manager disable_log_stats
    disable_nccl_for_dp_synchronization disable_sliding_window enable_batch_sharded_sampling enable_chunked_prefill
    enable_cumem_allocator enable_dbo enable_elastic_ep enable_ep_weight_filter enable_eplb enable_expert_parallel
    enable_fault_tolerance enable_flashinfer_autotune enable_hc_sp enable_layerwise_nvtx_tracing enable_log_requests
    enable_logging_iteration_details enable_lora enable_mamba_cache_stochastic_rounding
    enable_mamba_shared_prefix_checkpoint enable_mfu_metrics enable_mixed_moe_lora_format enable_mm_embeds
    enable_moe_shared_loras enable_nccl_comm_suspend enable_prefix_caching enable_prompt_embeds
    enable_return_routed_experts enable_shm_tensor_arena enable_sleep_mode enable_tower_connector_lora
    enable_trace_replay enforce_eager fail_on_environ_validation fully_sharded_loras interleave_mm_strings
    jit_monitor_verbose kv_cache_metrics kv_sharing_fast_prefill language_model_only
    long_prefill_token_threshold_adaptive mm_device_do_normalize mm_encoder_only numa_bind ray_workers_use_nsight
    return_sampling_mask scheduler_reserve_full_isl skip_mm_profiling skip_tokenizer_init sleep_mode_offload_cudagraph
    specialize_active_lora swa_bounded_replay tokens_only trust_remote_code use_fp64_gumbel use_replayssm
    use_tqdm_on_load

    allow_credentials cohere_is_reasoning_model disable_fastapi_docs disable_uvicorn_access_log enable_auto_tool_choice
    enable_flash_late_interaction enable_force_include_usage enable_log_deltas enable_log_outputs enable_offline_docs
    enable_per_request_metrics enable_prompt_tokens_details enable_request_id_headers enable_scale_out
    enable_server_load_tracking enable_ssl_refresh enable_tokenizer_info_endpoint exclude_tools_when_tool_choice_none
    grpc headless log_error_stack return_tokens_as_token_ids trust_request_chat_template trust_request_mm_kwargs
    """
)

#: Flags that take every following word up to the next flag.
MULTIPLE = _words(
    """
    allowed_media_domains api_key collect_detailed_traces cpu_offload_params cudagraph_capture_sizes ignore_patterns
    kv_cache_dtype_skip_layers logits_processors lora_modules lora_target_modules numa_bind_cpus numa_bind_nodes
    offload_params served_model_name sleep_preserve_parameter_names
    """
)

#: Flags whose value may be left out.
OPTIONAL = frozenset({"hf_token"})

#: Flags of the HTTP server, which no program depends on, with one value each.
SERVER = _words(
    """
    api_server_count config chat_template chat_template_content_format default_chat_template_kwargs response_role
    tool_call_parser tool_parser_plugin tool_strict_level tool_server max_log_len sse_keep_alive_interval cohere_format
    anthropic_disabled_thinking_effort fingerprint_mode fingerprint_value host port grpc_port
    data_parallel_supervisor_port dp_supervisor_probe_interval_s dp_supervisor_probe_timeout_s
    dp_supervisor_probe_failure_threshold uds uvicorn_log_level disable_access_log_for_endpoints allowed_origins
    allowed_methods allowed_headers ssl_keyfile ssl_certfile ssl_ca_certs ssl_cert_reqs ssl_ciphers root_path middleware
    h11_max_incomplete_event_size h11_max_header_count
    """
)

ALIASES = {
    "-asc": "api_server_count", "-q": "quantization", "-pp": "pipeline_parallel_size", "-n": "nnodes",
    "-r": "node_rank", "-tp": "tensor_parallel_size", "-dcp": "decode_context_parallel_size",
    "-pcp": "prefill_context_parallel_size", "-dp": "data_parallel_size", "-dpn": "data_parallel_rank",
    "-dpr": "data_parallel_start_rank", "-dpl": "data_parallel_size_local", "-dpa": "data_parallel_address",
    "-dpp": "data_parallel_rpc_port", "-dpb": "data_parallel_backend", "-dph": "data_parallel_hybrid_lb",
    "-dpe": "data_parallel_external_lb", "-dpm": "data_parallel_multi_port_external_lb", "-ep": "enable_expert_parallel",
    "--device-memory-utilization": "gpu_memory_utilization", "-sc": "speculative_config", "-dc": "diffusion_config",
    "-cc": "compilation_config", "-ac": "attention_config", "-O": "optimization_level",
}  # fmt: skip

#: Whole numbers that may be written 8k (8000) or 8K (8192).
HUMAN = frozenset({"max_model_len", "max_num_batched_tokens", "safetensors_prefetch_block_size"})
