"""Models asked for the last rows alone: the same hidden states and the same cache as of all rows, for every kind of layer."""

from __future__ import annotations

import pytest
import torch

from support.decode_steps import StepMaker
from xllm_framework.model import ModelArgs
from xllm_runtime.attention.metadata import LastRows
from xllm_runtime.executor.step_tensors import upload_step
from xllm_runtime.models.llm.glm4 import Glm4ForCausalLM
from xllm_runtime.models.llm.llama import LlamaForCausalLM

SHAPE = {"hidden_size": 64, "intermediate_size": 96, "num_layers": 2, "num_heads": 4, "num_kv_heads": 2, "head_dim": 16}
ARGS = {
    "llama": (LlamaForCausalLM, {"architecture": "LlamaForCausalLM", "model_type": "llama"}),
    "glm4": (Glm4ForCausalLM, {"architecture": "Glm4ForCausalLM", "model_type": "glm4", "has_qkv_bias": True}),
}


@pytest.fixture(params=ARGS)
def model(request) -> LlamaForCausalLM:
    model_class, names = ARGS[request.param]
    torch.manual_seed(0)
    model = model_class(ModelArgs(vocab_size=100, max_position_embeddings=256, **names, **SHAPE), torch.float32)
    for parameter in model.parameters():
        parameter.data.normal_(std=0.3)
    model.bind_kv_cache([(torch.zeros(20, 16, 2, 16), torch.zeros(20, 16, 2, 16)) for _ in range(2)])
    return model


def test_last_rows_are_those_of_all_rows(model: LlamaForCausalLM):
    maker = StepMaker(20, 16)
    tokens = torch.randint(0, 100, (200,)).tolist()
    for step in (maker.step([(0, tokens[:33]), (1, tokens[40:45])]), maker.step([(1, tokens[50:90]), (0, [7])])):
        tensors = upload_step(step, torch.device("cpu"))
        token_ids, positions, attention = tensors.token_ids.long(), tensors.positions, tensors.attention
        with torch.inference_mode():
            everything = model.forward(token_ids, positions, attention)
            written = [cache.clone() for layer in model.decoder_layers() for cache in layer.self_attn.kv_cache]
            rows = torch.tensor([len(token_ids) - 1])
            attention.last = LastRows(rows, attention.block_tables[1:], attention.seq_lens[1:])
            found = model.forward(token_ids, positions, attention)
        torch.testing.assert_close(found, everything[rows])
        caches = [cache for layer in model.decoder_layers() for cache in layer.self_attn.kv_cache]
        assert all(torch.equal(one, two) for one, two in zip(written, caches, strict=True))


def test_only_steps_of_prompts_on_a_gpu_end_early():
    step = StepMaker(20, 16).step([(0, list(range(100)))])
    assert upload_step(step, torch.device("cpu"), takes_last=True).attention.last is None
