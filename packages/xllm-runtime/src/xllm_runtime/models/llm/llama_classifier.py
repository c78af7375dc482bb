"""The Llama family with a classifier in the place of the head: rerankers and reward models.

Knows nothing of what the labels mean, or of which token's outputs count.
"""

from __future__ import annotations

import torch

from xllm_framework.model import ModelArgs
from xllm_runtime.layers.embedding import Embedding
from xllm_runtime.layers.parameter import WeightTargets
from xllm_runtime.models.llm.llama import LlamaForCausalLM


class LlamaForSequenceClassification(LlamaForCausalLM):
    """`CausalLM` whose logits [R, num_labels] are those of labels."""

    takes_kv_dtype = False

    def __init__(self, args: ModelArgs, dtype: torch.dtype) -> None:
        super().__init__(args, dtype)
        self.score = Embedding(args.num_labels, args.hidden_size, dtype)

    @property
    def head(self) -> Embedding:
        """What turns hidden states into outputs, one a label."""
        return self.score

    def weight_targets(self) -> WeightTargets:
        yield from super().weight_targets()
        yield from self.score.weight_targets("score")
