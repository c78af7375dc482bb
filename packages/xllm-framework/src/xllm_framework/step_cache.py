"""How an image's steps reuse what earlier ones computed: policies and their settings. Knows nothing of how that is done.

Apart from `request`, because options name policies, and reading options must not load what requests are made of.
"""

from __future__ import annotations

from typing import Literal

import msgspec

CachePolicy = Literal["None", "FBCache", "TaylorSeer", "FBCacheTaylorSeer", "ResidualCache"]
"""How steps reuse what earlier steps of the same image computed; see docs/concepts/dit.md."""


class StepCacheParams(msgspec.Struct, array_like=True, frozen=True):
    """A step cache and its settings; the options of the same names tell what each means."""

    policy: CachePolicy = "None"
    warmup_steps: int = 0
    num_derivatives: int = 3
    skip_interval_steps: int = 3
    residual_diff_threshold: float = 0.09
    start_steps: int = 5
    end_steps: int = 5
    start_blocks: int = 5
    end_blocks: int = 5


NO_CACHE = StepCacheParams()
