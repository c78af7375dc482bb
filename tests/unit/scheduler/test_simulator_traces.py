"""Synthetic traces, objectives, overlap, comparisons and pictures of the simulator."""

from __future__ import annotations

import itertools
import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from xllm_framework.config import SchedulerConfig
from xllm_framework.errors import InvalidConfig
from xllm_framework.kv_cache import BlockManager
from xllm_scheduler.latency import LatencyModel, save_latency_model
from xllm_scheduler.simulator import TINY, Setting, SimulationReport, Trace, TraceRequest, compare, load_trace, simulate
from xllm_scheduler.simulator.__main__ import main
from xllm_scheduler.simulator.compare import FEATURES
from xllm_scheduler.simulator.synthetic import SYNTHETIC, TraceShape
from xllm_scheduler.simulator.timeline import draw_timeline

SHAPE = TraceShape(num_requests=60, rate=20.0, mean_prompt_tokens=120, mean_output_tokens=30)


def run(trace: Trace, *, num_blocks: int = 1024, host_s: float = 0.0, **options) -> SimulationReport:
    return simulate(trace, SchedulerConfig(**options), BlockManager(num_blocks, 16), LatencyModel(), host_s=host_s)


@pytest.mark.parametrize("kind", SYNTHETIC)
def test_a_synthetic_trace_follows_from_its_seed(kind: str) -> None:
    make = SYNTHETIC[kind]
    trace = make(SHAPE, 1)
    assert trace == make(SHAPE, 1)
    assert trace != make(SHAPE, 2)
    assert len(trace.requests) == 60
    arrivals = [item.arrival_s for item in trace.requests]
    assert arrivals == sorted(arrivals)
    report = run(trace, num_blocks=4096)
    assert (report.num_failed, report.num_leaked_blocks) == (0, 0)
    assert report.num_generated_tokens == sum(item.output_tokens for item in trace.requests)


def test_bursts_are_burstier_than_poisson_at_the_same_rate() -> None:
    shape = TraceShape(num_requests=2000, rate=10.0)
    spread = {}
    for kind in ("poisson", "bursty"):
        gaps = np.diff([item.arrival_s for item in SYNTHETIC[kind](shape, 0).requests])
        assert np.mean(gaps) == pytest.approx(0.1, rel=0.2)
        spread[kind] = float(np.std(gaps) / np.mean(gaps))
    assert spread["poisson"] == pytest.approx(1.0, rel=0.15)
    assert spread["bursty"] > 1.8


def test_turns_of_an_agent_begin_with_the_turn_before() -> None:
    trace = SYNTHETIC["agentic"](SHAPE, 0)
    turns = [item for item in trace.requests if item.prefix_group == "agent 0"]
    assert len(turns) >= 3
    prompts = [item.to_request(number).sequences[0].prompt_token_ids for number, item in enumerate(turns)]
    for before, after in itertools.pairwise(prompts):
        assert len(after) > len(before)
        assert after[: len(before)].tolist() == before.tolist()
    other = next(item for item in trace.requests if item.prefix_group == "agent 1").to_request(99)
    system = turns[0].system_tokens
    assert other.sequences[0].prompt_token_ids[:system].tolist() == prompts[0][:system].tolist()
    assert run(trace).prefix_cache_hit_rate > 0.5


def test_attainment_counts_online_sequences_that_met_all_objectives() -> None:
    common = {"arrival_s": 0.0, "prompt_tokens": 40, "output_tokens": 5}
    trace = Trace(
        [
            TraceRequest(**common),
            TraceRequest(**common, ttft_slo_ms=1000.0, tpot_slo_ms=1000.0, ttlt_slo_ms=1000.0),
            TraceRequest(**common, ttft_slo_ms=0.1),
            TraceRequest(**common, tpot_slo_ms=0.1),
            TraceRequest(**common, ttlt_slo_ms=0.1),
            TraceRequest(**common, ttft_slo_ms=0.1, offline=True),
        ]
    )
    report = run(trace)
    assert (report.num_online, report.num_met) == (5, 2)
    assert report.attainment == pytest.approx(0.4)
    assert run(trace, default_ttft_slo_ms=0.1).num_met == 1


