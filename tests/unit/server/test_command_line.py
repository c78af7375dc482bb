"""`xllm-server` and `xllm-server bench` as command lines: what counts as given, what wrong usage says."""

from __future__ import annotations

import json
import socket
from pathlib import Path

import pytest

from xllm_framework.config import ServiceConfig, XLLMConfig
from xllm_framework.errors import InvalidConfig
from xllm_server.cli import main, parse_config
from xllm_server.command_line import FILES
from xllm_server.flag_names import ALIASES, HARMLESS, REFUSED
from xllm_server.launch import address_of, bind

REFERENCE_FLAGS = """
host port rpc_idle_timeout_s rpc_channel_timeout_ms max_reconnect_count num_threads max_concurrent_requests
num_request_handling_threads num_response_handling_threads health_check_interval_ms enable_json_object_output
enable_verbose_trace_log verbose_trace_log_path verbose_trace_log_max_size_mb verbose_trace_log_max_files config_json_file
enable_dump_config_json dump_config_json_file model model_id backend task model_impl python_model_path reasoning_parser
tool_call_parser enable_qwen3_reranker use_cpp_chat_template flashinfer_workspace_buffer_size enable_manual_loader
enable_rolling_load rolling_load_num_cached_layers enable_prefetch_weight block_size max_cache_size max_memory_utilization
kv_cache_dtype indexer_cache_dtype enable_prefix_cache enable_in_batch_prefix_cache xxh3_128bits_seed enable_xtensor
phy_page_granularity_size host_blocks_factor enable_kvcache_store beam_width enable_beam_search_kernel
enable_block_copy_kernel enable_topk_sorted max_tokens_per_batch max_seqs_per_batch enable_schedule_overlap
prefill_scheduling_memory_usage_threshold enable_chunked_prefill max_tokens_per_chunk_for_prefill chunked_match_frequency
enable_mix_batch use_zero_evict max_decode_token_per_sequence priority_strategy enable_online_preempt_offline
aggressive_coeff starve_threshold enable_starve_prevent request_queue_size dp_size ep_size cp_size kv_split_size
layerwise_split_size communication_backend enable_multi_stream_parallel micro_batch_num enable_dp_balance rank_tablefile
enable_eplb master_node_addr nnodes node_rank etcd_addr etcd_namespace enable_service_routing heart_beat_interval etcd_ttl
enable_disagg_pd enable_pd_ooc disagg_pd_port instance_role kv_cache_transfer_mode transfer_listen_port draft_model
num_speculative_tokens speculative_algorithm enable_profile_step_time enable_profile_token_budget
enable_latency_aware_schedule profile_max_prompt_length max_global_ttft_ms max_global_tpot_ms enable_online_profile
profile_backend profile_dir enable_graph disable_graph_warmup enable_graph_double_buffer max_tokens_for_graph_mode enable_shm
input_shm_size output_shm_size random_seed python_graph_backend npu_kernel_backend mm_download_headers use_audio_in_video
enable_return_mm_full_embeddings rolling_load_num_rolling_slots max_linear_state_cache_slots store_protocol
store_master_server_address store_metadata_server store_local_hostname prefetch_timeout prefetch_batch_size
layers_wise_copy_batchs enable_control_h2d_block_num tp_size sp_size enable_mm_encoder_dp expert_parallel_degree
redundant_experts_num eplb_update_interval eplb_min_peak_load_improvement eplb_policy_kind eplb_use_decode_only_load
eplb_prepare_timeout_seconds xtensor_master_node_addr kv_push_dst_rotate speculative_suffix_cache_max_depth
speculative_suffix_max_spec_factor speculative_suffix_max_spec_offset speculative_suffix_min_token_prob
speculative_suffix_max_cached_requests speculative_suffix_use_tree_spec enable_opt_validate_probs enable_mtp_draft_body_tp1
enable_atb_spec_kernel enable_adaptive_speculative_decode adaptive_speculative_min_gain enable_dspark_native_sas
enable_profile_kv_blocks disable_ttft_profiling enable_forward_interruption enable_graph_mode_decode_no_padding
enable_prefill_piecewise_graph enable_graph_vmm_pool acl_graph_decode_batch_size_limit use_contiguous_input_buffer
enable_customize_mla_kernel enable_intralayer_addnorm enable_interlayer_addnorm enable_split_rmsnorm_rope
enable_aclnn_matmul enable_aclnn_swiglu enable_mega_moe enable_fused_mc2 enable_flashcomm1 flashcomm1_min_prefill_tokens
enable_mmrs_fusion mmrs_comm_mode enable_xattention_one_stage
""".split()  # noqa: SIM905


def test_no_arguments_give_the_defaults() -> None:
    assert parse_config([]) == XLLMConfig()


@pytest.mark.parametrize(
    "arguments",
    [
        ["--model", "m", "--block-size", "32", "--no-enable-prefix-cache"],
        ["--model=m", "--block_size=32", "--no-enable_prefix_cache"],
        ["m", "--block-size=32", "--no-enable-prefix-cache"],
        ["--block-size", "32", "m", "--enable_prefix_cache=false"],
        ["--model", "m", "--block-size", "32", "--enable-prefix-caching", "False"],
    ],
)
def test_ways_to_write_a_flag(arguments: list[str]) -> None:
    config = parse_config(arguments)
    assert config.to_flat(only_changed=True) == {"model": "m", "block_size": 32, "enable_prefix_cache": False}


