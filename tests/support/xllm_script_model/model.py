"""The script model itself. Its paged cache holds token ids, so a wrong block table shows as a wrong answer.

It keeps no state of its own: every step writes this step's tokens and positions into K and V, reads each sequence's whole
history back through its block table, and obeys the script in it. Knows nothing of requests, sampling or scheduling.
"""

from __future__ import annotations

import time
from collections.abc import Iterable

import numpy as np
import numpy.typing as npt
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
        self._resting_logits = -0.001 * np.arange(args.vocab_size, dtype=np.float32)

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
        hidden = np.zeros((len(token_ids), 2), np.float32)
        hidden[:, 0] = token_id(EOS)
        query_start = attention.query_start.tolist()
        block_tables = attention.block_tables.cpu().numpy()
        keys, stored_positions = self._key_cache.cpu().numpy(), self._value_cache.cpu().numpy()
        delay_s = 0.0
        for index, seq_len in enumerate(attention.seq_lens.tolist()):
            rows = range(query_start[index], query_start[index + 1])
            found = Script.read(_history(keys, stored_positions, block_tables[index], seq_len))
            if found is None:
                continue
            if seq_len >= found.start:
                delay_s = max(delay_s, found.num_slow * SLOW_STEP_S)
            self._force(hidden, rows, seq_len - len(rows), found)
        if delay_s:
            time.sleep(delay_s)
        return torch.from_numpy(hidden).to(token_ids.device)

    def compute_logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """[R, 2] -> float32 [R, vocab_size]."""
        forced = hidden.cpu().numpy()
        logits = np.tile(self._resting_logits, (len(forced), 1))
        logits[np.arange(len(forced)), forced[:, 0].astype(np.int64)] = FORCED_LOGIT
        logits[forced[:, 1] > 0] = np.nan
        return torch.from_numpy(logits).to(hidden.device)

    @staticmethod
    def _force(hidden: npt.NDArray[np.float32], rows: range, first_position: int, found: Script) -> None:
        """Set what follows each row of one sequence; row 0 holds the token at `first_position`."""
        for offset, row in enumerate(rows):
            turn = first_position + offset + 1 - found.start
            if 0 <= turn < len(found.token_ids):
                token = found.token_ids[turn]
                if token == token_id(RAISE):
                    raise ScriptedFailure(f"the script raises at token {turn}")
                hidden[row, 0] = token
                hidden[row, 1] = float(token == token_id(NAN))


def _history(
    keys: npt.NDArray[np.float32], positions: npt.NDArray[np.float32], block_table: npt.NDArray[np.int32], seq_len: int
) -> npt.NDArray[np.int64]:
    """Return a sequence's tokens as the cache (`keys` and `positions`, each [num_blocks, block_size, 1, 1]) holds them."""
    blocks = block_table[: -(-seq_len // keys.shape[1])]
    found = positions[blocks].reshape(-1)[:seq_len]
    if not np.array_equal(found, np.arange(seq_len, dtype=np.float32)):
        raise BrokenCache(f"the cache holds positions {found.tolist()} for a history of {seq_len} tokens")
    return keys[blocks].reshape(-1)[:seq_len].astype(np.int64)
