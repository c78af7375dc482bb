# ruff: noqa: N999
"""The extension module: checked launchers, without the defaults and allocations of `xllm_kernels.ops`."""

from collections.abc import Sequence

from xllm_kernels.ops.tensor import Tensor

def rms_norm(x: Tensor, weight: Tensor, eps: float, out: Tensor) -> None: ...
def add_rms_norm(x: Tensor, residual: Tensor, weight: Tensor, eps: float) -> None: ...
def rotary_embedding(positions: Tensor, query: Tensor, key: Tensor, cos_sin_cache: Tensor) -> None: ...
def write_kv(key: Tensor, value: Tensor, key_cache: Tensor, value_cache: Tensor, slot_mapping: Tensor) -> None: ...
def paged_attention(
    query: Tensor,
    key_cache: Tensor,
    value_cache: Tensor,
    block_tables: Tensor,
    query_start: Tensor,
    seq_lens: Tensor,
    scale: float,
    sliding_window: int,
    out: Tensor,
) -> None: ...
def silu_and_mul(x: Tensor, out: Tensor) -> None: ...
def modulated_norm(x: Tensor, shift: Tensor, scale: Tensor, eps: float, out: Tensor) -> None: ...
def add_gated(x: Tensor, y: Tensor, gate: Tensor) -> None: ...
def gelu(x: Tensor, out: Tensor) -> None: ...
def dense_linear(x: Tensor, tiles: Tensor, bias: Tensor | None, out: Tensor) -> None: ...
def joint_attention(
    streams: Sequence[tuple[Tensor, Tensor | None, Tensor | None]],
    cos: Tensor | None,
    sin: Tensor | None,
    mask: Tensor | None,
    eps: float,
    num_heads: int,
    first_query: int,
    out: Tensor,
) -> None: ...
def cpu_isa() -> str: ...
def why_no_cuda() -> str | None: ...
def why_no_npu() -> str | None: ...
def get_num_threads() -> int: ...
def set_num_threads(num_threads: int, pin: bool) -> None: ...
def beam_attention(
    query: Tensor,
    key_cache: Tensor,
    value_cache: Tensor,
    block_tables: Tensor,
    query_start: Tensor,
    prompt_lens: Tensor,
    beam_key: Tensor,
    beam_value: Tensor,
    ancestors: Tensor,
    scale: float,
    out: Tensor,
) -> None: ...
def beam_select(
    logits: Tensor,
    scores: Tensor,
    nodes: Tensor,
    starts: Tensor,
    tokens: Tensor,
    row_start: Tensor,
    out_start: Tensor,
    parents: Tensor,
    chosen: Tensor,
    next_nodes: Tensor,
    logprobs: Tensor,
    next_scores: Tensor,
) -> None: ...
def forward_beams(
    decoder: LlamaDecoder,
    beams: BeamCache,
    round: int,  # noqa: A002
    token_ids: Tensor,
    positions: Tensor,
    query_start: Tensor,
    prompt_lens: Tensor,
    block_tables: Tensor,
    ancestors: Tensor,
    logits: Tensor,
) -> None: ...

class BeamCache:
    def __init__(self, decoder: LlamaDecoder, num_rounds: int, num_rows: int, dtype: str) -> None: ...

def draw_tokens(
    logits: Tensor,
    rows: Tensor,
    best: Tensor,
    temperature: Tensor,
    top_k: Tensor,
    top_p: list[float],
    min_p: Tensor,
    uniform: list[float],
    token_ids: Tensor,
) -> None: ...
def token_logprobs(
    logits: Tensor, token_ids: Tensor, logprobs: Tensor, top_ids: Tensor, top_logprobs: Tensor
) -> None: ...

class LlamaDecoder:
    """See `xllm_kernels.native.LlamaDecoder`."""

    def __init__(
        self,
        vocab_size: int,
        hidden_size: int,
        intermediate_size: int,
        num_layers: int,
        num_heads: int,
        num_kv_heads: int,
        head_dim: int,
        rotary_dim: int,
        rms_norm_eps: float,
        has_tied_embeddings: bool,
        has_qkv_bias: bool,
        has_output_bias: bool,
        has_mlp_bias: bool,
        has_qk_norm: bool,
        sliding_windows: list[int],
        cos_sin_cache: Tensor,
        weight_format: str,
    ) -> None: ...
    def set_weight(self, name: str, data: object, kind: str, shape: list[int], permuted_heads: int) -> None: ...
    def finish(self) -> None: ...
    def num_weight_bytes(self) -> int: ...
    def save_packed(self, path: str, key: str) -> None: ...
    def load_packed(self, path: str, key: str) -> bool: ...
    def allocate_kv_cache(self, num_blocks: int, block_size: int, dtype: str) -> None: ...
    def num_block_bytes(self) -> int: ...
    def read_blocks(self, blocks: Tensor, contents: object) -> None: ...
    def write_blocks(self, blocks: Tensor, contents: object) -> None: ...
    def copy_blocks(self, pairs: Tensor) -> None: ...
    def forward(
        self,
        token_ids: Tensor,
        positions: Tensor,
        slot_mapping: Tensor,
        query_start: Tensor,
        seq_lens: Tensor,
        block_tables: Tensor,
        rows: Tensor,
        logits: Tensor,
    ) -> None: ...
    def hidden(
        self,
        token_ids: Tensor,
        positions: Tensor,
        slot_mapping: Tensor,
        query_start: Tensor,
        seq_lens: Tensor,
        block_tables: Tensor,
        rows: Tensor,
        hidden: Tensor,
    ) -> None: ...
    def hidden_embedded(
        self,
        token_ids: Tensor,
        positions: Tensor,
        slot_mapping: Tensor,
        query_start: Tensor,
        seq_lens: Tensor,
        block_tables: Tensor,
        rows: Tensor,
        embedded: Tensor,
        embedded_rows: Tensor,
        angles: Tensor | None,
        hidden: Tensor,
    ) -> None: ...
    def logits(self, hidden: Tensor, logits: Tensor) -> None: ...
    def greedy(
        self,
        token_ids: Tensor,
        positions: Tensor,
        slot_mapping: Tensor,
        query_start: Tensor,
        seq_lens: Tensor,
        block_tables: Tensor,
        rows: Tensor,
        chosen: Tensor,
    ) -> None: ...