def test_precedence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "options.json"
    file.write_text(json.dumps({"port": 1, "block-size": 2, "dtype": "float16"}))
    monkeypatch.setenv("XLLM_PORT", "5")
    monkeypatch.setenv("XLLM_MAX_NUM_SEQS", "6")
    config = parse_config(["--config", str(file), "--block-size", "16"])
    assert config.kv_cache.block_size == 16, "given, though it equals the default"
    assert (config.service.port, config.model.dtype, config.scheduler.max_num_seqs) == (1, "float16", 6)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--block-size", "many"], "block_size"),
        (["--block-size"], "--block-size needs a value"),
        (["--port", "--host", "x"], "--port needs a value"),
        (["m", "n"], "'n'"),
        (["--blok-size", "1"], "did you mean --block-size?"),
        (["--enable-prefix-cache=maybe"], "enable_prefix_cache"),
        (["--tensor-parallel-size", "2"], "one device"),
        (["--etcd_addr", "http://x"], "--etcd-addr http://x is not served"),
        (["--num_threads", "8"], "--num-request-handling-threads"),
        (["--enable_dump_config_json"], "--dump-config"),
        (["--dump-config", "/no/such/folder/file"], "/no/such/folder/file"),
        (["--no-such-flag", "1"], "--no-such-flag"),
        (["--dtype", "int3"], "float16"),
        (["--config", "/no/such/file.json"], "/no/such/file.json"),
        (["bench", "--endpoint", "images"], "--endpoint"),
        (["bench", "--num-prompts", "0"], "num_prompts"),
        (["bench", "--base-url", "ftp://x"], "ftp://x"),
    ],
)
def test_wrong_usage(arguments: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ending:
        main(arguments)
    assert ending.value.code == 2
    message = capsys.readouterr().err
    assert said in message
    if arguments[0] != "bench":
        assert len(message.strip().splitlines()) == 1
    assert "Traceback" not in message


def test_what_is_dumped_can_be_read_and_holds_no_keys(tmp_path: Path) -> None:
    file = tmp_path / "options.json"
    given = ["m", "--block-size", "32", "--log-requests", "--api-key", "k", "--control-key", "c"]
    config = parse_config([*given, "--dump-config", str(file)])
    assert json.loads(file.read_text()) == {"model": "m", "block_size": 32, "log_requests": True}
    assert parse_config(["--config", str(file), "--api-key", "k", "--control-key", "c"]) == config


@pytest.mark.parametrize("name", REFERENCE_FLAGS)
def test_every_flag_of_the_predecessor_is_taken_or_says_why_not(name: str) -> None:
    known = {*XLLMConfig().to_flat(), *ALIASES, *HARMLESS, *REFUSED}
    assert name in known


def test_aliases_are_options_and_reasons_are_sentences() -> None:
    options = XLLMConfig().to_flat()
    assert set(ALIASES.values()) <= {*options, *FILES}
    for name, accepted in HARMLESS.items():
        parse_config([f"--{name}={accepted[0][0]}"])
        assert accepted[1][-1] != "."
    for name in REFUSED.keys() - options.keys():
        with pytest.raises(InvalidConfig, match=name.replace("_", "-")):
            parse_config([f"--{name}", "1"])


@pytest.mark.parametrize(
    ("arguments", "changed"),
    [
        (["--gpu-memory-utilization", "0.5", "--max-num-seqs", "8"], {"memory_utilization": 0.5, "max_num_seqs": 8}),
        (["--served-model-name=x", "--tensor-parallel-size", "1"], {"model_id": "x"}),
        (["--max_tokens_per_chunk_for_prefill", "-1", "--random_seed=-1"], {}),
        (["--runner", "pooling", "--task=embedding"], {"task": "embed"}),
        (["--task", "auto"], {}),
        (["--use_zero_evict", "--max_seqs_per_batch", "4"], {"enable_zero_evict": True, "max_num_seqs": 4}),
    ],
)
def test_flags_by_other_names(arguments: list[str], changed: dict[str, object]) -> None:
    assert parse_config(arguments).to_flat(only_changed=True) == changed


def test_version_and_help(capsys: pytest.CaptureFixture[str]) -> None:
    for flag, said in (("--version", "xllm-server 0"), ("--help", "--max-concurrent-requests")):
        with pytest.raises(SystemExit) as ending:
            main([flag])
        assert ending.value.code == 0
        assert said in capsys.readouterr().out


def test_port_zero_takes_a_free_port() -> None:
    with bind(ServiceConfig(port=0)) as listener:
        assert address_of(listener).startswith("http://127.0.0.1:")
        assert not address_of(listener).endswith(":0")


def test_a_taken_port_is_named() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(InvalidConfig, match=str(port)):
            bind(ServiceConfig(port=port))


@pytest.mark.parametrize("options", [{"host": "no.such.host.invalid"}, {"port": 70000}, {"port": -1}])
def test_a_wrong_address_is_named(options: dict[str, object]) -> None:
    with pytest.raises(InvalidConfig, match="address"):
        bind(ServiceConfig(**options))  # type: ignore[arg-type]
