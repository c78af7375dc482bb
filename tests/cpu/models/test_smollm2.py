"""The embedded demo model in float32 against transformers on the same dequantised weights."""

from __future__ import annotations

import pytest
import torch

from support.paged_runner import PagedRunner
from xllm_framework.config import LoadConfig
from xllm_framework.model import load_model_args, resolve_model
from xllm_runtime.models.llm.llama import LlamaForCausalLM
from xllm_runtime.weights import load_weights

PROMPT = [1, 9690, 198, 2683, 359, 253, 5356, 5646, 11173, 3365, 3511, 308, 34519, 28, 7018, 411, 407, 19712, 8182]
PROMPT += [2, 198, 1, 4093, 198, 1780, 314, 260, 3575, 282, 4649, 47, 2, 198, 1, 520, 9531, 198]
"""37 tokens: the default system prompt, "What is the capital of France?", and the start of the answer."""
ANSWER_LENGTH = 8


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    """(ours, transformers'), both on the mapped tensors of one converted copy."""
    from transformers import LlamaConfig
    from transformers import LlamaForCausalLM as TransformersLlama

    files = resolve_model("", LoadConfig())
    args = load_model_args(files)
    weights = list(
        load_weights(files, args, torch.float32, LoadConfig(cache_dir=str(tmp_path_factory.mktemp("cache"))))
    )
    ours = LlamaForCausalLM(args, torch.float32)
    ours.load_weights(iter(weights))
    config = LlamaConfig(
        vocab_size=args.vocab_size,
        hidden_size=args.hidden_size,
        intermediate_size=args.intermediate_size,
        num_hidden_layers=args.num_layers,
        num_attention_heads=args.num_heads,
        num_key_value_heads=args.num_kv_heads,
        max_position_embeddings=args.max_position_embeddings,
        rms_norm_eps=args.rms_norm_eps,
        rope_parameters={"rope_type": "default", "rope_theta": args.rope_theta},
        tie_word_embeddings=True,
    )
    with torch.device("meta"):
        reference = TransformersLlama(config)
    reference.load_state_dict(dict(weights), strict=False, assign=True)
    reference.tie_weights()
    rotary = reference.model.rotary_emb
    reference.model.rotary_emb = type(rotary)(config)
    return ours, reference.eval()


def test_prompt_logits_and_greedy_answer(models):
    ours, reference = models
    with torch.inference_mode():
        expected = reference(torch.tensor([PROMPT]), use_cache=False).logits[0]
    runner = PagedRunner(ours, num_blocks=32)
    rows = runner.step([(0, PROMPT)])[0]
    torch.testing.assert_close(rows, expected, atol=1e-3, rtol=0)
    assert torch.equal(rows.argmax(-1), expected.argmax(-1))
    answer = []
    for _ in range(ANSWER_LENGTH):
        answer.append(int(rows[-1].argmax()))
        rows = runner.step([(0, answer[-1:])])[0]
    with torch.inference_mode():
        logits = reference(torch.tensor([PROMPT + answer]), use_cache=False).logits[0]
    assert answer == logits[len(PROMPT) - 1 : -1].argmax(-1).tolist()
    assert answer[-1] == ours.args.eos_token_ids[0], "the answer to this question ends after eight tokens"
