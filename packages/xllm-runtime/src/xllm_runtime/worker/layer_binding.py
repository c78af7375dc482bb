"""Which tensors of the cache a model's layers use. Knows nothing of how many blocks there are."""

from __future__ import annotations

from dataclasses import dataclass

from xllm_framework.kv_cache import CacheLayout
from xllm_framework.kv_cache.layer_groups import num_tensors
from xllm_framework.model import ModelArgs
from xllm_runtime.auto_config import cache_groups, cache_window
from xllm_runtime.models.interface import CausalLM, HasStates, KVCacheShape, StateShape, UsesLayerGroups


@dataclass(frozen=True, slots=True)
class LayerBinding:
    """The cache's tensors, each for one layer of every group, and who uses which."""

    layout: CacheLayout
    shapes: list[KVCacheShape]
    """One entry a tensor."""
    tensor_of: list[int]
    """By layer that keeps KV: its tensor."""


def bind_layers(model: CausalLM, args: ModelArgs, max_model_len: int) -> LayerBinding:
    """Return what `model` keeps, and tell it which groups of layers there are, where it can have several."""
    shapes = model.kv_cache_shapes()
    has_states = isinstance(model, HasStates)
    groups = cache_groups(args, max_model_len) if isinstance(model, UsesLayerGroups) and not has_states else ()
    if len(groups) < 2 or len(set(shapes)) > 1 or not isinstance(model, UsesLayerGroups):
        layout = CacheLayout((0 if has_states else cache_window(args),), has_states)
        return LayerBinding(layout, shapes, list(range(len(shapes))))
    model.bind_layer_groups(groups)
    place_of = {layer: place for group in groups for place, layer in enumerate(group.layers)}
    layout = CacheLayout(tuple(group.sliding_window for group in groups))
    return LayerBinding(layout, shapes[: num_tensors(groups)], [place_of[layer] for layer in range(len(shapes))])


def state_shapes(model: CausalLM) -> list[StateShape]:
    """Return the tensors of linear state of a model; none for most."""
    return model.state_shapes() if isinstance(model, HasStates) else []
