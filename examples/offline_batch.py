"""Completes a batch of prompts with three samples each; one bad prompt does not lose the others.

Run it with `uv run python examples/offline_batch.py [MODEL]`.
"""

import sys

from xllm_runtime import LLM, SamplingParams

PROMPTS = ["The three primary colours are", "", "Water boils at"]

with LLM(model=sys.argv[1] if len(sys.argv) > 1 else "") as llm:
    params = SamplingParams(n=3, temperature=0.8, top_p=0.9, seed=7, max_tokens=16)
    for prompt, output in zip(PROMPTS, llm.generate(PROMPTS, params), strict=True):
        if output.error is not None:
            print(f"{prompt!r} failed: {output.error}")
            continue
        for sample in output.outputs:
            print(f"{prompt!r} -> {sample.text!r} ({sample.finish_reason})")
