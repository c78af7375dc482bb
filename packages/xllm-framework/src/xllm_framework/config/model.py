"""Which model, and which implementation of it. Knows nothing of files."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Backend = Literal["auto", "llm", "vlm", "dit", "rec"]
ModelImpl = Literal["auto", "native", "python", "transformers"]
DType = Literal["auto", "float32", "bfloat16", "float16"]
Task = Literal["generate", "embed", "mm_embed"]
Pooling = Literal["auto", "last", "mean", "cls"]
Scoring = Literal["auto", "cosine", "yes_no"]
Quantization = Literal["auto", "none", "bf16", "int8", "int4"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelConfig:
    """Model options."""

    model: str = ""
    """A folder in Hugging Face layout, a .gguf file, or a hub id. Empty takes the embedded demo model, SmolLM2-135M-Instruct."""
    model_id: str = ""
    """Name under which the model is served. Empty takes the last part of the model's path."""
    backend: Backend = "auto"
    """Which kind of master serves the model; auto looks it up by architecture."""
    task: Task = "generate"
    """What the model is loaded for: generate serves all that it can; embed refuses to generate; mm_embed loads the vision tower
    alone, without the language model, and gives embeddings of images and videos."""
    model_impl: ModelImpl = "auto"
    """native (C++ step), python (torch modules), transformers (any causal architecture); auto takes the first that fits."""
    dtype: DType = "auto"
    """Type of weights, activations and KV; auto takes the checkpoint's where the device computes it fast, else float32 on a CPU and
    bfloat16 on a GPU, also for models and pipelines that are stored in float32. On the native implementation auto also leaves
    quantised weights as they are, with KV in bfloat16."""
    quantization: Quantization = "auto"
    """How the native implementation keeps matrices: auto as they come (in `dtype` when that is named), none in `dtype`,
    bf16, int8, int4 (both symmetric in groups of 32; int4 leaves the embedding and the head at int8)."""
    device: str = "auto"
    """cpu, cuda, cuda:1, npu; auto takes an accelerator when there is one; null computes nothing (host benchmarks)."""
    max_model_len: int = 0
    """Tokens of prompt and output together; 0 takes the model's own limit."""
    chat_template: str = ""
    """File with a Jinja chat template that replaces the model's own. Read at start only, never from a request."""
    tool_call_parser: str = "auto"
    """How tool calls are found in an answer (names: docs/reference/parsers.md); auto goes by the chat template, none is off."""
    reasoning_parser: str = "auto"
    """How reasoning is told from the answer (names: docs/reference/parsers.md); auto goes by the chat template, none is off."""
    pooling: Pooling = "auto"
    """Which hidden states become an embedding: the last token's, the mean of all, the first token's; auto goes by the model's
    modules.json, and takes the last token's without one."""
    scoring: Scoring = "auto"
    """How two texts are scored: cosine of their embeddings, or yes_no, the probability of yes as Qwen3-Reranker answers; auto
    takes yes_no for models called so. Classifiers score by their one label."""
