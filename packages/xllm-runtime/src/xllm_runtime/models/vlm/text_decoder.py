"""The half of a vision-language model that every text decoder of the Llama family gives it. Knows nothing of towers."""

from __future__ import annotations

import torch
from torch import nn

from xllm_runtime.attention import AttentionMetadata
from xllm_runtime.models.interface import KVCacheShape
from xllm_runtime.models.llm.llama import LlamaForCausalLM
from xllm_runtime.models.vlm.interface import Additions


class HasTextDecoder(nn.Module):
    """What a `VisionLanguageModel` leaves to `language`, which a subclass sets."""

    language: LlamaForCausalLM

    @property
    def text_model(self) -> LlamaForCausalLM:
        """See `VisionLanguageModel.text_model`."""
        return self.language

    def kv_cache_shapes(self) -> list[KVCacheShape]:
        """See `CausalLM.kv_cache_shapes`."""
        return self.language.kv_cache_shapes()

    def bind_kv_cache(self, caches: list[tuple[torch.Tensor, torch.Tensor]]) -> None:
        """See `CausalLM.bind_kv_cache`."""
        self.language.bind_kv_cache(caches)

    def embed(self, token_ids: torch.Tensor) -> torch.Tensor:
        """See `VisionLanguageModel.embed`."""
        embedded: torch.Tensor = self.language.embed_tokens(token_ids)
        return embedded

    def forward(self, token_ids: torch.Tensor, positions: torch.Tensor, attention: AttentionMetadata) -> torch.Tensor:
        """See `CausalLM.forward`."""
        return self.language.forward(token_ids, positions, attention)

    def forward_embedded(
        self, x: torch.Tensor, positions: torch.Tensor, attention: AttentionMetadata, additions: Additions
    ) -> torch.Tensor:
        """See `VisionLanguageModel.forward_embedded`."""
        return self.language.forward_embedded(x, positions, attention, additions)

    def compute_logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """See `CausalLM.compute_logits`."""
        return self.language.compute_logits(hidden)
