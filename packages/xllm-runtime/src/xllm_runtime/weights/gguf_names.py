"""GGUF's tensor names and their Hugging Face names. Knows nothing of the tensors' values."""

from __future__ import annotations

import re

OUTER_NAMES = {
    "token_embd": "model.embed_tokens",
    "output_norm": "model.norm",
    "output": "lm_head",
}
LAYER_NAMES = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
"""In the order in which a converted copy stores them: q, k, v and gate, up are neighbours, as stacked layers need them."""
CONFIGURATION_TENSORS = ("rope_freqs.weight", "rope_factors_short.weight", "rope_factors_long.weight")
"""Tensors that `ModelArgs` already speaks for."""
_LAYER = re.compile(r"blk\.(\d+)\.(\w+)\.(weight|bias)")
_OUTER = re.compile(r"(\w+)\.(weight|bias)")


def hugging_face_name(name: str) -> str | None:
    """Return the Hugging Face name of GGUF tensor `name`, or None when the Llama family has none like it."""
    if match := _LAYER.fullmatch(name):
        layer, part, kind = match.groups()
        return f"model.layers.{layer}.{LAYER_NAMES[part]}.{kind}" if part in LAYER_NAMES else None
    if match := _OUTER.fullmatch(name):
        part, kind = match.groups()
        return f"{OUTER_NAMES[part]}.{kind}" if part in OUTER_NAMES else None
    return None


def storage_order(name: str) -> tuple[int, bool, int]:
    """Return a sort key of GGUF tensor names, so that tensors which are used stacked become neighbours."""
    if match := _LAYER.fullmatch(name):
        layer, part, kind = match.groups()
        return int(layer), kind == "bias", list(LAYER_NAMES).index(part)
    return -1, name.endswith(".bias"), list(OUTER_NAMES).index(name.partition(".")[0])
