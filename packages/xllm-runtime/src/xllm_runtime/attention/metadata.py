"""Per-step attention data, shared by all layers. Knows nothing of models or of who scheduled the step."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch


@dataclass(slots=True)
class AttentionMetadata:
    """Where T tokens of S sequences lie in the paged cache; tensors on the model's device.

    Sequence s owns rows [query_start[s], query_start[s + 1]); they are the last of its `seq_lens[s]` tokens.
    """

    slot_mapping: torch.Tensor
    """int64 [T]; block id x block_size + offset."""
    block_tables: torch.Tensor
    """int32 [S, B]."""
    query_start: torch.Tensor
    """int32 [S + 1]."""
    seq_lens: torch.Tensor
    """int32 [S]."""
    max_query_len: int
    """1 when every sequence decodes."""
    more_groups: tuple[AttentionMetadata, ...] = ()
    """The same tokens for the second group of layers and those behind it, which have tables of their own."""
    state_slots: torch.Tensor | None = None
    """int64 [S, 2]; slots of linear state that each sequence reads and writes; None for models without one."""
    plans: dict[str, object] = field(default_factory=dict)
    """What a backend worked out for this step, under its name; the first layer leaves it to the others."""

    def of_group(self, index: int) -> AttentionMetadata:
        """Return what the layers of group `index` need; see `xllm_framework.kv_cache.layer_groups`."""
        return self.more_groups[index - 1] if index else self
