"""The choice of beams with fixed shapes, as devices make it, against the kernel of the CPU; ties included."""

from __future__ import annotations

import numpy as np
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from support.beam_choices import assert_same_choice
from xllm_framework.rec.valid_paths import build_paths
from xllm_kernels import ops
from xllm_kernels.ops.beam_select import LevelPaths, SelectedBeams
from xllm_runtime.sampling.beams import DevicePaths, select_beams


@given(seed=st.integers(0, 2**32), is_free=st.booleans(), num_searches=st.integers(1, 3), num_rows=st.integers(1, 5))
@settings(deadline=None, max_examples=80)
def test_the_choice_equals_the_kernels(seed: int, is_free: bool, num_searches: int, num_rows: int):
    random = np.random.default_rng(seed)
    vocab_size, num_beams = int(random.integers(2, 12)), int(random.integers(1, 9))
    logits = random.integers(0, 3, (num_searches * num_rows, vocab_size)).astype(np.float32)
    scores = random.choice(np.array([0.0, -1.5, -np.inf], np.float32), (num_searches, num_rows))
    widths = random.integers(1, num_beams + 1, num_searches)
    paths, _ = build_paths(random.integers(0, vocab_size, (30, 2)).astype(np.int32))
    nodes = random.integers(-1, len(paths.starts[1]) - 1, (num_searches, num_rows)).astype(np.int32)
    out_start = np.concatenate([[0], np.cumsum(widths)]).astype(np.int32)
    expected = ops.beam_select(
        logits,
        scores.flatten(),
        nodes.flatten(),
        None if is_free else LevelPaths(paths.starts[1], paths.tokens[1]),
        (np.arange(num_searches + 1) * num_rows).astype(np.int32),
        out_start,
    )
    level = DevicePaths(
        torch.from_numpy(paths.starts[1].astype(np.int64)),
        torch.from_numpy(paths.tokens[1].astype(np.int64)),
        paths.most_children(1),
    )
    found = select_beams(
        torch.from_numpy(logits),
        torch.from_numpy(scores),
        torch.from_numpy(nodes.astype(np.int64)),
        None if is_free else level,
        torch.from_numpy(widths),
        num_beams,
    )
    kept = [rank for width in widths.tolist() for rank in range(width)]
    search_of = np.repeat(np.arange(num_searches), widths)
    chosen = SelectedBeams(
        *(
            column.numpy()[search_of, kept]
            for column in (found.parents, found.token_ids, found.nodes, found.logprobs, found.scores)
        )
    )
    first_rows = (search_of * num_rows).astype(np.int64)
    assert_same_choice(chosen._replace(parents=chosen.parents + first_rows), expected, out_start)
    assert all((found.scores[search, width:] == -np.inf).all() for search, width in enumerate(widths.tolist()))
