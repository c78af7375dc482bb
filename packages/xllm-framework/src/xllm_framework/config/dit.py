"""How images are drawn. Knows nothing of models or of requests."""

from __future__ import annotations

from dataclasses import dataclass

from xllm_framework.step_cache import CachePolicy, StepCacheParams


@dataclass(frozen=True, slots=True, kw_only=True)
class DiTConfig:
    """Options of the dit backend."""

    max_requests_per_batch: int = 4
    """Images that one step draws together; a request for n images counts n times."""
    dit_max_num_steps: int = 200
    """Steps that a request may ask for."""
    dit_max_images_per_request: int = 10
    """Images that a request may ask for."""
    dit_generation_image_area_max: int = 4194304
    """Pixels that an image may have; 0 is no limit."""
    dit_max_input_pixels: int = 16777216
    """Pixels that an image sent by a client may have; checked before it is decoded."""
    dit_compile: bool = False
    """Let torch compile the transformer's blocks, when a shape is drawn for the first time: seconds then, faster after that."""
    dit_cache_policy: CachePolicy = "None"
    """Step cache of requests that name none: None, FBCache, TaylorSeer, FBCacheTaylorSeer, ResidualCache (docs/concepts/dit.md)."""
    dit_cache_warmup_steps: int = 0
    """First steps that are computed whole, by FBCache and TaylorSeer."""
    dit_cache_n_derivatives: int = 3
    """Order of the Taylor series."""
    dit_cache_skip_interval_steps: int = 3
    """TaylorSeer and ResidualCache compute one of so many steps whole."""
    dit_cache_residual_diff_threshold: float = 0.09
    """FBCache reuses a step's blocks while the first block's change differs by less than this share."""
    dit_cache_start_steps: int = 5
    """First steps that ResidualCache computes whole."""
    dit_cache_end_steps: int = 5
    """Last steps that ResidualCache computes whole."""
    dit_cache_start_blocks: int = 5
    """First blocks that ResidualCache always computes."""
    dit_cache_end_blocks: int = 5
    """Last blocks that ResidualCache always computes."""

    def step_cache(self, policy: CachePolicy | None = None) -> StepCacheParams:
        """Return the settings of `policy`, or of the default one."""
        return StepCacheParams(
            policy=self.dit_cache_policy if policy is None else policy,
            warmup_steps=self.dit_cache_warmup_steps,
            num_derivatives=self.dit_cache_n_derivatives,
            skip_interval_steps=self.dit_cache_skip_interval_steps,
            residual_diff_threshold=self.dit_cache_residual_diff_threshold,
            start_steps=self.dit_cache_start_steps,
            end_steps=self.dit_cache_end_steps,
            start_blocks=self.dit_cache_start_blocks,
            end_blocks=self.dit_cache_end_blocks,
        )
