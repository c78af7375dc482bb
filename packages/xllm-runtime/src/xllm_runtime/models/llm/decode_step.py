"""Which decode step computes a model on a GPU. Knows nothing of how steps compute, or of graphs."""

from __future__ import annotations

from xllm_runtime.models.interface import CausalLM
from xllm_runtime.models.llm.llama import LlamaForCausalLM
from xllm_runtime.models.llm.llama_cuda import LlamaDecodeStep, why_no_decode_step
from xllm_runtime.models.llm.llama_wide_cuda import LlamaWideStep, is_wide, why_no_wide_step


def select_decode_step(model: CausalLM, block_size: int) -> tuple[LlamaDecodeStep | LlamaWideStep | None, list[str]]:
    """Return (the step that computes `model` over blocks of `block_size`, []), or (None, every reason against one)."""
    if isinstance(model, LlamaForCausalLM) and is_wide(model):
        reasons = why_no_wide_step(model, block_size)
        return (None, reasons) if reasons else (LlamaWideStep(model), [])
    reasons = why_no_decode_step(model, block_size)
    if reasons or not isinstance(model, LlamaForCausalLM):
        return None, reasons
    return LlamaDecodeStep(model), []
