# ruff: noqa: N999
"""The extension module of CUDA kernels: checked launchers on a stream; see `xllm_kernels.cuda`."""

from torch import Tensor

LINEAR_BATCH_MAX_BATCH: int
LINEAR_BATCH_MAX_GATED: int
LINEAR_STREAM_MAX_BATCH: int
TOP_K_MAX: int
NORM_AND_ROUTE_MAX_TOKENS: int
RUN_EXPERTS_MAX_ROWS: int
MIX_TOKENS: int
ORDER_BLOCKS: int
QUANTISED_STREAM_MAX_BATCH: int

def rms_norm(x: Tensor, weight: Tensor, eps: float, out: Tensor, stream: int) -> None: ...
def add_rms_norm(x: Tensor, residual: Tensor, weight: Tensor, eps: float, stream: int) -> None: ...
def rotary_embedding(positions: Tensor, query: Tensor, key: Tensor, cos_sin_cache: Tensor, stream: int) -> None: ...
def norm_and_rotate(
    positions: Tensor,
    query: Tensor,
    key: Tensor,
    q_norm: Tensor,
    k_norm: Tensor,
    eps: float,
    cos_sin_cache: Tensor,
    stream: int,
) -> None: ...
def write_kv(
    key: Tensor, value: Tensor, key_cache: Tensor, value_cache: Tensor, slot_mapping: Tensor, stream: int
) -> None: ...
def silu_and_mul(x: Tensor, out: Tensor, stream: int) -> None: ...
def argmax(
    logits: Tensor, token_ids: Tensor, best: Tensor, workspace: Tensor, counters: Tensor, stream: int
) -> None: ...
def linear_stream(
    x: Tensor,
    weight: Tensor,
    norm_weight: Tensor | None,
    bias: Tensor | None,
    eps: float,
    epilogue: int,
    out: Tensor,
    stream: int,
) -> None: ...
def linear_batch(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    epilogue: int,
    squares: Tensor | None,
    eps: float,
    next_norm: Tensor | None,
    next_x: Tensor | None,
    next_squares: Tensor | None,
    out: Tensor,
    stream: int,
) -> None: ...
def why_no_linear_batch(n: int, k: int, batch: int, epilogue: int) -> str | None: ...
def tall_tiles_fill_the_device(n: int) -> bool: ...
def decode_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    q_norm: Tensor | None,
    k_norm: Tensor | None,
    cos_sin_cache: Tensor | None,
    key_cache: Tensor,
    value_cache: Tensor,
    block_tables: Tensor,
    seq_lens: Tensor,
    positions: Tensor | None,
    scale: float,
    eps: float,
    max_seq_len: int,
    splits: int,
    configuration: int,
    out: Tensor,
    workspace: Tensor,
    counters: Tensor,
    stream: int,
) -> None: ...
def route(
    logits: Tensor,
    renormalises: bool,
    weights: Tensor,
    experts: Tensor,
    row_of_pair: Tensor,
    token_of_row: Tensor,
    starts: Tensor,
    counts: Tensor,
    stream: int,
) -> None: ...
def order_pairs(
    weights: Tensor,
    experts: Tensor,
    row_of_pair: Tensor,
    token_of_row: Tensor,
    starts: Tensor,
    counts: Tensor,
    stream: int,
) -> None: ...
def norm_and_route(
    x: Tensor,
    norm_weight: Tensor,
    eps: float,
    gate: Tensor,
    renormalises: bool,
    normed: Tensor,
    weights: Tensor,
    experts: Tensor,
    row_of_pair: Tensor,
    token_of_row: Tensor,
    starts: Tensor,
    workspace: Tensor,
    counters: Tensor,
    stream: int,
) -> None: ...
def mix_experts(
    x: Tensor,
    norm_weight: Tensor,
    eps: float,
    gate: Tensor,
    gate_up: Tensor,
    down: Tensor,
    top_k: int,
    renormalises: bool,
    logits: Tensor,
    gated: Tensor,
    barrier: Tensor,
    stream: int,
) -> None: ...
def why_no_mix_experts(num_tokens: int, num_experts: int, top_k: int, hidden: int, inner: int) -> str | None: ...
def expert_tiles(
    x: Tensor,
    gate_up: Tensor,
    down: Tensor,
    row_of_pair: Tensor,
    starts: Tensor,
    rows: Tensor,
    gated: Tensor,
    out: Tensor,
    stream: int,
) -> None: ...
def why_no_expert_tiles(num_experts: int, hidden: int, inner: int) -> str | None: ...
def run_experts(
    x: Tensor,
    gate_up: Tensor,
    down: Tensor,
    token_of_row: Tensor,
    starts: Tensor,
    columns: int,
    gated: Tensor,
    out: Tensor,
    barrier: Tensor,
    stream: int,
) -> None: ...
def combine_experts(
    y: Tensor,
    weights: Tensor,
    row_of_pair: Tensor,
    residual: Tensor | None,
    norm_weight: Tensor | None,
    eps: float,
    out: Tensor,
    stream: int,
) -> None: ...
def quantised_stream(
    x: Tensor,
    weight: Tensor,
    kind: int,
    row_scales: Tensor | None,
    block_scales: Tensor | None,
    groups: Tensor | None,
    norm_weight: Tensor | None,
    bias: Tensor | None,
    eps: float,
    epilogue: int,
    configuration: int,
    out: Tensor,
    workspace: Tensor,
    counters: Tensor,
    stream: int,
) -> None: ...
def quantised_stream_norms(batch: int, k: int) -> bool: ...
def why_no_quantised_stream(n: int, k: int, epilogue: int) -> str | None: ...
def sample(
    logits: Tensor,
    best_ids: Tensor,
    best: Tensor,
    temperature: Tensor,
    top_p: Tensor,
    min_p: Tensor,
    top_k: Tensor,
    seed: Tensor,
    step: Tensor,
    token_ids: Tensor,
    logprobs: Tensor | None,
    stream: int,
) -> None: ...
def replace_placeholders(token_ids: Tensor, previous: Tensor, stream: int) -> None: ...
def why_no_run_experts(num_experts: int, hidden: int, inner: int) -> str | None: ...
def why_no_linear_stream(n: int, k: int, epilogue: int) -> str | None: ...
def float8_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    q_norm: Tensor | None,
    k_norm: Tensor | None,
    cos_sin_cache: Tensor | None,
    key_cache: Tensor,
    value_cache: Tensor,
    key_scale: float,
    value_scale: float,
    block_tables: Tensor,
    seq_lens: Tensor,
    positions: Tensor | None,
    scale: float,
    eps: float,
    max_seq_len: int,
    splits: int,
    out: Tensor,
    workspace: Tensor,
    counters: Tensor,
    stream: int,
) -> None: ...
def why_no_float8_attention(num_heads: int, num_kv_heads: int, head_dim: int, block_size: int) -> str | None: ...
def why_no_decode_attention(num_heads: int, num_kv_heads: int, head_dim: int, block_size: int) -> str | None: ...
def beam_join(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attended: Tensor,
    lse: Tensor,
    beam_key: Tensor,
    beam_value: Tensor,
    ancestors: Tensor,
    scale: float,
    out: Tensor,
    stream: int,
) -> None: ...
def why_no_beam_join(num_heads: int, num_kv_heads: int, head_dim: int) -> str | None: ...
def prompt_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    query_start: Tensor,
    key_start: Tensor | None,
    seq_lens: Tensor,
    block_tables: Tensor | None,
    max_query_len: int,
    scale: float,
    is_causal: bool,
    splits: int,
    out: Tensor,
    lse: Tensor | None,
    stream: int,
) -> None: ...
def why_no_prompt_attention(num_heads: int, num_kv_heads: int, head_dim: int, block_size: int) -> str | None: ...
def log_normaliser(logits: Tensor, normaliser: Tensor, stream: int) -> None: ...
def beam_scores(
    logits: Tensor,
    scores: Tensor,
    nodes: Tensor,
    starts: Tensor,
    tokens: Tensor,
    normaliser: Tensor,
    totals: Tensor,
    stream: int,
) -> None: ...
def top_k(values: Tensor, places: Tensor, best: Tensor, stream: int) -> None: ...
