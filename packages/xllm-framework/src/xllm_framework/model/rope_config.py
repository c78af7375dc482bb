"""Rotary position settings of a config.json, old and new style, as one shape. Knows nothing of how they are applied.

Old: `rope_theta`, `rope_scaling` and `partial_rotary_factor` at the top. New (transformers 5): all of it in
`rope_parameters`, possibly once a layer type.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from xllm_framework.model.config_fields import ConfigFields
from xllm_framework.model.model_args import RopeScaling

DEFAULT_THETA = 10000.0
KINDS = ("default", "linear", "dynamic", "yarn", "longrope", "llama3")
_RENAMED_KINDS = {"su": "longrope", "mrope": "default", "proportional": "default"}
_KINDS_WITH_ORIGINAL_CONTEXT = ("yarn", "longrope", "llama3")
_NOT_SCALING = ("rope_type", "type", "rope_theta", "partial_rotary_factor")


@dataclass(frozen=True, slots=True)
class RopeSettings:
    """What `ModelArgs` says about rotary positions."""

    theta: float
    scaling: RopeScaling
    partial_rotary_factor: float


def rope_settings(config: ConfigFields, max_position_embeddings: int, source: str) -> RopeSettings:
    """Return the settings of a config.json.

    With settings a layer type, those of full attention count; whoever needs the others finds them in `ModelArgs.raw`.

    Raises:
        ModelLoadError: an unknown kind, or a value of the wrong type.
    """
    parameters = config.mapping("rope_parameters", "rope_scaling")
    by_layer_type = [value for value in parameters.values() if isinstance(value, dict)]
    if by_layer_type:
        parameters = parameters.get("full_attention") or by_layer_type[0]
    fields = ConfigFields(parameters, f"{source}, rope parameters")
    kind = fields.text("rope_type", "type", default="default")
    kind = _RENAMED_KINDS.get(kind, kind)
    if kind not in KINDS:
        fields.fail(f"the rope type {kind!r} is not one of {', '.join(KINDS)}")
    theta = config.number("rope_theta", "rotary_emb_base", default=DEFAULT_THETA)
    rotary_factor = config.number("partial_rotary_factor", "rotary_pct", default=1.0)
    scaling: dict[str, Any] = {name: value for name, value in parameters.items() if name not in _NOT_SCALING}
    if kind in _KINDS_WITH_ORIGINAL_CONTEXT:
        original = config.integer("original_max_position_embeddings", default=max_position_embeddings)
        scaling["original_max_position_embeddings"] = fields.integer(
            "original_max_position_embeddings", default=original
        )
    return RopeSettings(
        theta=fields.number("rope_theta", default=theta),
        scaling=RopeScaling(kind=kind, parameters=scaling),
        partial_rotary_factor=fields.number("partial_rotary_factor", default=rotary_factor),
    )
