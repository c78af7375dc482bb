"""Whole random models on the GPU in bfloat16 beside transformers on the same GPU: logits of prompts, and greedy tokens."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from support.decode_steps import StepMaker
from support.loaded_models import model_files
from xllm_framework.config import XLLMConfig
from xllm_framework.model import load_model_args
from xllm_runtime.worker.llm import LLMWorker

pytestmark = pytest.mark.gpu
NUM_BLOCKS, BLOCK_SIZE, NUM_TOKENS = 64, 16, 32
SHAPE = {
    "hidden_size": 512, "intermediate_size": 1024, "num_hidden_layers": 4, "num_attention_heads": 8,
    "num_key_value_heads": 2, "head_dim": 64,
}  # fmt: skip
COMMON = {
    "vocab_size": 264, "max_position_embeddings": 256, "bos_token_id": 256, "eos_token_id": 258, "tie_word_embeddings": False,
}  # fmt: skip
EXPERTS = {"num_experts": 32, "num_experts_per_tok": 4, "moe_intermediate_size": 128, "norm_topk_prob": True}
MODELS = {"llama": SHAPE, "qwen2": SHAPE, "qwen3": SHAPE, "qwen3_moe": {**SHAPE, **EXPERTS}}
PROMPTS = [list(range(3, 90)), [5, 200, 41] * 9, [7], list(range(250, 100, -1))]


@pytest.fixture(params=MODELS)
def folder(request, tmp_path):
    """A checkpoint as transformers initialises it: with larger weights, bfloat16 alone would cost more than is allowed here."""
    from transformers import AutoConfig, AutoModelForCausalLM, set_seed

    set_seed(0)
    config = AutoConfig.for_model(request.param, **COMMON, **MODELS[request.param])
    AutoModelForCausalLM.from_config(config, dtype=torch.float32).save_pretrained(tmp_path)
    return tmp_path


def transformers_model(folder, dtype):
    from transformers import AutoModelForCausalLM

    return AutoModelForCausalLM.from_pretrained(folder, dtype=dtype, attn_implementation="eager").cuda().eval()


@torch.inference_mode()
def transformers_logits(folder, dtype, tokens):
    return transformers_model(folder, dtype)(torch.tensor([tokens], device="cuda"), use_cache=False).logits[0].float()


def error_of(found, expected):
    return float((found.double() - expected.double()).norm() / expected.double().norm())


def greedy(folder):
    """(tokens after each of the prompts, logits [V] of each prompt's last token) by the worker, steps from graphs among them."""
    options = {"device": "cuda", "dtype": "bfloat16", "num_blocks": NUM_BLOCKS, "max_num_seqs": 8}
    files = model_files(folder)
    worker = LLMWorker(XLLMConfig.from_flat(options), files, load_model_args(files))
    worker.allocate_kv_cache(NUM_BLOCKS, BLOCK_SIZE)
    maker, texts = StepMaker(NUM_BLOCKS, BLOCK_SIZE), [list(prompt) for prompt in PROMPTS]
    step = maker.step(list(enumerate(texts)))
    hidden = worker._executor.forward(step)
    logits = worker._model.compute_logits(hidden[torch.from_numpy(step.sample_rows).cuda()]).clone()
    for _ in range(NUM_TOKENS):
        tokens = worker.execute(step).token_ids.tolist()
        for text, token in zip(texts, tokens, strict=True):
            text.append(token)
        step = maker.step([(row, [token]) for row, token in enumerate(tokens)])
    return texts, logits


def test_logits_and_greedy_tokens(folder):
    texts, logits = greedy(folder)
    truths = [transformers_logits(folder, torch.float32, text) for text in texts]
    ends = [len(prompt) - 1 for prompt in PROMPTS]
    expected = torch.stack([truth[end] for truth, end in zip(truths, ends, strict=True)])
    theirs = torch.stack([transformers_logits(folder, torch.bfloat16, prompt)[-1] for prompt in PROMPTS])
    assert error_of(logits, expected) <= max(1e-2, 1.5 * error_of(theirs, expected))
    agreed, theirs_agreed = [], []
    for text, truth, end in zip(texts, truths, ends, strict=True):
        rows = truth[end:-1].cpu()
        rounded = transformers_logits(folder, torch.bfloat16, text)[end:-1].cpu()
        theirs_agreed += (rounded.argmax(-1) == rows.argmax(-1)).tolist()
        chosen = rows[torch.arange(NUM_TOKENS), torch.tensor(text[end + 1 :])]
        agreed += (chosen == rows.max(-1).values).tolist()
        # Where they differ, the two tokens were as near as the rounding of bfloat16 is wide.
        assert float((rows.max(-1).values - chosen).max() / rows.std()) < 0.1
    # A near tie that sends a token to another expert costs more; then as much as it costs transformers in bfloat16, within four tokens.
    assert np.mean(agreed) >= min(0.95, np.mean(theirs_agreed) - 4 / len(agreed))
