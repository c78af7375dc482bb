"""Step times are measured at start when asked for, saved, loaded, and used by the scheduler."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from support.tiny_checkpoints import tiny_checkpoint
from xllm_framework.errors import InvalidConfig
from xllm_framework.request import SamplingParams
from xllm_runtime import LLM
from xllm_runtime.master.latency_sweep import shaped_input
from xllm_scheduler import Scheduler
from xllm_scheduler.latency import LatencyModel, StepShape, load_latency_model, save_latency_model

GREEDY = SamplingParams(temperature=0.0, max_tokens=5, ignore_eos=True)


def test_an_input_has_the_shape_that_was_asked_for() -> None:
    step = shaped_input(StepShape(chunks=((5, 0), (3, 6)), decodes=((1, 9),)), num_blocks=4, block_size=4)
    assert step.query_start.tolist() == [0, 1, 6, 9]
    assert step.positions.tolist() == [9, 0, 1, 2, 3, 4, 6, 7, 8]
    assert step.seq_lens.tolist() == [10, 5, 9]
    assert step.block_tables.shape == (3, 3)
    assert set(np.unique(step.block_tables)) == {1, 2, 3}
    assert (step.slot_mapping % 4 == step.positions % 4).all()
    assert step.max_query_len == 5


@pytest.fixture
def models(monkeypatch: pytest.MonkeyPatch) -> list[LatencyModel | None]:
    """Return the list of latency models that schedulers are made with from now on."""
    found: list[LatencyModel | None] = []
    make = Scheduler.__init__

    def spy(self, *arguments, **options) -> None:
        found.append(options.get("latency"))
        make(self, *arguments, **options)

    monkeypatch.setattr(Scheduler, "__init__", spy)
    return found


def serve(**options) -> list[int]:
    flat = {"device": "cpu", "dtype": "float32", "threads": 1, "num_blocks": 40, "max_num_batched_tokens": 32}
    with LLM(str(tiny_checkpoint("llama")), **flat, **options) as llm:
        return llm.generate(list(range(60)), GREEDY, use_tqdm=False)[0].outputs[0].token_ids


def test_times_are_measured_saved_and_loaded(tmp_path: Path, models: list[LatencyModel | None]) -> None:
    path = tmp_path / "latency.json"
    wanted = serve()
    assert serve(measure_latency=True, latency_model=str(path), default_tpot_slo_ms=50.0) == wanted
    measured = load_latency_model(path)
    assert measured.per_token_us + measured.per_token_squared_us + measured.constant_us > 0
    save_latency_model(LatencyModel(constant_us=123.0), path)
    assert serve(measure_latency=True, latency_model=str(path)) == wanted
    assert models == [None, measured, LatencyModel(constant_us=123.0)]


def test_a_file_that_is_missing_is_an_error_unless_it_is_to_be_made(tmp_path: Path) -> None:
    with pytest.raises(InvalidConfig, match="cannot be read"):
        serve(latency_model=str(tmp_path / "missing.json"))
