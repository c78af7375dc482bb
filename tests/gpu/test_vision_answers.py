"""Answers about pictures on a GPU beside transformers on the CPU, along the tokens that the GPU chose.

Of two tokens that are equally probable but for rounding either may be chosen, so that texts are not compared: every token must be the
best there or as good as it, and its probability the same.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import takewhile

import pytest
import torch

from support.tiny_vision import GLM_TOKENS, TOKENS
from support.vision_cases import CASES, VisionCase, reference
from xllm_framework.request import SamplingParams
from xllm_runtime.llm import LLM

pytestmark = pytest.mark.gpu
MODELS = ("qwen2_vl", "qwen2_5_vl", "qwen3_vl", "llava_onevision", "glm4v")
MARKS = {*TOKENS.values(), *GLM_TOKENS.values()}
TOLERANCE = 1e-3
"""Of logits in float32 that two devices sum up in different orders."""


@pytest.fixture(scope="module", params=MODELS)
def model_type(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    return name


@pytest.fixture(scope="module")
def llm(model_type: str) -> Iterator[LLM]:
    with LLM(
        str(reference(model_type).folder), dtype="float32", device="cuda", max_model_len=1024, num_blocks=300
    ) as served:
        yield served


def forced_logits(model_type: str, case: VisionCase, token_ids: list[int]) -> tuple[list[int], torch.Tensor]:
    """Return (token ids of the prompt, float32 logits [prompt + answer, vocab]) of transformers for `case` and an answer to it."""
    ref = reference(model_type)
    inputs = ref.inputs(case.messages(with_pictures=False), case.pictures)
    more = torch.tensor([token_ids], dtype=torch.int64)
    whole = {**inputs, "input_ids": torch.cat((inputs["input_ids"], more), 1)}
    if "mm_token_type_ids" in inputs:
        whole["mm_token_type_ids"] = torch.cat((inputs["mm_token_type_ids"], 0 * more.int()), 1)
    return inputs["input_ids"][0].tolist(), ref.logits(whole)


def test_every_token_is_the_best_or_as_good(llm: LLM, model_type: str) -> None:
    params = SamplingParams(temperature=0, max_tokens=16, ignore_eos=True, logprobs=0, prompt_logprobs=0)
    outputs = llm.chat([case.messages(with_pictures=True) for case in CASES], params)
    for case, output in zip(CASES, outputs, strict=True):
        assert output.error is None
        # The random model may write a mark of media, which transformers would take for one more picture.
        written = output.outputs[0].token_ids
        token_ids = list(takewhile(lambda token_id: token_id not in MARKS, written))
        prompt, logits = forced_logits(model_type, case, token_ids)
        targets = torch.tensor(prompt[1:] + token_ids, dtype=torch.int64)
        logprobs = [*(output.prompt_logprobs or [])[1:], *(output.outputs[0].logprobs or [])[: len(token_ids)]]
        found = torch.tensor([item.logprob for item in logprobs if item is not None])
        expected = logits.log_softmax(-1)[: len(targets)].gather(1, targets[:, None])[:, 0]
        torch.testing.assert_close(found, expected, atol=TOLERANCE, rtol=0)
        answered = logits[len(prompt) - 1 : len(targets)]
        chosen = answered.gather(1, torch.tensor(token_ids, dtype=torch.int64)[:, None])[:, 0]
        assert not (answered.max(-1).values - chosen > TOLERANCE).any(), case.name
