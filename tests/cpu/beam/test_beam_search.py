"""Beam search through the offline API equals brute force over transformers' own model."""

from __future__ import annotations

import functools

import numpy as np
import pytest
import torch

from support.beam_reference import beam_search
from support.reference_logits import reference_logits
from support.tiny_checkpoints import tiny_checkpoint
from xllm_runtime import LLM, SamplingParams
from xllm_runtime.worker import LocalWorkerClient

PROMPTS = [[5, 6, 7, 8, 9], list(range(40, 72))]


@functools.cache
def following(tokens: tuple[int, ...]) -> np.ndarray:
    return torch.log_softmax(reference_logits(tiny_checkpoint("llama"), tokens)[-1].double(), -1).numpy()


@pytest.fixture(scope="module", params=["copied_blocks", "native", "recomputed_blocks", "overlapped", "crowded"])
def llm(request):
    options = {"device": "cpu", "dtype": "float32", "threads": 1, "num_blocks": 100, "check_integrity": True}
    options |= {"model_impl": "native" if request.param in ("native", "recomputed_blocks") else "python"}
    options |= {"enable_schedule_overlap": request.param == "overlapped"}
    if request.param == "crowded":
        options |= {"num_blocks": 14, "max_model_len": 100}
    with pytest.MonkeyPatch.context() as patch:
        if request.param == "recomputed_blocks":
            patch.setattr(
                LocalWorkerClient, "can_copy_blocks", property(lambda _: False, lambda *_: None), raising=False
            )
        with LLM(str(tiny_checkpoint("llama")), **options) as llm:
            yield llm


@pytest.mark.parametrize(("width", "length_penalty"), [(2, 0.0), (5, 0.0), (5, 1.0)])
def test_beams_equal_brute_force(llm, width, length_penalty):
    sampling = SamplingParams(
        beam_width=width, n=width, max_tokens=6, length_penalty=length_penalty, stop_token_ids=(3, 9), logprobs=1
    )
    ending = {3, 9, *llm.master.model_args.eos_token_ids}
    outputs = llm.generate(PROMPTS, sampling, use_tqdm=False)
    for prompt, output in zip(PROMPTS, outputs, strict=True):
        wanted = beam_search(lambda t: following(tuple(t)), prompt, width, 6, ending, length_penalty)[:width]
        assert output.error is None
        assert [answer.token_ids for answer in output.outputs] == [tokens for tokens, _, _ in wanted]
        assert [answer.finish_reason for answer in output.outputs] == [reason for _, _, reason in wanted]
        for answer, (_, logprob, _) in zip(output.outputs, wanted, strict=True):
            assert sum(entry.logprob for entry in answer.logprobs) == pytest.approx(logprob, abs=1e-3)


def test_ordinary_requests_share_the_steps_of_beams(llm):
    plain = SamplingParams(temperature=0.0, max_tokens=6)
    alone = llm.generate(PROMPTS, plain, use_tqdm=False)
    beams = SamplingParams(beam_width=4, max_tokens=6)
    together = llm.generate([*PROMPTS, *PROMPTS], [plain, plain, beams, beams], use_tqdm=False)
    assert [o.outputs[0].token_ids for o in together[:2]] == [o.outputs[0].token_ids for o in alone]


def test_more_beams_than_fit_are_refused(llm):
    output = llm.generate(PROMPTS[0], SamplingParams(beam_width=300), use_tqdm=False)[0]
    assert output.error_kind == "invalid_request"
