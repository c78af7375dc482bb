"""Keeps garbage collections short. Knows nothing of what is collected.

Modules and a loaded model are some hundred thousand objects that live on; a full collection that looks at all of them stops every
thread for a tenth of a second or more, in the middle of a step's work.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager

BUILT_IN = 10_000
"""More objects than an interpreter keeps out of collections by itself: some hundred from Python 3.12 on."""


def spare_what_is_loaded() -> None:
    """Let no collection look at what there is now, for as long as the process lives. For a process whose loading is over."""
    gc.freeze()


@contextmanager
def sparing_what_is_loaded() -> Iterator[None]:
    """The same for a while, in a process that belongs to somebody else; does nothing where he has done so himself."""
    if gc.get_freeze_count() > BUILT_IN:
        yield
        return
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()
