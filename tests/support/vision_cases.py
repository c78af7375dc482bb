"""Conversations with pictures, and what transformers answers to them. Knows nothing of how they are served."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Any

import PIL.Image
import torch

from support.tiny_vision import GLM_TOKENS, TOKENS, Reference, picture
from xllm_framework.request import RequestOutput
from xllm_runtime.master import PreparedRequest

NUM_TOKENS = 32

Part = str | PIL.Image.Image


@dataclass(frozen=True, eq=False)
class VisionCase:
    """A conversation, (role, parts) a turn."""

    name: str
    turns: tuple[tuple[str, tuple[Part, ...]], ...]

    def messages(self, *, with_pictures: bool) -> list[dict[str, Any]]:
        """Return it for `LLM.chat`, or for a chat template, which sees no pictures."""
        return [
            {"role": role, "content": [_part(part, with_pictures=with_pictures) for part in parts]}
            for role, parts in self.turns
        ]

    @property
    def pictures(self) -> list[PIL.Image.Image]:
        """All pictures, in order."""
        return [part for _, parts in self.turns for part in parts if not isinstance(part, str)]


def _part(part: Part, *, with_pictures: bool) -> dict[str, Any]:
    if isinstance(part, str):
        return {"type": "text", "text": part}
    return {"type": "image", "image": part} if with_pictures else {"type": "image"}


CASES = (
    VisionCase("one image", (("user", (picture(1), "What is it?")),)),
    VisionCase(
        "five images",
        (("user", (*(picture(seed, 60 + 17 * seed, 150 - 11 * seed) for seed in range(2, 7)), "Compare them.")),),
    ),
    VisionCase("image after text", (("user", ("Before the picture. ", picture(7, 200, 40), " And after it.")),)),
    VisionCase(
        "two turns",
        (
            ("user", (picture(8, 84, 140), "First?")),
            ("assistant", ("A picture.",)),
            ("user", ("And this one?", picture(9, 33, 71))),
        ),
    ),
    VisionCase("text", (("user", ("No picture at all.",)),)),
)


@dataclass(frozen=True)
class Answer:
    """What transformers makes of a case."""

    inputs: dict[str, torch.Tensor]
    token_ids: list[int]
    logprobs: torch.Tensor
    """float32 [tokens, vocab], of the prompt and the output up to a mark of media that the random model may write."""


@cache
def reference(model_type: str) -> Reference:
    """Return transformers' model, loaded once."""
    return Reference(model_type)


@cache
def answer(model_type: str, case: VisionCase) -> Answer:
    """Return transformers' greedy answer."""
    ref = reference(model_type)
    return answer_to(ref, ref.inputs(case.messages(with_pictures=False), case.pictures))


def answer_to(ref: Reference, inputs: dict[str, torch.Tensor]) -> Answer:
    """Return the greedy answer to the inputs of one prompt."""
    token_ids = ref.greedy(inputs, NUM_TOKENS)
    marks = {*TOKENS.values(), *GLM_TOKENS.values()}
    end = next((at for at, token_id in enumerate(token_ids) if token_id in marks), len(token_ids))
    more = torch.tensor([token_ids[:end]], dtype=torch.int64)
    whole = {**inputs, "input_ids": torch.cat((inputs["input_ids"], more), 1)}
    if "mm_token_type_ids" in inputs:
        whole["mm_token_type_ids"] = torch.cat((inputs["mm_token_type_ids"], 0 * more.int()), 1)
    return Answer(inputs, token_ids, ref.logits(whole).log_softmax(-1))


def check_logprobs(output: RequestOutput, expected: Answer) -> None:
    """Compare the log-probabilities of an output, and of its prompt where it has those, with transformers'."""
    prompt = expected.inputs["input_ids"][0].tolist()
    assert output.num_prompt_tokens == len(prompt)
    found = [item.logprob for item in (output.prompt_logprobs or [])[1:] if item is not None]
    first = 0 if found else len(prompt) - 1
    found += [item.logprob for item in output.outputs[0].logprobs or []]
    targets = torch.tensor(prompt[1:] + expected.token_ids)[first : len(expected.logprobs)]
    rows = expected.logprobs[first : first + len(targets)]
    torch.testing.assert_close(
        torch.tensor(found)[: len(rows)], rows.gather(1, targets[:, None])[:, 0], atol=1e-4, rtol=0
    )


def check_positions(prepared: PreparedRequest, ref: Reference, expected: Answer) -> None:
    """Compare the rotary positions of a prompt with media, and what they are behind it, with transformers'."""
    media = prepared.message.media
    if media is None or "mm_token_type_ids" not in expected.inputs:
        return
    positions, delta = ref.model.model.get_rope_index(**expected.inputs)
    found = torch.from_numpy(media.rotary_positions(0, positions.shape[-1]))
    torch.testing.assert_close(found.long(), positions[:, 0])
    assert media.position_delta == int(delta)
