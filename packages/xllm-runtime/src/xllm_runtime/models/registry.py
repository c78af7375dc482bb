"""Which implementation on torch serves a model: a table of names, third parties' entry points, and reasons for every refusal.

Knows model classes by name only; each is imported when it is considered. A class may have a class method
`explain(args) -> list[str]` that tells why it cannot compute a model of these arguments.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from importlib import import_module
from typing import TYPE_CHECKING, Any

from xllm_framework.config import ModelConfig
from xllm_framework.errors import UnsupportedModel
from xllm_framework.model import ModelArgs
from xllm_runtime.models.interface import CausalLM
from xllm_runtime.models.third_party import third_party_models

if TYPE_CHECKING:
    import torch

MODELS = {
    "LlamaForCausalLM": "xllm_runtime.models.llm.llama:LlamaForCausalLM",
    "MistralForCausalLM": "xllm_runtime.models.llm.llama:LlamaForCausalLM",
    "Qwen2ForCausalLM": "xllm_runtime.models.llm.llama:LlamaForCausalLM",
    "Qwen3ForCausalLM": "xllm_runtime.models.llm.llama:LlamaForCausalLM",
    "Qwen2VLForConditionalGeneration": "xllm_runtime.models.vlm.qwen_vl:Qwen2VLForConditionalGeneration",
    "Qwen2_5_VLForConditionalGeneration": "xllm_runtime.models.vlm.qwen_vl:Qwen25VLForConditionalGeneration",
    "LlavaOnevisionForConditionalGeneration": (
        "xllm_runtime.models.vlm.llava_onevision:LlavaOnevisionForConditionalGeneration"
    ),
    "Qwen3VLForConditionalGeneration": "xllm_runtime.models.vlm.qwen_vl:Qwen3VLForConditionalGeneration",
    "Qwen3VLMoeForConditionalGeneration": "xllm_runtime.models.vlm.qwen3_vl_moe:Qwen3VLMoeForConditionalGeneration",
    "Glm4vForConditionalGeneration": "xllm_runtime.models.vlm.glm4v:Glm4vForConditionalGeneration",
    "Glm46VForConditionalGeneration": "xllm_runtime.models.vlm.glm4v:Glm4vForConditionalGeneration",
    "Glm4vMoeForConditionalGeneration": "xllm_runtime.models.vlm.glm4v:Glm4vMoeForConditionalGeneration",
    "Qwen3_5ForCausalLM": "xllm_runtime.models.llm.qwen3_5:Qwen35ForCausalLM",
    "Qwen3MoeForCausalLM": "xllm_runtime.models.llm.qwen3_moe:Qwen3MoeForCausalLM",
    **dict.fromkeys(
        (
            "LlamaForSequenceClassification",
            "MistralForSequenceClassification",
            "Qwen2ForSequenceClassification",
            "Qwen3ForSequenceClassification",
        ),
        "xllm_runtime.models.llm.llama_classifier:LlamaForSequenceClassification",
    ),
}
"""Architecture, as config.json has it -> "module:Class" of the `python` implementation."""
TRANSFORMERS_MODEL = "xllm_runtime.models.transformers_model:TransformersCausalLM"
IMPLEMENTATIONS = ("python", "transformers")
"""In the order in which `model_impl` auto tries them, where `models.native` does not serve the model."""


@dataclass(frozen=True, slots=True)
class ModelChoice:
    """An implementation that fits."""

    model_impl: str
    build: Callable[[ModelArgs, torch.dtype], CausalLM]
    """Return the model without its weights, on the current default device: call it under `torch.device(...)`.

    Raises `UnsupportedModel` for what only shows then.
    """


def select_model(args: ModelArgs, config: ModelConfig) -> ModelChoice:
    """Return the implementation on torch that `config.model_impl` names, or the first that fits.

    Raises `UnsupportedModel` with every reason of every candidate when none does.
    """
    candidates = IMPLEMENTATIONS if config.model_impl == "auto" else (config.model_impl,)
    refusals = []
    for model_impl in candidates:
        path, reasons = _find(model_impl, args, config)
        if not reasons:
            return ModelChoice(model_impl, _load(path))
        refusals.append(f"{model_impl}: {', '.join(reasons)}")
    raise UnsupportedModel(f"no implementation fits architecture {args.architecture!r} ({'; '.join(refusals)})")


def model_class(architecture: str) -> Any:
    """Return the class of the `python` implementation of `architecture`, which `MODELS` names."""
    return _load(MODELS[architecture])


def with_kv_dtype(choice: ModelChoice, kv_dtype: torch.dtype | None) -> ModelChoice:
    """Return `choice` for a cache of `kv_dtype`, None being the model's own type; raises `UnsupportedModel` where it has no other."""
    if kv_dtype is None:
        return choice
    if not getattr(choice.build, "takes_kv_dtype", False):
        raise UnsupportedModel(
            f"kv_cache_dtype fp8 is not served by the {choice.model_impl} implementation of this model"
        )
    build: Any = choice.build
    return replace(choice, build=partial(build, kv_dtype=kv_dtype))


def supported_architectures() -> list[str]:
    """Return the architectures of the `python` implementation, third parties' included, in alphabetical order."""
    return sorted({*MODELS, *third_party_models()})


def _find(model_impl: str, args: ModelArgs, config: ModelConfig) -> tuple[str, list[str]]:
    """Return ("module:Class", reasons against it) of one implementation."""
    if config.quantization not in ("auto", "none"):
        return "", [f"quantization {config.quantization} is for the native implementation only"]
    path = TRANSFORMERS_MODEL
    if model_impl == "python":
        path = {**MODELS, **third_party_models()}.get(args.architecture, "")
        if not path:
            return "", [f"only {', '.join(supported_architectures())} are known"]
    try:
        explain = getattr(_load(path), "explain", None)
    except (ImportError, AttributeError) as error:
        return "", [f"{path} cannot be imported: {error}"]
    return path, explain(args) if explain is not None else []


def _load(path: str) -> Callable[..., CausalLM]:
    module, _, attribute = path.partition(":")
    model_class: Any = getattr(import_module(module), attribute)
    return model_class  # type: ignore[no-any-return]
