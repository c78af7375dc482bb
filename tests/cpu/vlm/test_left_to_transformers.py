"""Models that see and that nobody but transformers knows: their answers are the library's, whatever rides on the steps."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from support.tiny_transformers_vision import tiny_left_checkpoint
from support.tiny_vision import picture
from xllm_framework.config import ModelConfig, XLLMConfig
from xllm_framework.errors import InvalidConfig, UnsupportedModel
from xllm_framework.request import SamplingParams
from xllm_runtime.backend import choose_backend
from xllm_runtime.llm import LLM
from xllm_runtime.master.selection import create_master

MODELS = ("gemma3", "idefics3")
NUM_TOKENS = 12
CASES: tuple[tuple[Any, ...], ...] = (
    (picture(1), "What is it?"),
    ("First ", picture(2, 40, 90), " then ", picture(3, 70, 30), " compare."),
    ("No picture.",),
)


def messages(case: tuple[Any, ...], *, has_pictures: bool) -> list[dict[str, Any]]:
    parts = [
        {"type": "text", "text": part}
        if isinstance(part, str)
        else {"type": "image", **({"image": part} if has_pictures else {})}
        for part in case
    ]
    return [{"role": "user", "content": parts}]


def expected_tokens(folder: Path) -> list[list[int]]:
    """Return transformers' greedy answers."""
    from transformers import AutoModelForImageTextToText, AutoProcessor

    processor = AutoProcessor.from_pretrained(folder, backend="pil")
    model = AutoModelForImageTextToText.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager").eval()
    answers = []
    for case in CASES:
        text = processor.tokenizer.apply_chat_template(messages(case, has_pictures=False), tokenize=False)
        pictures = [part for part in case if not isinstance(part, str)]
        images = {"images": [pictures]} if pictures else {}
        inputs = processor(text=[text], return_tensors="pt", add_special_tokens=False, **images)
        with torch.inference_mode():
            output = model.generate(**inputs, max_new_tokens=NUM_TOKENS, do_sample=False, eos_token_id=-1)
        answers.append(output[0, inputs["input_ids"].shape[1] :].tolist())
    return answers


@pytest.mark.parametrize("model_type", MODELS)
def test_answers_are_transformers(model_type: str) -> None:
    folder = tiny_left_checkpoint(model_type)
    expected = expected_tokens(folder)
    params = SamplingParams(temperature=0, max_tokens=NUM_TOKENS, ignore_eos=True)
    for options in ({}, {"max_num_batched_tokens": 13, "enable_prefix_cache": False}):
        with LLM(
            str(folder), dtype="float32", threads=1, max_model_len=512, check_integrity=True, num_blocks=100, **options
        ) as llm:
            assert llm.master.ready.model_impl == "transformers"
            for _ in range(2):
                outputs = llm.chat([messages(case, has_pictures=True) for case in CASES], params)
                assert [output.error for output in outputs] == [None] * len(CASES)
                assert [output.outputs[0].token_ids for output in outputs] == expected
            several = llm.chat(messages(CASES[1], has_pictures=True), SamplingParams(n=2, temperature=0, max_tokens=4))
            assert [s.token_ids for s in several[0].outputs] == [expected[1][:4]] * 2
            prompt = "<start_of_image>?" if model_type == "gemma3" else "<image>?"
            wrong = [
                llm.chat([{"role": "user", "content": [{"type": "video", "video": b""}]}])[0],
                llm.generate({"prompt": prompt * 2, "multi_modal_data": {"image": picture(1)}})[0],
            ]
            assert [output.error_kind for output in wrong] == ["invalid_request"] * 2


def test_what_cannot_be_served_is_said_at_the_start(tmp_path: Path) -> None:
    folder = tiny_left_checkpoint("gemma3")
    for file in folder.iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    (tmp_path / "processor_config.json").write_text('{"processor_class": "Nothing"}')
    (tmp_path / "preprocessor_config.json").write_text('{"processor_class": "Nothing"}')
    config = XLLMConfig.from_flat({"model": str(tmp_path), "dtype": "float32"})
    with pytest.raises(InvalidConfig, match="cannot load the processor"):
        create_master(config, engine_process=False).close()
    path = tmp_path / "config.json"
    path.write_text(path.read_text().replace("Gemma3ForConditionalGeneration", "OtherForConditionalGeneration"))
    with pytest.raises((UnsupportedModel, InvalidConfig)):
        create_master(config, engine_process=False).close()


def test_folders_with_a_tower_and_a_processor_are_served_as_models_that_see() -> None:
    from xllm_framework.config import LoadConfig
    from xllm_framework.model.source import resolve_model

    files = resolve_model(str(tiny_left_checkpoint("idefics3")), LoadConfig())
    assert choose_backend(ModelConfig(), files) == "vlm"
