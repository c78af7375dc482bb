"""What transformers computes, to compare with. Knows nothing of xLLM."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

import torch


@cache
def reference_model(folder: Path) -> Any:
    """Return transformers' own model of a checkpoint, float32, loaded once."""
    from transformers import AutoModelForCausalLM
    from transformers.utils import logging

    logging.disable_progress_bar()
    # Eager attention knows all that a model asks for; sdpa leaves out soft caps in some versions.
    return AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager").eval()


@torch.inference_mode()
def reference_logits(folder: Path, tokens: Sequence[int]) -> torch.Tensor:
    """Return float32 [tokens, vocab_size] of one plain forward."""
    return reference_model(folder)(torch.tensor([list(tokens)]), use_cache=False).logits[0]


@torch.inference_mode()
def reference_decode_logits(folder: Path, tokens: Sequence[int], num_prompt_tokens: int) -> torch.Tensor:
    """Return float32 [tokens, vocab_size] of a prompt's forward, then one token at a time with transformers' cache."""
    model = reference_model(folder)
    output = model(torch.tensor([list(tokens[:num_prompt_tokens])]), use_cache=True)
    rows = [output.logits[0]]
    cache_field = "cache" if hasattr(output, "cache") else "past_key_values"
    for token in tokens[num_prompt_tokens:]:
        output = model(torch.tensor([[token]]), use_cache=True, **{cache_field: getattr(output, cache_field)})
        rows.append(output.logits[0])
    return torch.cat(rows)
