"""Who holds which slot of linear state, and which states were saved to go on from. Ids and arithmetic only.

Layers with linear attention keep one state a sequence instead of KV for each token, and each step overwrites it. So a running
sequence has two slots and uses them in turns: a step reads one and writes the other, and can be computed again if it failed.

    step       1        2        3
    slots    a -> b   b -> a   a -> b          `Sequence.turn_states` follows `num_computed_tokens`

To go on from the middle of a prompt, the state just there is needed. Where a step ends at a multiple of the stride, the state is
copied to a slot of its own under the prefix cache's key of that place (`save`); a prompt that begins alike starts from a copy of it
(`take`). Copies happen in order, before the next step: what they read is still there, because the step after that is the first
one to overwrite it. Slot 0 belongs to nobody.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from xllm_framework.errors import IntegrityError, InvalidConfig
from xllm_framework.kv_cache.block_pool import BlockPool
from xllm_framework.request.sequence import Sequence

SLOTS_A_SEQUENCE = 2


class StateSlots:
    """`num_slots` slots, slot 0 included; states are saved every `stride` tokens.

    Raises:
        InvalidConfig: there are too few slots for one sequence.
    """

    def __init__(self, num_slots: int, stride: int) -> None:
        if num_slots <= SLOTS_A_SEQUENCE:
            raise InvalidConfig(f"num_state_slots must be {SLOTS_A_SEQUENCE + 1} or more, not {num_slots}.")
        self.stride = stride
        self._pool = BlockPool(num_slots, self._forget)
        self._slot_of: dict[bytes, int] = {}
        self._key_of: dict[int, bytes] = {}
        self._copies: list[tuple[int, int]] = []

    @property
    def has_room(self) -> bool:
        """Whether another sequence can run."""
        return self._pool.num_available >= SLOTS_A_SEQUENCE

    @property
    def num_saved(self) -> int:
        """How many states are saved."""
        return len(self._slot_of)

    def knows(self, key: bytes) -> bool:
        """Whether the state behind the block of `key` is saved."""
        return key in self._slot_of

    def take(self, sequence: Sequence, key: bytes | None) -> None:
        """Give a new sequence its slots, and the state that is saved under `key`; there must be room."""
        saved = None if key is None else self._slot_of[key]
        if saved is not None:  # the most recently used now
            self._pool.share([saved])
            self._pool.release([saved])
        first, second = self._pool.allocate(SLOTS_A_SEQUENCE)
        sequence.state_slots = (first, second)
        if saved is not None:
            self._copies.append((saved, first))

    def release(self, sequence: Sequence) -> None:
        """Take back the slots of a sequence, if it has any."""
        if sequence.state_slots is not None:
            self._pool.release(sequence.state_slots)
            sequence.state_slots = None

    def save(self, sequence: Sequence, key: bytes) -> None:
        """Keep the state of `sequence` under `key`, as it is once what was planned so far is computed, if there is room."""
        if sequence.state_slots is None or key in self._slot_of or not self._pool.num_available:
            return
        (slot,) = self._pool.allocate(1)
        self._copies.append((sequence.state_slots[0], slot))
        self._slot_of[key], self._key_of[slot] = slot, key
        self._pool.retain(slot)
        self._pool.release([slot])

    def take_copies(self) -> list[tuple[int, int]]:
        """Return the copies, (from, to), that are due in this order before the step that was planned."""
        copies, self._copies = self._copies, []
        return copies

    def _forget(self, slot: int) -> None:
        del self._slot_of[self._key_of.pop(slot)]

    def check_integrity(self, sequences: Iterable[Sequence]) -> None:
        """Raise `IntegrityError` unless each slot is free, saved, or one running sequence's; `sequences` are all that can run."""
        self._pool.check_integrity()
        held: Counter[int] = Counter()
        for sequence in sequences:
            if (sequence.state_slots is None) != (not sequence.block_table):
                raise IntegrityError(f"{sequence} has blocks without a state, or a state without blocks.")
            held.update(sequence.state_slots or ())
        for slot in range(1, self._pool.num_usable + 1):
            if self._pool.num_references(slot) != held[slot]:
                raise IntegrityError(f"State slot {slot} has the wrong number of holders.")
            if self._pool.is_retained(slot) != (slot in self._key_of):
                raise IntegrityError(f"State slot {slot} is kept without a key, or the other way round.")
