"""Flags of xLLM's C++ predecessor and of vLLM: which of our options they are, or why they are refused. Knows no values of ours.

A name that is an option here is never looked up in these tables.
"""

from __future__ import annotations

ALIASES = {
    # the predecessor's
    "max_memory_utilization": "memory_utilization",
    "max_seqs_per_batch": "max_num_seqs",
    "max_tokens_per_batch": "max_num_batched_tokens",
    "max_tokens_per_chunk_for_prefill": "max_prefill_chunk",
    "prefill_scheduling_memory_usage_threshold": "max_block_use",
    "enable_in_batch_prefix_cache": "enable_in_batch_prefix",
    "use_zero_evict": "enable_zero_evict",
    "max_decode_token_per_sequence": "zero_evict_output_tokens",
    "aggressive_coeff": "urgency_coefficient",
    "starve_threshold": "starvation_threshold",
    "enable_starve_prevent": "enable_starvation_guard",
    "request_queue_size": "max_num_waiting",
    "max_global_ttft_ms": "default_ttft_slo_ms",
    "max_global_tpot_ms": "default_tpot_slo_ms",
    "random_seed": "seed",
    "enable_qwen3_reranker": "scoring",
    "config_json_file": "config",
    "dump_config_json_file": "dump_config",
    # vLLM's
    "runner": "task",
    "data_parallel_size": "dp_size",
    "served_model_name": "model_id",
    "gpu_memory_utilization": "memory_utilization",
    "kv_cache_memory_bytes": "max_cache_size",
    "num_gpu_blocks_override": "num_blocks",
    "enable_prefix_caching": "enable_prefix_cache",
    "long_prefill_token_threshold": "max_prefill_chunk",
    "async_scheduling": "enable_schedule_overlap",
    "scheduling_policy": "priority_strategy",
    "uvicorn_log_level": "log_level",
    "enable_log_requests": "log_requests",
}
"""Flag -> the option (or `config`, `dump_config`) that it is here."""

VALUES = {
    "max_tokens_per_chunk_for_prefill": {"-1": "0"},
    "random_seed": {"-1": "0"},
    "max_global_ttft_ms": {"2147483647": "0"},
    "max_global_tpot_ms": {"2147483647": "0"},
    "enable_qwen3_reranker": {"true": "yes_no", "1": "yes_no", "false": "auto", "0": "auto"},
    "task": {"auto": "generate", "embedding": "embed"},
    "runner": {"auto": "generate", "pooling": "embed"},
    "backend": {"": "auto"},
    "model_impl": {"": "auto"},
    "reasoning_parser": {"": "none"},
    "tool_call_parser": {"": "none"},
}
"""Flag -> a value of its -> what that is called here."""

_ONE_DEVICE = "this server runs a model on one device"
_ONE_PROCESS = "one instance serves alone, without a routing service"
_NO_SPECULATION = "speculative decoding is not there yet"
_FALSE = ("false", "0")

HARMLESS: dict[str, tuple[tuple[str, ...], str]] = {
    **dict.fromkeys(
        (
            "tensor_parallel_size",
            "pipeline_parallel_size",
            "ep_size",
            "cp_size",
            "kv_split_size",
            "layerwise_split_size",
            "micro_batch_num",
            "nnodes",
        ),
        (("1",), _ONE_DEVICE),
    ),
    **dict.fromkeys(
        ("node_rank", "enable_expert_parallel", "enable_eplb", "enable_multi_stream_parallel", "enable_dp_balance"),
        (_FALSE, _ONE_DEVICE),
    ),
    **dict.fromkeys(
        ("enable_disagg_pd", "enable_pd_ooc", "enable_service_routing"),
        (_FALSE, _ONE_PROCESS),
    ),
    **dict.fromkeys(("etcd_addr", "etcd_namespace"), (("",), _ONE_PROCESS)),
    "instance_role": (("DEFAULT",), _ONE_PROCESS),
    **dict.fromkeys(("draft_model", "num_speculative_tokens", "speculative_config"), (("", "0"), _NO_SPECULATION)),
    "kv_cache_dtype": (("auto",), "the KV cache has the type of the activations"),
    "indexer_cache_dtype": (("auto",), "no model here has an indexer cache"),
    "enable_kvcache_store": (_FALSE, "the KV cache has no store on other machines yet"),
    "enable_xtensor": (_FALSE, "the KV cache does not use virtual memory yet"),
    "enable_latency_aware_schedule": (_FALSE, "--latency-model turns it on, with the times of this device"),
    "enable_online_profile": (_FALSE, "--profile-dir turns /start_profile and /stop_profile on"),
    "enable_shm": (_FALSE, "there is one worker, in the engine's own process"),
    "enable_lora": (_FALSE, "adapters are not served yet"),
    "enable_graph": (("true", "1"), "graphs are captured where the device has them; it cannot be turned off"),
    "enable_mix_batch": (("true", "1"), "--policy prefill_first runs prompts and answers in separate steps"),
    "enable_json_object_output": (("true", "1"), "structured output cannot be turned off"),
    "use_cpp_chat_template": (("true", "1"), "chat templates are Jinja templates"),
    "enable_auto_tool_choice": (("true", "1"), "--tool-call-parser none turns tools off"),
    "enforce_eager": (_FALSE, "how steps run is chosen by device and --model-impl"),
    "trust_remote_code": (_FALSE, "code that comes with a checkpoint is never run"),
    "disable_log_requests": (("true", "1"), "--log-requests turns the request log on"),
    "disable_log_stats": (("true", "1"), "statistics are at /metrics, not in the log"),
}
"""Flag -> the values that ask for what is so anyway, and why no other is taken."""

