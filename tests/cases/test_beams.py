"""Public cases, section 2.7: beams, over HTTP with a model that has opinions."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch

from support.beam_reference import beam_search
from support.reference_logits import reference_logits
from support.server_process import ServerProcess
from support.tiny_checkpoints import tiny_checkpoint

BLOCK_SIZE = 16


@pytest.fixture(scope="module")
def llama() -> Iterator[ServerProcess]:
    """A tiny Llama."""
    options = (
        "--block-size",
        str(BLOCK_SIZE),
        "--num-blocks",
        "4096",
        "--max-num-seqs",
        "600",
        "--dtype",
        "float32",
        "--model-impl",
        "python",
    )
    with ServerProcess(*options, "--check-integrity", model=tiny_checkpoint("llama")) as server:
        yield server


@functools.cache
def following(tokens: tuple[int, ...]) -> np.ndarray:
    """Return the log-probabilities of the next token, by transformers' own model."""
    return torch.log_softmax(reference_logits(tiny_checkpoint("llama"), tokens)[-1].double(), -1).numpy()


def beams(server: ServerProcess, prompt: list[int], width: int, **fields: Any) -> list[tuple[float, str]]:
    """Return (log-probability, text) of each answer."""
    body = {
        "n": min(width, 128),
        "beam_width": width,
        "max_tokens": 4,
        "logprobs": 0,
        "ignore_eos": True,
        "skip_special_tokens": False,
    }
    answer = server.complete(prompt, **(body | fields | ({"max_tokens": 2} if width > 100 else {})))
    assert answer.status_code == 200, answer.text
    choices = answer.json()["choices"]
    assert [choice["index"] for choice in choices] == list(range(len(choices)))
    return [(sum(choice["logprobs"]["token_logprobs"]), choice["text"]) for choice in choices]


@pytest.mark.parametrize(
    ("width", "length"), [(1, 14), (2, 14), (64, 14), (2, 15), (2, 16), (64, 16), (512, BLOCK_SIZE - 1)]
)
def test_b73_answers_of_beams_are_sorted(llama: ServerProcess, width: int, length: int) -> None:
    scores = [score for score, _ in beams(llama, list(range(40, 40 + length)), width)]
    assert len(scores) == min(width, 128)
    assert scores == sorted(scores, reverse=True)


def test_b73_scores_of_beams_equal_a_reference(llama: ServerProcess) -> None:
    prompt = list(range(40, 40 + BLOCK_SIZE - 2))
    wanted = beam_search(lambda tokens: following(tuple(tokens)), prompt, 4, 4, set(), 0.0)[:4]
    found = beams(llama, prompt, 4)
    assert [score for score, _ in found] == pytest.approx([logprob for _, logprob, _ in wanted], abs=1e-3)


def test_b73_beams_stop_where_an_answer_stops(llama: ServerProcess) -> None:
    answer = llama.complete(list(range(40, 50)), n=4, use_beam_search=True, max_tokens=6, stop_token_ids=[3, 9])
    reasons = {choice["finish_reason"] for choice in answer.json()["choices"]}
    assert reasons <= {"stop", "length"}
