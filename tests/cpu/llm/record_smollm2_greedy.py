"""Writes smollm2_greedy.json: what transformers answers, greedily and in float32, on the demo model's dequantised weights.

Run it by hand when questions change: `python tests/cpu/llm/record_smollm2_greedy.py`. Weights are read with the `gguf`
package and the network is transformers' own, so that nothing of it is ours but the prompt's token ids.
"""

from __future__ import annotations

import json
from pathlib import Path

import gguf
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from xllm_framework.chat_template import load_chat_template
from xllm_framework.config import LoadConfig
from xllm_framework.model.source import resolve_model
from xllm_framework.tokenizer import load_tokenizer

RECORD = Path(__file__).with_name("smollm2_greedy.json")
QUESTIONS = ("What is the capital of France?", "What is 12 plus 7?", "Name three colours of the rainbow.")
NUM_TOKENS = 32
NUM_HEADS, NUM_KV_HEADS = 9, 3
NAMES = {
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
    "attn_norm": "input_layernorm",
    "ffn_norm": "post_attention_layernorm",
}


def load_reference(path: Path) -> LlamaForCausalLM:
    config = LlamaConfig(
        vocab_size=49152,
        hidden_size=576,
        intermediate_size=1536,
        num_hidden_layers=30,
        num_attention_heads=NUM_HEADS,
        num_key_value_heads=NUM_KV_HEADS,
        max_position_embeddings=8192,
        rms_norm_eps=1e-5,
        rope_theta=100000.0,
        tie_word_embeddings=True,
    )
    model = LlamaForCausalLM(config).to(torch.float32).eval()
    weights = {}
    for tensor in gguf.GGUFReader(path).tensors:
        values = torch.from_numpy(gguf.quants.dequantize(tensor.data, tensor.tensor_type).copy())
        weights[_hub_name(tensor.name)] = _unpermuted(tensor.name, values)
    missing, unexpected = model.load_state_dict(weights, strict=False)
    assert missing == ["lm_head.weight"], missing
    assert not unexpected, unexpected
    model.tie_weights()
    return model


def _hub_name(name: str) -> str:
    fixed = {"token_embd.weight": "model.embed_tokens.weight", "output_norm.weight": "model.norm.weight"}
    if name in fixed:
        return fixed[name]
    _, layer, kind, _ = name.split(".")
    return f"model.layers.{layer}.{NAMES[kind]}.weight"


def _unpermuted(name: str, values: torch.Tensor) -> torch.Tensor:
    """Undo llama.cpp's order of the rows of q and k, which suits its interleaved rotary embedding."""
    heads = NUM_HEADS if ".attn_q." in name else NUM_KV_HEADS if ".attn_k." in name else 0
    if not heads:
        return values
    return values.reshape(heads, -1, 2, values.shape[-1]).transpose(1, 2).reshape(values.shape)


def main() -> None:
    files = resolve_model("", LoadConfig())
    tokenizer, template = load_tokenizer(files), load_chat_template(files, "")
    assert template is not None
    model = load_reference(files.path)
    record = []
    for question in QUESTIONS:
        prompt = tokenizer.encode(template.render([{"role": "user", "content": question}]), add_special_tokens=False)
        token_ids = torch.tensor([prompt])
        with torch.inference_mode():
            for _ in range(NUM_TOKENS):
                newest = model(input_ids=token_ids, use_cache=False).logits[:, -1:].argmax(dim=-1)
                token_ids = torch.cat([token_ids, newest], dim=1)
                if int(newest) == 2:
                    break
        answer = token_ids[0, len(prompt) :].tolist()
        record.append({"question": question, "prompt_token_ids": prompt, "answer_token_ids": answer})
        print(question, "->", repr(tokenizer.decode(answer, skip_special_tokens=True)))
    RECORD.write_text(json.dumps(record, indent=1), encoding="utf-8")


if __name__ == "__main__":
    main()
