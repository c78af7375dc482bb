"""What a step on a GPU asks of the device after its logits; the device is only played."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from support.sampling_rows import Row, sampling_rows
from xllm_runtime.executor import cuda_graph_output
from xllm_runtime.executor.cuda_graph_output import DeviceOutput, DeviceRows, SampledOutput


class Buffers:
    """Logits and choices of two rows."""

    logits = torch.zeros(2, 8)

    def outputs(self, num_rows: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        return self.logits[:num_rows], torch.zeros(num_rows, dtype=torch.int32), torch.zeros(num_rows)


@pytest.mark.parametrize("is_penalised", [False, True])
def test_newest_tokens_are_gathered_only_where_samples_may_depend_on_them(
    is_penalised: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Event:
        def record(self) -> None:
            """Nothing happens."""

    monkeypatch.setattr(torch.cuda, "Event", Event)
    monkeypatch.setattr(cuda_graph_output, "why_no_draw", lambda _: None)
    sampled: list[Any] = []
    monkeypatch.setattr(cuda_graph_output, "sample_on_device", lambda *given: sampled.append(given[1]))
    asked, newest = [], torch.tensor([3, 4], dtype=torch.int32)

    def gather() -> torch.Tensor:
        asked.append(1)
        return newest

    penalty = 1.0 if is_penalised else 0.0
    rows = sampling_rows([Row(presence_penalty=penalty)] * 2)
    results = torch.zeros(4, dtype=torch.int32)
    output = DeviceRows(Buffers(), results, None, 2, gather).start(rows)
    assert isinstance(output, SampledOutput if is_penalised else DeviceOutput)
    assert len(asked) == is_penalised
    assert [given is newest for given in sampled] == [True] * is_penalised
