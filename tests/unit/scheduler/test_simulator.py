"""The simulator is deterministic, counts every token, and shows what it is for: differences between policies."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from xllm_framework.batch import Batch, ScheduledSequence
from xllm_framework.config import SchedulerConfig
from xllm_framework.errors import InvalidConfig
from xllm_framework.kv_cache import BlockManager
from xllm_framework.request import Request, SamplingParams
from xllm_scheduler.latency import LatencyModel, StepShape
from xllm_scheduler.simulator import (
    TINY,
    SimulationReport,
    Trace,
    TraceRequest,
    load_trace,
    simulate,
)
from xllm_scheduler.simulator.__main__ import main


def run(trace: Trace = TINY, *, num_blocks: int = 1024, enable_prefix_cache: bool = True, **options):
    blocks = BlockManager(num_blocks, 16, enable_prefix_cache=enable_prefix_cache)
    report = simulate(trace, SchedulerConfig(**options), blocks, LatencyModel())
    assert blocks.num_allocated_blocks == 0
    return report


def test_every_token_is_counted_and_runs_repeat() -> None:
    report = run()
    assert report.num_generated_tokens == sum(item.output_tokens for item in TINY.requests)
    assert report.num_prompt_tokens == sum(item.prompt_tokens for item in TINY.requests)
    assert len(report.ttft_s) == len(report.e2e_s) == len(TINY.requests)
    assert len(report.itl_s) == report.num_generated_tokens - len(TINY.requests)
    assert run() == report


def test_prefill_first_has_longer_pauses_between_tokens() -> None:
    assert max(run(policy="prefill_first").itl_s) > 1.2 * max(run(policy="decode_first").itl_s)


def test_small_chunks_shorten_the_longest_pause() -> None:
    assert max(run(max_num_batched_tokens=256).itl_s) < 0.5 * max(run().itl_s)


def test_the_prefix_cache_saves_time_where_prompts_begin_alike() -> None:
    with_cache, without = run(), run(enable_prefix_cache=False)
    assert with_cache.prefix_cache_hit_rate > 0.05
    assert without.prefix_cache_hit_rate == 0.0
    assert sum(with_cache.e2e_s) < sum(without.e2e_s)


def test_a_small_pool_costs_time_and_nothing_else() -> None:
    small = run(num_blocks=150)
    assert small.num_generated_tokens == run().num_generated_tokens
    assert small.peak_blocks <= 149
    assert small.duration_s > run().duration_s


def test_failures_are_counted_apart() -> None:
    trace = Trace(
        [
            TraceRequest(arrival_s=0.0, prompt_tokens=40, output_tokens=3),
            TraceRequest(arrival_s=0.0, prompt_tokens=99_999, output_tokens=3),
            TraceRequest(arrival_s=0.0, prompt_tokens=40, output_tokens=3, deadline_s=1e-4),
            TraceRequest(arrival_s=9.0, prompt_tokens=40, output_tokens=3, n=2),
        ]
    )
    report = run(trace, max_num_seqs=1)
    assert (report.num_failed, len(report.e2e_s)) == (2, 3)
    assert report.duration_s > 9.0


def test_latency_is_linear_in_tokens_and_in_what_attention_reads() -> None:
    model = LatencyModel.linear(constant_us=100, per_token_us=10, per_kv_token_us=1)
    request = Request("r", [1] * 10, SamplingParams(), arrival_time_s=0.0)
    batch = Batch()
    batch.add(ScheduledSequence(request, request.sequences[0], 4, 3))
    assert model.step_s(StepShape.of(batch)) == pytest.approx(1e-6 * (100 + 30 + 3 * (4 + 3 / 2)))


def test_a_trace_file_is_read_and_its_faults_are_named(tmp_path: Path) -> None:
    path = tmp_path / "trace.json"
    entry = {"arrival_s": 0.5, "prompt_tokens": 20, "output_tokens": 2, "prefix_group": "g", "prefix_tokens": 16}
    path.write_text(json.dumps({"requests": [entry, {**entry, "arrival_s": 0}]}))
    trace = load_trace(path)
    first, second = (item.to_request(number) for number, item in enumerate(trace.requests))
    ours, theirs = (request.sequences[0].prompt_token_ids.tolist() for request in (first, second))
    assert ours[:16] == theirs[:16]
    assert ours[16:] != theirs[16:]
    for wrong, message in (
        ({"prompt_tokens": 0}, "prompt_tokens"),
        ({"prefix_tokens": 21}, "prefix_tokens must be from 0"),
        ({"arrival_s": "soon"}, r"requests\[0\].arrival_s"),
        ({"speed": 1}, "speed"),
    ):
        path.write_text(json.dumps({"requests": [{**entry, **wrong}]}))
        with pytest.raises(InvalidConfig, match=message):
            load_trace(path)
    with pytest.raises(InvalidConfig, match=r"nowhere\.json cannot be read"):
        load_trace(tmp_path / "nowhere.json")


def test_the_command_prints_a_report_or_one_line_of_what_is_wrong(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--trace", "tiny", "--policy", "prefill_first"]) == 0
    output = capsys.readouterr().out
    for word in ("TTFT", "TPOT", "p99", "preemptions", "peak block use"):
        assert word in output
    assert main(["--trace", "tiny", "--policy", "none"]) == 2
    captured = capsys.readouterr()
    assert captured.err.startswith("error: Option 'policy'")
    assert captured.err.count("\n") == 1


def test_an_empty_report_can_be_printed() -> None:
    assert "0 sequences finished" in SimulationReport().to_text()
    assert "0 sequences finished" in run(Trace([])).to_text()
