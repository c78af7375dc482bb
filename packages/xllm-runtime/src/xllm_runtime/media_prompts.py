"""Prompts with images and videos in a script, beside `LLM.chat`: data next to a text, and towers' embeddings as a result.

Knows nothing of processing or of steps.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, cast

from xllm_framework.errors import InvalidRequest, RequestFailed
from xllm_framework.request import RequestOutput, SamplingParams
from xllm_runtime.master import LLMMaster, PreparedRequest
from xllm_runtime.master.media_embeddings import MediaEmbedding, media_embeddings
from xllm_runtime.master.prepared_request import RequestOptions

if TYPE_CHECKING:
    from xllm_runtime.master.vlm import VLMMaster

_KINDS = ("image", "video", "image_embeds", "video_embeds")
Run = Callable[[Callable[[int], PreparedRequest], int, bool | None], list[RequestOutput]]


def prepare_media_prompt(
    master: LLMMaster, prompt: dict[str, Any], params: SamplingParams, options: RequestOptions
) -> PreparedRequest:
    """Return the request of `{"prompt": ..., "multi_modal_data": {"image": ..., "video": ..., "image_embeds": ...}}` and `video_embeds`.

    `prompt_token_ids` may stand for `prompt`; each kind has one medium or a list of them.

    Raises:
        InvalidRequest: a name is unknown or missing, the model does not see, or a medium cannot be used.
    """
    text, parts = _read(prompt)
    if not parts:
        return master.prepare_completion(text, params, **options)
    return _sees(master).prepare_media_completion(text, parts, params, **options)


def prepare_media_vector(master: LLMMaster, prompt: dict[str, Any], options: RequestOptions) -> PreparedRequest:
    """Return the request for a vector of such a prompt; raises as `prepare_media_prompt` does."""
    text, parts = _read(prompt)
    if not parts:
        return master.pooling.prepare(text, param="prompts", **options)
    return _sees(master).prepare_media_vector(text, parts, **options)


def embed_media(run: Run, master: LLMMaster, messages: Sequence[dict[str, Any]]) -> list[MediaEmbedding]:
    """See `LLM.embed_media`."""
    prepared = _sees(master).prepare_media_embedding(list(messages), is_offline=True)
    output = run(lambda _: prepared, 1, False)[0]
    if output.error is not None:
        raise RequestFailed(output.error)
    return media_embeddings(prepared, output)


def _read(prompt: dict[str, Any]) -> tuple[str | list[int], list[dict[str, Any]]]:
    """Return the text or token ids of a prompt, and a content part for each of its media."""
    unknown = set(prompt) - {"prompt", "prompt_token_ids", "multi_modal_data"}
    text = prompt.get("prompt", prompt.get("prompt_token_ids"))
    if unknown or not isinstance(text, str | list):
        raise InvalidRequest(
            "A prompt with media has prompt (or prompt_token_ids) and multi_modal_data, and nothing else.", "prompts"
        )
    return text, _parts(prompt.get("multi_modal_data") or {})


def _parts(media: dict[str, Any]) -> list[dict[str, Any]]:
    """Return a content part for each medium."""
    parts = []
    for kind, given in media.items():
        if kind not in _KINDS:
            raise InvalidRequest(f"multi_modal_data holds {kind!r}; {', '.join(_KINDS)} are known.", "prompts")
        parts += [{"type": kind, kind: medium} for medium in (given if isinstance(given, list) else [given])]
    return parts


def _sees(master: LLMMaster) -> VLMMaster:
    if master.backend != "vlm":
        raise InvalidRequest("This model takes no images and no videos.", "prompts")
    return cast("VLMMaster", master)
