"""The embedded demo model answers as transformers does on the same dequantised weights (see record_smollm2_greedy.py)."""

from __future__ import annotations

import json
from pathlib import Path

from xllm_runtime import LLM, SamplingParams

RECORD = json.loads(Path(__file__).with_name("smollm2_greedy.json").read_text(encoding="utf-8"))


def test_greedy_answers_equal_the_recorded_ones():
    longest = max(len(entry["answer_token_ids"]) for entry in RECORD)
    with LLM(dtype="float32", device="cpu", max_model_len=512, num_blocks=100, threads=1) as llm:
        assert llm.master.model_name == "SmolLM2-135M-Instruct"
        conversations = [[{"role": "user", "content": entry["question"]}] for entry in RECORD]
        outputs = llm.chat(conversations, SamplingParams(temperature=0.0, max_tokens=longest))
    for entry, output in zip(RECORD, outputs, strict=True):
        assert output.prompt_token_ids == entry["prompt_token_ids"]
        assert output.outputs[0].token_ids == entry["answer_token_ids"]
