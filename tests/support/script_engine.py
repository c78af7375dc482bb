"""An engine that runs the script model without a worker: greedy tokens only. For tests of what lies around an engine."""

from __future__ import annotations

import numpy as np
import torch
from xllm_script_model import EOS, TOKENS, token_id
from xllm_script_model.model import ScriptForCausalLM

from xllm_framework.batch import BatchGroup, ForwardInput, ForwardInputBuilder, ForwardOutput
from xllm_framework.batch.placeholders import replace_placeholders
from xllm_framework.errors import EngineDead
from xllm_framework.model import ModelArgs
from xllm_runtime.attention.metadata import AttentionMetadata

SCRIPT_ARGS = ModelArgs(
    architecture="ScriptForCausalLM",
    model_type="script",
    vocab_size=len(TOKENS),
    hidden_size=2,
    intermediate_size=2,
    num_layers=1,
    num_heads=1,
    num_kv_heads=1,
    head_dim=1,
    max_position_embeddings=4096,
    eos_token_ids=(token_id(EOS),),
)


class ScriptEngine:
    """`num_blocks` counts the padding block. `kill` makes every later step raise `EngineDead`."""

    def __init__(self, num_blocks: int, block_size: int) -> None:
        self._builder = ForwardInputBuilder(block_size, SCRIPT_ARGS.eos_token_ids)
        self._model = ScriptForCausalLM(SCRIPT_ARGS, torch.float32)
        shape = (num_blocks, block_size, 1, 1)
        self._model.bind_kv_cache([(torch.full(shape, -1.0), torch.full(shape, -1.0))])
        self.num_steps = 0
        self._sent: list[list[ForwardInput]] = []
        self._drawn: list[ForwardOutput] | None = None
        self.is_dead = False
        self.is_closed = False

    def execute(self, group: BatchGroup) -> list[ForwardOutput]:
        """Compute one step."""
        self.submit(group)
        return self.collect()

    def submit(self, group: BatchGroup) -> None:
        """Send one step, which is computed when it is collected."""
        if self.is_dead:
            raise EngineDead("The engine was killed by a test.")
        self._sent.append([self._builder.build(batch) for batch in group.batches])

    def collect(self) -> list[ForwardOutput]:
        """Compute the oldest step that was sent."""
        self.num_steps += 1
        inputs, drawn, self._drawn = self._sent.pop(0), self._drawn, None
        for rank, forward_input in enumerate(inputs):
            replace_placeholders(forward_input, drawn and drawn[rank].token_ids)
        self._drawn = [self._forward(forward_input) for forward_input in inputs]
        return self._drawn

    def close(self) -> None:
        """Remember that it was closed."""
        self.is_closed = True

    def _forward(self, step: ForwardInput) -> ForwardOutput:
        attention = AttentionMetadata(
            slot_mapping=torch.from_numpy(step.slot_mapping),
            block_tables=torch.from_numpy(step.block_tables),
            query_start=torch.from_numpy(step.query_start),
            seq_lens=torch.from_numpy(step.seq_lens),
            max_query_len=step.max_query_len,
        )
        token_ids = torch.from_numpy(step.token_ids).to(torch.int64)
        hidden = self._model.forward(token_ids, torch.from_numpy(step.positions).to(torch.int64), attention)
        logits = self._model.compute_logits(hidden[torch.from_numpy(step.sample_rows)])
        is_broken = ~torch.isfinite(logits).all(dim=-1)
        tokens = torch.where(is_broken, -1, logits.argmax(dim=-1)).numpy().astype(np.int32)
        errors = {int(row): "the logits are not finite" for row in torch.nonzero(is_broken)}
        return ForwardOutput(tokens, errors=errors or None)