_THREADS = "one event loop serves HTTP; --num-request-handling-threads sets the threads that tokenise"
_KERNELS = "kernels are chosen by the device"
_RPC = "the server and its engine talk over a socket of their own, without limits to set"

REFUSED = {
    "num_threads": _THREADS,
    "num_response_handling_threads": _THREADS,
    **dict.fromkeys(
        ("rpc_idle_timeout_s", "rpc_channel_timeout_ms", "max_reconnect_count", "health_check_interval_ms"), _RPC
    ),
    **dict.fromkeys(
        (
            "enable_verbose_trace_log",
            "verbose_trace_log_path",
            "verbose_trace_log_max_size_mb",
            "verbose_trace_log_max_files",
        ),
        "requests are never logged with their contents; --log-requests logs sizes and times",
    ),
    "enable_dump_config_json": "--dump-config FILE writes the options",
    "python_model_path": "models of your own are packages with an entry point in the group xllm.models",
    "tokenizer": "the tokenizer is the model's own",
    "master_node_addr": _ONE_DEVICE,
    "communication_backend": _ONE_DEVICE,
    "disagg_pd_port": _ONE_PROCESS,
    "kv_cache_transfer_mode": _ONE_PROCESS,
    "transfer_listen_port": _ONE_PROCESS,
    "heart_beat_interval": _ONE_PROCESS,
    "etcd_ttl": _ONE_PROCESS,
    "speculative_algorithm": _NO_SPECULATION,
    "xxh3_128bits_seed": "prefix keys are hashed with a secret that each process draws",
    "phy_page_granularity_size": "the KV cache does not use virtual memory yet",
    **dict.fromkeys(
        ("enable_manual_loader", "enable_rolling_load", "rolling_load_num_cached_layers", "enable_prefetch_weight"),
        "weights are loaded whole",
    ),
    **dict.fromkeys(
        ("enable_beam_search_kernel", "enable_block_copy_kernel", "enable_topk_sorted", "npu_kernel_backend"), _KERNELS
    ),
    "flashinfer_workspace_buffer_size": _KERNELS,
    "attention_backend": _KERNELS,
    **dict.fromkeys(
        ("enable_profile_step_time", "enable_profile_token_budget", "profile_max_prompt_length"),
        "step times are measured beforehand, into the file of --latency-model",
    ),
    "profile_backend": "profiles are torch's where the engine has torch, else Python's",
    **dict.fromkeys(
        ("disable_graph_warmup", "enable_graph_double_buffer", "max_tokens_for_graph_mode", "python_graph_backend"),
        "graphs are captured where the device has them, at sizes of their own",
    ),
    **dict.fromkeys(("input_shm_size", "output_shm_size"), "there is one worker, in the engine's own process"),
    "swap_space": "--host-blocks-factor keeps evicted blocks in host memory",
    "limit_mm_per_prompt": "--limit-image-per-prompt and --limit-video-per-prompt are the limits",
    "start_port": "--port is the port",
    "mm_download_headers": "media are fetched without headers of their own",
    "use_audio_in_video": "sound is not served",
    "enable_return_mm_full_embeddings": "/v1/embeddings gives a conversation's vector, and with task mm_embed its media's embeddings",
    "max_linear_state_cache_slots": "no model here has a linear state",
    **dict.fromkeys(
        (
            "store_protocol",
            "store_master_server_address",
            "store_metadata_server",
            "store_local_hostname",
            "prefetch_timeout",
            "prefetch_batch_size",
        ),
        "the KV cache has no store on other machines yet",
    ),
    **dict.fromkeys(
        ("layers_wise_copy_batchs", "enable_control_h2d_block_num"),
        "blocks come back from host memory as --host-blocks-factor's tier decides",
    ),
    "rolling_load_num_rolling_slots": "weights are loaded whole",
    **dict.fromkeys(
        (
            "expert_parallel_degree",
            "redundant_experts_num",
            "eplb_update_interval",
            "eplb_min_peak_load_improvement",
            "eplb_policy_kind",
            "eplb_use_decode_only_load",
            "eplb_prepare_timeout_seconds",
            "enable_mm_encoder_dp",
            "tp_size",
            "sp_size",
        ),
        _ONE_DEVICE,
    ),
    **dict.fromkeys(
        ("xtensor_master_node_addr", "enable_graph_vmm_pool"), "the KV cache does not use virtual memory yet"
    ),
    "kv_push_dst_rotate": _ONE_PROCESS,
    **dict.fromkeys(
        (
            "speculative_suffix_cache_max_depth",
            "speculative_suffix_max_spec_factor",
            "speculative_suffix_max_spec_offset",
            "speculative_suffix_min_token_prob",
            "speculative_suffix_max_cached_requests",
            "speculative_suffix_use_tree_spec",
            "enable_opt_validate_probs",
            "enable_mtp_draft_body_tp1",
            "enable_atb_spec_kernel",
            "enable_adaptive_speculative_decode",
            "adaptive_speculative_min_gain",
            "enable_dspark_native_sas",
        ),
        _NO_SPECULATION,
    ),
    **dict.fromkeys(
        ("enable_profile_kv_blocks", "disable_ttft_profiling"),
        "step times are measured beforehand, into the file of --latency-model",
    ),
    "enable_forward_interruption": "--prefill-step-ms bounds what an offline prompt may take of a step",
    **dict.fromkeys(
        (
            "enable_graph_mode_decode_no_padding",
            "enable_prefill_piecewise_graph",
            "acl_graph_decode_batch_size_limit",
            "use_contiguous_input_buffer",
        ),
        "graphs are captured where the device has them, at sizes of their own",
    ),
    **dict.fromkeys(
        (
            "enable_customize_mla_kernel",
            "enable_intralayer_addnorm",
            "enable_interlayer_addnorm",
            "enable_split_rmsnorm_rope",
            "enable_aclnn_matmul",
            "enable_aclnn_swiglu",
            "enable_mega_moe",
            "enable_fused_mc2",
            "enable_flashcomm1",
            "flashcomm1_min_prefill_tokens",
            "enable_mmrs_fusion",
            "mmrs_comm_mode",
            "enable_xattention_one_stage",
        ),
        _KERNELS,
    ),
    # vLLM's
    **dict.fromkeys(
        ("tokenizer_mode", "load_format", "config_format", "hf_overrides", "override_generation_config"),
        "the model's own files say it",
    ),
    "guided_decoding_backend": "llguidance constrains all answers",
    "structured_outputs_config": "llguidance constrains all answers",
    "quantization": "the checkpoint says how it is quantised",
    "chat_template_content_format": "templates get text, or parts where they look for them",
    "root_path": "routes have fixed paths; let the proxy rewrite them",
    "allowed_methods": "--allowed-origins lets other sites' pages call everything that they may",
    "allowed_headers": "--allowed-origins lets other sites' pages call everything that they may",
    "otlp_traces_headers": "--otlp-traces-endpoint exports traces without headers of their own",
    "max_logprobs": "log-probabilities of up to 128 tokens are served",
    "max_seq_len_to_capture": "graphs are captured where the device has them, at sizes of their own",
    "generation_config": "end tokens come from the checkpoint, sampling from the request",
    "compilation_config": "graphs are captured where the device has them, at sizes of their own",
    "machine_rank": _ONE_DEVICE,
    "rank_tablefile": _ONE_DEVICE,
}
"""Flag -> what stands in its place, or why nothing does."""
