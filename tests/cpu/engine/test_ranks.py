"""What the engine does with several ranks: one pool size, and no rank left waiting when another fails."""

import numpy as np
import pytest

from support.script_engine import SCRIPT_ARGS
from xllm_framework.batch import Batch, BatchGroup, ForwardInput, ForwardOutput
from xllm_framework.config import XLLMConfig
from xllm_framework.errors import EngineDead, XLLMError
from xllm_framework.kv_cache import CacheLayout
from xllm_framework.model import ModelFiles
from xllm_runtime.engine import LLMEngine
from xllm_runtime.worker import LocalWorkerClient, NullWorker


class RecordingClient:
    """A rank that has `num_fitting` blocks, remembers its calls, and raises `failure` in every step once it is set."""

    model_impl, device, dtype, vocab_size, can_copy_blocks = "null", "null", "null", 4, True
    cache_layout = CacheLayout()

    def __init__(self, num_fitting: int) -> None:
        self.num_fitting = num_fitting
        self.calls: list[str] = []
        self.failure: Exception | None = None

    def num_blocks_that_fit(self, block_size: int) -> int:
        return self.num_fitting

    def allocate_kv_cache(self, num_blocks: int, block_size: int) -> None:
        self.calls.append(f"allocate {num_blocks}")

    def submit(self, forward_input: ForwardInput) -> None:
        self.calls.append("submit")

    def collect(self) -> ForwardOutput:
        self.calls.append("collect")
        if self.failure:
            raise self.failure
        return ForwardOutput(np.empty(0, np.int32))

    def close(self) -> None:
        self.calls.append("close")


@pytest.fixture
def ranks(monkeypatch, tmp_path) -> tuple[LLMEngine, list[RecordingClient]]:
    clients = [RecordingClient(num_fitting) for num_fitting in (30, 20, 40)]
    monkeypatch.setattr("xllm_runtime.engine.llm._start_workers", lambda *_: clients)
    return LLMEngine(XLLMConfig(), ModelFiles(tmp_path, "hf", "ranks"), SCRIPT_ARGS), clients


def test_all_ranks_take_the_smallest_pool_and_warm_up(ranks):
    engine, clients = ranks
    assert (engine.num_blocks, engine.max_model_len) == (20, 19 * engine.block_size)
    assert [client.calls for client in clients] == [["allocate 20", "submit", "collect"]] * 3


@pytest.mark.parametrize(
    ("failure", "raised"), [(ValueError("broken"), "ValueError: broken"), (EngineDead("rank 0 is gone"), "is gone")]
)
def test_a_failing_rank_leaves_no_other_waiting(ranks, failure, raised):
    engine, clients = ranks
    clients[0].failure = failure
    with pytest.raises(XLLMError, match=raised) as caught:
        engine.execute(BatchGroup((Batch(), Batch(), Batch())))
    assert isinstance(caught.value, EngineDead) == isinstance(failure, EngineDead)
    assert [client.calls.count("collect") for client in clients] == [2, 2, 2]
    clients[0].failure = None
    assert len(engine.execute(BatchGroup((Batch(), Batch(), Batch())))) == 3


def test_closing_the_engine_closes_every_rank(ranks):
    engine, clients = ranks
    engine.close()
    assert [client.calls[-1] for client in clients] == ["close"] * 3


def test_a_step_that_was_not_submitted_cannot_be_collected():
    client = LocalWorkerClient(NullWorker(XLLMConfig(), SCRIPT_ARGS))
    with pytest.raises(EngineDead, match="given none"):
        client.collect()
