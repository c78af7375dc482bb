"""The numbers that describe a vision tower, from `vision_config` in config.json. Knows nothing of weights or files."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from xllm_framework.model import ModelArgs
from xllm_framework.model.config_fields import ConfigFields


@dataclass(frozen=True, slots=True, kw_only=True)
class VisionArgs:
    """A tower of `depth` blocks over patches of `patch_size` x `patch_size` pixels in `temporal_patch_size` frames."""

    depth: int
    hidden_size: int
    intermediate_size: int
    num_heads: int
    out_size: int
    """Of the embeddings it makes, the language model's hidden size."""
    patch_size: int
    temporal_patch_size: int
    merge_size: int
    """Patches of a side that become one embedding."""
    activation: str
    window_size: int = 0
    """Pixels of a window's side; 0 where every block sees whole frames."""
    full_attention_blocks: tuple[int, ...] = ()
    """Blocks that see whole frames where others see windows."""
    num_positions: int = 0
    """Of the table of learned positions, a square; 0 where there is none."""
    deepstack_blocks: tuple[int, ...] = ()
    """Blocks whose patches are also merged and added to early layers of the language model."""
    rope_theta: float = 10000.0
    norm_eps: float = 1e-6
    merger_size: int = 0
    """Inner size of the merger where it is a gated network; 0 where it is not."""

    @property
    def head_dim(self) -> int:
        """Size of an attention head."""
        return self.hidden_size // self.num_heads

    @property
    def merge_unit(self) -> int:
        """Patches that become one embedding."""
        return self.merge_size**2


def qwen_vision_args(args: ModelArgs) -> VisionArgs:
    """Return the tower's arguments of a Qwen-VL model, any generation.

    Raises:
        ModelLoadError: a field is missing or wrong; names it.
    """
    raw: dict[str, Any] = args.raw.get("vision_config") or {}
    config = ConfigFields(raw, "vision_config in config.json")
    is_first = "embed_dim" in raw
    hidden_size = config.integer("embed_dim", "hidden_size")
    if is_first:
        intermediate_size = int(hidden_size * config.number("mlp_ratio", default=4.0))
    else:
        intermediate_size = config.integer("intermediate_size")
    rope = ConfigFields(config.mapping("rope_parameters"), "rope_parameters of vision_config in config.json")
    return VisionArgs(
        depth=config.integer("depth"),
        hidden_size=hidden_size,
        intermediate_size=intermediate_size,
        num_heads=config.integer("num_heads"),
        out_size=args.hidden_size if is_first else config.integer("out_hidden_size", default=args.hidden_size),
        patch_size=config.integer("patch_size", "spatial_patch_size", default=14),
        temporal_patch_size=config.integer("temporal_patch_size", default=2),
        merge_size=config.integer("spatial_merge_size", default=2),
        activation=config.text("hidden_act", default="quick_gelu"),
        window_size=config.integer("window_size", default=1) if "window_size" in raw else 0,
        full_attention_blocks=tuple(config.token_ids("fullatt_block_indexes")),
        num_positions=config.integer("num_position_embeddings", default=1) if "num_position_embeddings" in raw else 0,
        deepstack_blocks=tuple(config.token_ids("deepstack_visual_indexes")),
        rope_theta=rope.number("rope_theta", default=10000.0),
    )


def glm_vision_args(args: ModelArgs) -> VisionArgs:
    """Return the tower's arguments of a GLM-4V model, any generation; raises as `qwen_vision_args` does."""
    config = ConfigFields(args.raw.get("vision_config") or {}, "vision_config in config.json")
    rope = ConfigFields(config.mapping("rope_parameters"), "rope_parameters of vision_config in config.json")
    patch_size = config.integer("patch_size", default=14)
    out_size = config.integer("out_hidden_size", default=args.hidden_size)
    return VisionArgs(
        depth=config.integer("depth", default=24),
        hidden_size=config.integer("hidden_size", default=1536),
        intermediate_size=out_size,
        num_heads=config.integer("num_heads", default=12),
        out_size=out_size,
        patch_size=patch_size,
        temporal_patch_size=config.integer("temporal_patch_size", default=2),
        merge_size=config.integer("spatial_merge_size", default=2),
        activation=config.text("hidden_act", default="silu"),
        num_positions=(config.integer("image_size", default=336) // patch_size) ** 2,
        rope_theta=rope.number("rope_theta", default=10000.0),
        norm_eps=config.number("rms_norm_eps", default=1e-5),
        merger_size=config.integer("intermediate_size", default=13696),
    )
