"""Runs a transformers model over the paged cache, through an attention function that transformers lets others register.

All tokens of a step go through the model as one row of a batch; only attention looks at which sequence they belong to.
Knows nothing of architectures: whether a model bears this is found out by trial.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

import torch
import torch.nn.functional as F
from torch import nn

from xllm_runtime.attention import AttentionBackend, AttentionMetadata, AttentionSpec, select_attention
from xllm_runtime.models.interface import KVCacheShape
from xllm_runtime.models.transformers_rotary import PerPositionRotary, length_dependent_modules

ATTENTION_NAME = "xllm_paged"
CONTEXT_ATTRIBUTE = "xllm_attention"
"""Attribute of a model's attention modules that leads from the registered function back to the one who runs the model."""
_UNSERVED_OPTIONS = ("s_aux", "position_bias", "head_mask")


class NotPageable(Exception):
    """The model does something with attention that the paged cache does not serve."""


@dataclass(frozen=True, slots=True)
class AttentionCall:
    """What one attention module asks for besides tensors."""

    layer: int
    scale: float
    sliding_window: int
    softcap: float


class AttentionContext(Protocol):
    """Answers the calls of a model's attention modules."""

    def attend(self, call: AttentionCall, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
        """[T, Hq, D], [T, Hk, D], [T, Hk, Dv] -> [T, Hq, Dv]."""


class PagedForward:
    """`ForwardStrategy` over the paged cache. Raises `NotPageable`, or what the model raises, when it does not fit.

    Leaves the model with the registered attention.
    """

    def __init__(self, model: Any, dtype: torch.dtype) -> None:
        if not getattr(model, "_supports_attention_backend", False):
            raise NotPageable(f"{type(model).__name__} has its own attention")
        self._layers = model.base_model
        _register_attention()
        model.set_attn_implementation(ATTENTION_NAME)
        self._attention = PagedLayers(_record_layers(model), dtype, model.device)
        _set_context(model, self._attention)
        for module in length_dependent_modules(model):
            module.forward = PerPositionRotary(module)

    def kv_cache_shapes(self) -> list[KVCacheShape]:
        """See `CausalLM.kv_cache_shapes`."""
        return self._attention.kv_cache_shapes()

    def bind_kv_cache(self, caches: list[tuple[torch.Tensor, torch.Tensor]]) -> None:
        """See `CausalLM.bind_kv_cache`."""
        self._attention.caches = caches

    def forward(self, token_ids: torch.Tensor, positions: torch.Tensor, attention: AttentionMetadata) -> torch.Tensor:
        """See `CausalLM.forward`."""
        self._attention.metadata = attention
        hidden: torch.Tensor = self._layers(input_ids=token_ids[None], position_ids=positions[None], use_cache=False)[0]
        return hidden[0]


class PagedLayers:
    """`AttentionContext` with one attention backend a layer; `caches` and `metadata` are set by whoever runs the model."""

    def __init__(
        self, recorded: dict[AttentionCall, tuple[int, ...]], dtype: torch.dtype, device: torch.device
    ) -> None:
        self.caches: list[tuple[torch.Tensor, torch.Tensor]] = []
        self.metadata: AttentionMetadata | None = None
        self._shapes: list[KVCacheShape] = []
        self._backends: dict[int, tuple[int, AttentionBackend]] = {}
        for call, (num_heads, num_kv_heads, head_dim, value_dim) in recorded.items():
            if value_dim > head_dim or call.layer in self._backends:
                raise NotPageable("layers share keys and values, or have values wider than keys")
            spec = AttentionSpec(
                num_heads=num_heads,
                num_kv_heads=num_kv_heads,
                head_dim=head_dim,
                scale=call.scale,
                dtype=dtype,
                device=device,
                sliding_window=call.sliding_window,
                softcap=call.softcap,
            )
            self._backends[call.layer] = len(self._shapes), select_attention(spec)
            self._shapes.append(KVCacheShape(num_kv_heads, head_dim, dtype))
        if not self._shapes:
            raise NotPageable("no layer calls the registered attention")

    def kv_cache_shapes(self) -> list[KVCacheShape]:
        """Return one shape a layer, in the order of `caches`."""
        return list(self._shapes)

    def attend(self, call: AttentionCall, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
        """See `AttentionContext.attend`; values narrower than keys (latent attention) are padded in the cache."""
        if self.metadata is None:
            raise RuntimeError("metadata must be set before the model runs")
        index, backend = self._backends[call.layer]
        value_dim = value.shape[-1]
        value = F.pad(value, (0, key.shape[-1] - value_dim)) if value_dim < key.shape[-1] else value
        return backend.forward(query, key, value, self.caches[index], self.metadata)[..., :value_dim]


class _Recorder:
    """`AttentionContext` that only notes who calls, and with which shapes."""

    def __init__(self) -> None:
        self.calls: dict[AttentionCall, tuple[int, ...]] = {}

    def attend(self, call: AttentionCall, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
        if call in self.calls:
            raise NotPageable(f"layer {call.layer} attends more than once")
        self.calls[call] = (query.shape[1], key.shape[1], key.shape[2], value.shape[2])
        return query.new_zeros(*query.shape[:2], value.shape[2])


def _register_attention() -> None:
    from transformers import AttentionInterface

    AttentionInterface.register(ATTENTION_NAME, _attend)


def _attend(
    module: nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    scaling: float | None = None,
    sliding_window: int | None = None,
    softcap: float | None = None,
    **options: Any,
) -> tuple[torch.Tensor, None]:
    """transformers' attention function: [1, heads, T, D] -> ([1, T, heads, Dv], None)."""
    unserved = [name for name in _UNSERVED_OPTIONS if options.get(name) is not None]
    if unserved or attention_mask is not None or options.get("is_causal") is False:
        raise NotPageable(f"attention needs {', '.join(unserved) or 'a mask of its own'}")
    layer: Any = module.layer_idx
    call = AttentionCall(
        layer, query.shape[-1] ** -0.5 if scaling is None else scaling, sliding_window or 0, softcap or 0.0
    )
    context: AttentionContext = getattr(module, CONTEXT_ATTRIBUTE)
    rows = (tensor[0].transpose(0, 1).contiguous() for tensor in (query, key, value))
    return context.attend(call, *rows)[None], None


def _record_layers(model: Any) -> dict[AttentionCall, tuple[int, ...]]:
    recorder = _Recorder()
    _set_context(model, recorder)
    tokens = torch.zeros(1, 2, dtype=torch.long, device=model.device)
    with torch.inference_mode():
        model.base_model(input_ids=tokens, position_ids=torch.tensor([[0, 1]], device=model.device), use_cache=False)
    return recorder.calls


def _set_context(model: nn.Module, context: AttentionContext) -> None:
    for module in model.modules():
        if hasattr(module, "layer_idx"):
            setattr(module, CONTEXT_ATTRIBUTE, context)