def test_overlap_hides_host_work_and_changes_no_token() -> None:
    trace = SYNTHETIC["poisson"](TraceShape(num_requests=60, rate=400.0, mean_output_tokens=60), 0)
    apart, overlapped = (run(trace, host_s=0.002, num_blocks=4096, enable_schedule_overlap=on) for on in (False, True))
    assert overlapped.num_generated_tokens == apart.num_generated_tokens
    assert overlapped.tokens_per_s > 1.15 * apart.tokens_per_s
    assert overlapped.num_leaked_blocks == apart.num_leaked_blocks == 0


def test_a_latency_limit_keeps_steps_short() -> None:
    trace = SYNTHETIC["poisson"](TraceShape(num_requests=40, rate=30.0, mean_prompt_tokens=800), 0)
    free = run(trace, num_blocks=4096)
    limited = run(trace, num_blocks=4096, default_tpot_slo_ms=20.0)
    assert np.percentile(limited.itl_s, 99) < 0.021 < np.percentile(free.itl_s, 99)


def test_every_feature_is_compared_with_itself_switched_off() -> None:
    base = Setting(config=SchedulerConfig(), latency=LatencyModel(), num_blocks=400, block_size=16)
    lines, _, reasons = (part.splitlines() for part in compare(base, TINY).partition("\n\n"))
    assert len(lines) == 1 + len(FEATURES)
    for line, feature in zip(lines[1:], FEATURES, strict=True):
        assert line.startswith(feature.name)
        assert feature.metric in line
    assert reasons == [f"{feature.name}: {feature.why}" for feature in FEATURES if feature.why]
    (overlap,) = [line for line in lines if line.startswith("schedule overlap")]
    without, with_it, ratio = (float(word) for word in overlap.split("generated tokens/s")[1].split()[:3])
    assert ratio == pytest.approx(with_it / without, abs=1e-3)
    assert ratio > 1.05


def test_a_timeline_is_drawn(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    report = run(TINY)
    draw_timeline(report, tmp_path / "timeline.png")
    assert (tmp_path / "timeline.png").read_bytes().startswith(b"\x89PNG")
    with pytest.raises(InvalidConfig, match="cannot be written"):
        draw_timeline(report, tmp_path / "nowhere" / "timeline.png")


def test_the_command_line_writes_what_it_is_asked_for(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    save_latency_model(LatencyModel(constant_us=50_000.0), tmp_path / "slow.json")
    arguments = ["--trace", "poisson", "--num-requests", "12", "--seed", "4", "--policy", "unified"]
    outputs = ["--save-trace", str(tmp_path / "t.json"), "--decisions", str(tmp_path / "d.txt")]
    assert main([*arguments, *outputs, "--latency-model", str(tmp_path / "slow.json")]) == 0
    assert len(load_trace(tmp_path / "t.json").requests) == 12
    assert (tmp_path / "d.txt").read_text().startswith("0:0+")
    slow = capsys.readouterr().out
    assert "SLO attainment" in slow
    assert main(["--trace", str(tmp_path / "t.json"), "--policy", "unified", "--constant-us", "10"]) == 0
    assert capsys.readouterr().out != slow
    assert main([]) == 2
    assert "--trace is missing" in capsys.readouterr().err
    assert main(["--trace", "tiny", "--max-block-use", "3"]) == 2
    assert "max_block_use" in capsys.readouterr().err


def test_the_format_refuses_what_makes_no_sense(tmp_path: Path) -> None:
    path = tmp_path / "trace.json"
    entry = {"arrival_s": 0.5, "prompt_tokens": 20, "output_tokens": 2}
    for wrong in ({"system_tokens": 15, "prefix_tokens": 6}, {"system_tokens": -1}, {"ttft_slo_ms": -1}):
        path.write_text(json.dumps({"requests": [{**entry, **wrong}]}))
        with pytest.raises(InvalidConfig, match=r"tokens|slo_ms"):
            load_trace(path)


def test_the_module_runs_without_torch_and_without_matplotlib() -> None:
    code = (
        "import sys; sys.modules['matplotlib'] = None; from xllm_scheduler.simulator.__main__ import main; "
        "assert main(['--trace', 'tiny', '--timeline', 'x.png']) == 2; assert 'torch' not in sys.modules"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert result.returncode == 0, result.stderr
    assert "xllm-scheduler[plot]" in result.stderr
