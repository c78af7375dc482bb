"""What the arrays of a search mean for its prompt, checked before anything is sent. Knows nothing of how models use them."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

import numpy as np

from xllm_framework.errors import InvalidRequest
from xllm_framework.request.rec_messages import (
    DECODER_CONTEXT,
    INPUT_EMBEDDING,
    INPUT_INDICES,
    INPUT_TOKENS,
    SPARSE_EMBEDDING,
    InputTensor,
)

PLACEHOLDER = 0
"""Stands in the prompt where an embedding takes a token's place."""


@dataclass(frozen=True, slots=True)
class TensorPrompt:
    """The prompt of a search that brings tensors."""

    token_ids: list[int]
    salt: str
    """Tells prompts with other embeddings apart, which their tokens do not."""


def prompt_of_tensors(
    prompt: list[int] | None, tensors: tuple[InputTensor, ...], hidden_size: int, *, is_encoder_decoder: bool
) -> TensorPrompt:
    """Return the prompt that `tensors` stand for, or complete.

    Raises:
        InvalidRequest: one is missing, unknown or of a wrong shape, or comes with a prompt where it may not; names it.
    """
    named = {tensor.name: tensor for tensor in tensors}
    if len(named) != len(tensors):
        raise InvalidRequest("tensors holds one name twice.", "tensors")
    known = (
        (SPARSE_EMBEDDING, DECODER_CONTEXT) if is_encoder_decoder else (INPUT_TOKENS, INPUT_INDICES, INPUT_EMBEDDING)
    )
    for name in named:
        if name not in known:
            raise InvalidRequest(f"tensors holds {name}, but this model takes {', '.join(known)}.", "tensors")
    if is_encoder_decoder:
        token_ids = _encoder_prompt(prompt, named, hidden_size)
    else:
        token_ids = _decoder_prompt(prompt, named, hidden_size)
    digest = hashlib.blake2b(digest_size=16)
    for tensor in tensors:
        digest.update(f"{tensor.name}{tensor.shape}".encode() + tensor.content)
    return TensorPrompt(token_ids, digest.hexdigest())


def _encoder_prompt(prompt: list[int] | None, named: dict[str, InputTensor], hidden_size: int) -> list[int]:
    for tensor in named.values():
        _expect(tensor, "float32", (None, hidden_size))
    sparse = named.get(SPARSE_EMBEDDING)
    if sparse is None:
        if prompt is None:
            raise InvalidRequest(f"Send a prompt, or {SPARSE_EMBEDDING}.", "prompt")
        return prompt
    if prompt is not None:
        raise InvalidRequest(f"Send a prompt or {SPARSE_EMBEDDING}, not both.", "prompt")
    return [PLACEHOLDER] * sparse.shape[0]


def _decoder_prompt(prompt: list[int] | None, named: dict[str, InputTensor], hidden_size: int) -> list[int]:
    if set(named) != {INPUT_TOKENS, INPUT_INDICES, INPUT_EMBEDDING}:
        raise InvalidRequest(f"{INPUT_TOKENS}, {INPUT_INDICES} and {INPUT_EMBEDDING} come together.", "tensors")
    if prompt is not None:
        raise InvalidRequest(f"Send a prompt or {INPUT_TOKENS}, not both.", "prompt")
    _expect(named[INPUT_TOKENS], "int64", (None,))
    _expect(named[INPUT_INDICES], "int64", (None,))
    count = named[INPUT_INDICES].shape[0]
    _expect(named[INPUT_EMBEDDING], "float32", (count, hidden_size))
    token_ids: list[int] = np.frombuffer(named[INPUT_TOKENS].content, "<i8").tolist()
    indices = np.frombuffer(named[INPUT_INDICES].content, "<i8")
    if indices.min() < 0 or indices.max() >= len(token_ids) or len(np.unique(indices)) != count:
        raise InvalidRequest(f"{INPUT_INDICES} must hold different places below {len(token_ids)}.", "tensors")
    for index in indices.tolist():
        token_ids[index] = PLACEHOLDER
    return token_ids


def _expect(tensor: InputTensor, dtype: str, shape: tuple[int | None, ...]) -> None:
    fits = len(tensor.shape) == len(shape) and all(
        wanted in (None, size) for wanted, size in zip(shape, tensor.shape, strict=False)
    )
    if tensor.dtype != dtype or not fits:
        wanted = ", ".join("n" if size is None else str(size) for size in shape)
        raise InvalidRequest(f"{tensor.name} must be {dtype} of shape [{wanted}], not {tensor.shape}.", "tensors")
