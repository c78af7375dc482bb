"""How recommendations are searched. Knows nothing of models or of files' content."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class RecConfig:
    """Options of the rec backend."""

    item_file: str = ""
    """Catalogue in one of the binary item forms; empty takes items.bin or items_extended.bin of the model's folder."""
    enable_extended_item_info: bool = False
    """`item_file` is of the extended form, with a document id and a type for each item."""
    beam_width: int = 128
    """Candidates of a request that names no width."""
    max_decode_rounds: int = 3
    """Tokens of an item, and so the rounds of a search."""
    enable_constrained_decoding: bool = True
    """Search only paths that lead to items of the catalogue."""
    enable_convert_tokens_to_item: bool = True
    """Answer with the items that a path's tokens stand for."""
    each_conversion_threshold: int = 50
    """Items of one path at most; by chance where more have its tokens."""
    total_conversion_threshold: int = 1000
    """Items of one answer at most."""
    output_rec_logprobs: bool = False
    """Bring the log-probabilities of all tokens, also where a request does not ask."""
    enable_output_sku_logprobs: bool = False
    """Bring the log-probabilities as the output tensor sku_logprobs, too."""
    enable_rec_fast_sampler: bool = True
    """Choose beams by kernels that sort no more than they must; without it by a plain sort, with the same result."""
    enable_rec_prefill_only: bool = False
    """Compute each round anew from the prompt's last block instead of keeping KV for each beam; slow, for comparisons."""
    rec_worker_max_concurrency: int = 1
    """Batches that are searched at the same time."""
