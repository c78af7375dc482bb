"""The script model itself. Its paged cache holds token ids, so a wrong block table shows as a wrong answer.

It keeps no state of its own: every step writes this step's tokens and positions into K and V, reads each sequence's whole
history back through its block table, and obeys the script in it. Knows nothing of requests, sampling or scheduling.
"""

from __future__ import annotations

import time
from collections.abc import Iterable

import torch

from xllm_framework.model import ModelArgs
from xllm_runtime.attention.metadata import AttentionMetadata
from xllm_runtime.models.interface import KVCacheShape
from xllm_script_model.script import Script
from xllm_script_model.vocabulary import EOS, NAN, RAISE, token_id

FORCED_LOGIT = 100.0
SLOW_STEP_S = 0.01


class ScriptedFailure(Exception):
    """The script asked for it."""


class BrokenCache(Exception):
    """The history that a block table leads to is not what was written for the sequence."""


class ScriptForCausalLM(torch.nn.Module):
    """Forces the script's tokens: the forced one has logit 100, the others small ones that fall with the id."""

    def __init__(self, args: ModelArgs, dtype: torch.dtype) -> None:
        super().__init__()
        self.args = args
        self._key_cache: torch.Tensor = torch.empty(0)
        self._value_cache: torch.Tensor = torch.empty(0)

    def kv_cache_shapes(self) -> list[KVCacheShape]:
        """One layer with one number for K and one for V."""
        return [KVCacheShape(num_kv_heads=1, head_dim=1, dtype=torch.float32)]

    def bind_kv_cache(self, caches: list[tuple[torch.Tensor, torch.Tensor]]) -> None:
        """Take the one layer's (K, V), each [num_blocks, block_size, 1, 1]."""
        ((self._key_cache, self._value_cache),) = caches

    def load_weights(self, weights: Iterable[tuple[str, torch.Tensor]]) -> None:
        """Read all tensors and keep none."""
        for _name, _tensor in weights:
            pass

    def forward(self, token_ids: torch.Tensor, positions: torch.Tensor, attention: AttentionMetadata) -> torch.Tensor:
        """[T] tokens -> [T, 2]: the forced token id, and 1 where the logits must not be finite."""
        self._key_cache.view(-1)[attention.slot_mapping] = token_ids.to(torch.float32)
        self._value_cache.view(-1)[attention.slot_mapping] = positions.to(torch.float32)
        hidden = torch.zeros(len(token_ids), 2)
        hidden[:, 0] = token_id(EOS)
        query_start = attention.query_start.tolist()
        delay_s = 0.0
        for index, seq_len in enumerate(attention.seq_lens.tolist()):
            rows = range(query_start[index], query_start[index + 1])
            found = Script.read(self._history(attention.block_tables[index], seq_len).numpy())
            if found is None:
                continue
            if seq_len >= found.start:
                delay_s = max(delay_s, found.num_slow * SLOW_STEP_S)
            self._force(hidden, rows, seq_len - len(rows), found)
        if delay_s:
            time.sleep(delay_s)
        return hidden.to(token_ids.device)

    def compute_logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """[R, 2] -> float32 [R, vocab_size]."""
        logits = -0.001 * torch.arange(self.args.vocab_size, dtype=torch.float32).repeat(len(hidden), 1)
        logits.scatter_(1, hidden[:, :1].to(torch.int64).cpu(), FORCED_LOGIT)
        logits[hidden[:, 1].cpu() > 0] = float("nan")
        return logits.to(hidden.device)

    def _history(self, block_table: torch.Tensor, seq_len: int) -> torch.Tensor:
        """Return the sequence's tokens as the cache holds them, int64 [seq_len]."""
        block_size = self._key_cache.shape[1]
        blocks = block_table[: -(-seq_len // block_size)].to(torch.int64)
        positions = self._value_cache[blocks].reshape(-1)[:seq_len]
        if not torch.equal(positions.cpu(), torch.arange(seq_len, dtype=torch.float32)):
            raise BrokenCache(f"the cache holds positions {positions.tolist()} for a history of {seq_len} tokens")
        return self._key_cache[blocks].reshape(-1)[:seq_len].to(torch.int64).cpu()

    @staticmethod
    def _force(hidden: torch.Tensor, rows: range, first_position: int, found: Script) -> None:
        """Set what follows each row of one sequence; row 0 holds the token at `first_position`."""
        for offset, row in enumerate(rows):
            turn = first_position + offset + 1 - found.start
            if 0 <= turn < len(found.token_ids):
                token = found.token_ids[turn]
                if token == token_id(RAISE):
                    raise ScriptedFailure(f"the script raises at token {turn}")
                hidden[row, 0] = token
                hidden[row, 1] = float(token == token_id(NAN))
