"""Per-step attention data, shared by all layers. Knows nothing of models or of who scheduled the step."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch


@dataclass(frozen=True, slots=True)
class LastRows:
    """The rows of which anything is asked after the last layer: R, each the newest token of its sequence."""

    rows: torch.Tensor
    """int64 [R], rows of [0, T)."""
    block_tables: torch.Tensor
    """int32 [R, B]"""
    seq_lens: torch.Tensor
    """int32 [R]; 0 for a row that nobody reads."""


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
    last: LastRows | None = None
    """Where set, a model need compute no other rows behind the keys and values of its last layer, and may return these alone."""
    host_lengths: tuple[list[int], list[int]] | None = None
    """`query_start` and `seq_lens` on the host, where they are at hand: to read them from a device waits for it."""
    more_groups: tuple[AttentionMetadata, ...] = ()
    """The same tokens for the second group of layers and those behind it, which have tables of their own."""
    state_slots: torch.Tensor | None = None
    """int64 [S, 2]; slots of linear state that each sequence reads and writes; None for models without one."""
    plans: dict[str, object] = field(default_factory=dict)
    """What a backend worked out for this step, under its name; the first layer leaves it to the others."""

    def of_group(self, index: int) -> AttentionMetadata:
        """Return what the layers of group `index` need; see `xllm_framework.kv_cache.layer_groups`."""
        return self.more_groups[index - 1] if index else self

    def lengths_on_host(self) -> tuple[list[int], list[int]]:
        """Return `query_start` and `seq_lens`."""
        return self.host_lengths or (self.query_start.tolist(), self.seq_lens.tolist())
