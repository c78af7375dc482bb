"""Options of a batch's rows: which of them change logits, and some of them taken alone."""

from __future__ import annotations

import numpy as np

from support.sampling_rows import Row, sampling_rows
from xllm_framework.batch.allowed_tokens import AllowedTokens

ROWS = [
    Row(temperature=0.5, seed=4, step=2, logprobs=3),
    Row(presence_penalty=1.0, prompt=(1, 2), output=(3,)),
    Row(top_k=5, bias=((7, -1.0),)),
    Row(min_p=0.1),
    Row(banned=(8, 9), repetition_penalty=1.2, prompt=(4,)),
    Row(top_p=0.5),
]


def rows_with_grammar():
    rows = sampling_rows(ROWS)
    rows.allowed = AllowedTokens(np.array([2, 5]), np.array([[6], [9]], np.int32))
    return rows


def test_rows_whose_logits_change():
    assert rows_with_grammar().changed().tolist() == [1, 2, 4, 5]
    assert sampling_rows(ROWS[:1]).changed().tolist() == []


def test_taken_rows_keep_what_they_ask_for():
    taken = rows_with_grammar().take(np.array([1, 4, 5]))
    for name in ("temperature", "top_p", "top_k", "min_p", "seed", "step", "num_logprobs", "presence_penalty"):
        assert getattr(taken, name).tolist() == getattr(sampling_rows([ROWS[1], ROWS[4], ROWS[5]]), name).tolist()
    assert [(row, prompt.tolist(), output.tolist()) for row, prompt, output in taken.penalised] == [
        (0, [1, 2], [3]),
        (1, [4], []),
    ]
    assert taken.logit_bias == []
    assert [(row, ids.tolist()) for row, ids in taken.banned] == [(1, [8, 9])]
    assert taken.allowed.rows.tolist() == [2]
    assert taken.allowed.bits.tolist() == [[9]]
    assert rows_with_grammar().take(np.array([0, 3])).allowed is None
