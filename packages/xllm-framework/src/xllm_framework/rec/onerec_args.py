"""The numbers of an encoder-decoder recommender (OneRec), from a config.json with T5's field names. Knows nothing of weights."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from xllm_framework.model import ModelArgs, ModelFiles, load_model_args
from xllm_framework.model.config_fields import ConfigFields
from xllm_framework.model.json_file import read_json_object

ONEREC_ARCHITECTURES = frozenset({"OneRecForConditionalGeneration"})
DEFAULT_POSITIONS = 4096
"""History that a model takes whose configuration names no length; positions are relative, so that none is too far."""


@dataclass(frozen=True, slots=True)
class OneRecArgs:
    """Sizes and constants, as T5 names them (Raffel et al., 2020)."""

    vocab_size: int
    d_model: int
    d_kv: int
    d_ff: int
    num_heads: int
    num_layers: int
    num_decoder_layers: int
    num_buckets: int
    max_distance: int
    layer_norm_eps: float
    feed_forward: Literal["relu", "gated-gelu"]
    has_tied_embeddings: bool
    scales_output: bool
    """Hidden states are multiplied by d_model ** -0.5 before the head."""
    decoder_start_token_id: int


def is_onerec(args: ModelArgs) -> bool:
    """Whether a model is an encoder-decoder made for recommendation."""
    return args.architecture in ONEREC_ARCHITECTURES


def load_rec_args(files: ModelFiles) -> ModelArgs:
    """Return the arguments of a model of the rec backend: a language model's, or a OneRec's under the same names.

    Raises:
        ModelLoadError: a configuration is missing, broken or incomplete; names the file and the field.
    """
    if files.kind != "hf":
        return load_model_args(files)
    path = files.path / "config.json"
    config = read_json_object(path)
    architecture = next(iter(config.get("architectures") or ()), "")
    if architecture not in ONEREC_ARCHITECTURES:
        return load_model_args(files)
    fields = ConfigFields(config, str(path))
    num_heads = fields.integer("num_heads")
    return ModelArgs(
        architecture=architecture,
        model_type="onerec",
        vocab_size=fields.integer("vocab_size"),
        hidden_size=fields.integer("d_model"),
        intermediate_size=fields.integer("d_ff"),
        num_layers=fields.integer("num_layers"),
        num_heads=num_heads,
        num_kv_heads=num_heads,
        head_dim=fields.integer("d_kv"),
        max_position_embeddings=fields.integer("n_positions", default=DEFAULT_POSITIONS),
        dtype=str(fields.get("dtype", "torch_dtype") or "float32").removeprefix("torch."),
        raw=config,
    )


def onerec_args(args: ModelArgs) -> OneRecArgs:
    """Return the numbers of an encoder-decoder whose `raw` is its config.json.

    Raises:
        ModelLoadError: a field is missing or wrong; names it.
    """
    fields = ConfigFields(args.raw, "config.json")
    feed_forward = fields.get("feed_forward_proj") or "relu"
    if feed_forward not in ("relu", "gated-gelu"):
        fields.fail(f"feed_forward_proj {feed_forward!r} is neither relu nor gated-gelu")
    is_tied = fields.flag("tie_word_embeddings", default=True)
    return OneRecArgs(
        vocab_size=args.vocab_size,
        d_model=args.hidden_size,
        d_kv=args.head_dim,
        d_ff=args.intermediate_size,
        num_heads=args.num_heads,
        num_layers=args.num_layers,
        num_decoder_layers=fields.integer("num_decoder_layers", default=args.num_layers),
        num_buckets=fields.integer("relative_attention_num_buckets", default=32),
        max_distance=fields.integer("relative_attention_max_distance", default=128),
        layer_norm_eps=fields.number("layer_norm_epsilon", default=1e-6),
        feed_forward="relu" if feed_forward == "relu" else "gated-gelu",
        has_tied_embeddings=is_tied,
        scales_output=fields.flag("scale_decoder_outputs", default=is_tied),
        decoder_start_token_id=int(args.raw.get("decoder_start_token_id") or 0),
    )
