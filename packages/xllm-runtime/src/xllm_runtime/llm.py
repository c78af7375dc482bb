"""The offline API: many prompts in, all results out, in one process. Knows nothing of servers or of scheduling."""

from __future__ import annotations

import queue
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, cast

import numpy as np
import numpy.typing as npt
from tqdm import tqdm

from xllm_framework.config import XLLMConfig
from xllm_framework.errors import InvalidRequest, QueueFull, RequestFailed, XLLMError
from xllm_framework.request import RequestOutput, SamplingParams
from xllm_framework.request.image_output import ImageOutput
from xllm_runtime.garbage import sparing_what_is_loaded
from xllm_runtime.image_generation import generate_images
from xllm_runtime.master import ChatInput, LLMMaster, PreparedRequest
from xllm_runtime.master.media_embeddings import MediaEmbedding
from xllm_runtime.master.prepared_request import RequestOptions
from xllm_runtime.media_prompts import embed_media, prepare_media_prompt, prepare_media_vector

if TYPE_CHECKING:
    from xllm_runtime.master.rec import RecMaster
    from xllm_runtime.master.rec_dispatcher import SearchOutput

Prompt = str | list[int]
MediaPrompt = dict[str, Any]
"""`prompt` (text or token ids, with the model's own marks) and `multi_modal_data`: {"image": one or a list, "video": alike}."""
Message = dict[str, Any]
PROGRESS_BAR_FROM = 16
"""Requests from which on a progress bar is shown when nobody says otherwise."""
OFFLINE_STEP_MS = 60_000.0
"""Nobody waits for the first token of one prompt among many, so that steps may be as long as they like."""
RETRY_S = 0.001
"""Before a request is offered again to a queue that other threads have filled."""


class LLM:
    """A loaded model for use in a script.

        with LLM("path/to/model", max_model_len=2048) as llm:
            for output in llm.generate(["One", "Two"], SamplingParams(max_tokens=16)):
                print(output.outputs[0].text)

    Args:
        model: a folder in Hugging Face layout, a .gguf file, or a hub id; empty takes the embedded demo model.
        options: any option of the server by its flat name, as `block_size=32`.

    Raises:
        InvalidConfig: an unknown option or a wrong value.
        ModelLoadError, UnsupportedModel: the model cannot be served.
    """

    def __init__(self, model: str = "", **options: Any) -> None:
        config = XLLMConfig.from_flat({"model": model, "prefill_step_ms": OFFLINE_STEP_MS, **options}, "LLM(...)")
        self.master = LLMMaster.create(config, engine_process=False)

    def generate(
        self,
        prompts: Prompt | MediaPrompt | Sequence[Prompt | MediaPrompt],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        use_tqdm: bool | None = None,
    ) -> list[RequestOutput]:
        """Complete each prompt (a text, token ids, or a `MediaPrompt`) and return the results in the prompts' order.

        Args:
            sampling_params: one for all, or one a prompt; None takes the defaults.
            use_tqdm: show a progress bar; None shows one for long lists.

        A prompt that cannot be served does not hold up the others: its result has `error` and `error_kind` set.
        """
        batch = _prompt_list(prompts)
        params = _one_each(sampling_params, len(batch))

        def prepare(index: int) -> PreparedRequest:
            prompt, options = batch[index], RequestOptions(request_id=str(index), is_offline=True)
            if isinstance(prompt, dict):
                return prepare_media_prompt(self.master, prompt, params[index], options)
            return self.master.prepare_completion(prompt, params[index], **options)

        return self._run(prepare, len(batch), use_tqdm)

    def chat(
        self,
        conversations: Sequence[Message] | Sequence[Sequence[Message]],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        tools: list[dict[str, Any]] | None = None,
        template_kwargs: dict[str, Any] | None = None,
        use_tqdm: bool | None = None,
    ) -> list[RequestOutput]:
        """Answer each conversation, a list of messages with `role` and `content`; a single one may be given as it is."""
        batch = _conversations(conversations)
        params = _one_each(sampling_params, len(batch))

        def prepare(index: int) -> PreparedRequest:
            chat = ChatInput(messages=batch[index], tools=tools, template_kwargs=template_kwargs or {})
            return self.master.prepare_chat(chat, params[index], request_id=str(index), is_offline=True)

        return self._run(prepare, len(batch), use_tqdm)

    def embed(
        self,
        prompts: Prompt | MediaPrompt | Sequence[Prompt | MediaPrompt],
        *,
        dimensions: int | None = None,
        use_tqdm: bool | None = None,
    ) -> list[EmbeddingOutput]:
        """Return the embedding of each prompt (a text, token ids, or a `MediaPrompt`), in the prompts' order.

        Args:
            dimensions: cut the vectors to so many numbers, and normalise what is left.

        A prompt that cannot be served does not hold up the others: its result has `error` and `error_kind` set.

        Raises:
            InvalidRequest: `dimensions` is more than the model has.
        """
        batch, pooling = _prompt_list(prompts), self.master.pooling
        pooling.check_dimensions(dimensions)

        def prepare(index: int) -> PreparedRequest:
            prompt, options = batch[index], RequestOptions(request_id=str(index), is_offline=True)
            if isinstance(prompt, dict):
                return prepare_media_vector(self.master, prompt, options)
            return pooling.prepare(prompt, param="prompts", **options)

        return [self._embedding(output, dimensions) for output in self._run(prepare, len(batch), use_tqdm)]

    def embed_chat(
        self,
        conversations: Sequence[Message] | Sequence[Sequence[Message]],
        *,
        dimensions: int | None = None,
        add_generation_prompt: bool = False,
        use_tqdm: bool | None = None,
    ) -> list[EmbeddingOutput]:
        """Return the embedding of each conversation, with images and videos where the model sees; else as `embed`."""
        batch, pooling = _conversations(conversations), self.master.pooling
        pooling.check_dimensions(dimensions)

        def prepare(index: int) -> PreparedRequest:
            chat = ChatInput(messages=batch[index], add_generation_prompt=add_generation_prompt)
            return pooling.prepare_chat(chat, request_id=str(index), is_offline=True)

        return [self._embedding(output, dimensions) for output in self._run(prepare, len(batch), use_tqdm)]

    def embed_media(self, messages: Sequence[Message]) -> list[MediaEmbedding]:
        """Return what the model's vision tower makes of each image and video of a conversation; texts mean nothing.

        Raises:
            InvalidRequest: the model does not see, or a medium cannot be used.
            RequestFailed: they could not be encoded.
        """
        return embed_media(self._run, self.master, messages)

    def score(
        self, text_1: str | Sequence[str], text_2: str | Sequence[str], *, use_tqdm: bool | None = None
    ) -> list[float]:
        """Return how well texts belong together: one `text_1` with each of `text_2`, or equally many in pairs.

        Raises:
            InvalidRequest: the model cannot score, or the numbers of texts do not fit.
            RequestFailed: a pair could not be scored.
        """
        pairs, scorer = _pairs(text_1, text_2), self.master.scorer
        prepared = scorer.prepare(pairs, is_offline=True)
        outputs = self._run(prepared.__getitem__, len(prepared), use_tqdm)
        failed = next((output for output in outputs if output.error is not None), None)
        if failed is not None:
            raise RequestFailed(failed.error or "")
        return scorer.scores(pairs, outputs)

    def generate_images(
        self,
        prompts: str | Sequence[str],
        *,
        images: Sequence[Any] = (),
        mask: Any = None,
        use_tqdm: bool | None = None,
        **asked: Any,
    ) -> list[ImageOutput]:
        """Draw each prompt, and return the results in the prompts' order; for models of the dit backend.

        Args:
            images: for models that take one: Pillow's image, or uint8 [height, width, 3].
            mask: where to draw anew: Pillow's image, or uint8 [height, width].
            asked: further fields of `ImageRequest` for all prompts, as `width=1024`, `seed=1`.

        A prompt that cannot be drawn does not hold up the others: its result has `error` and `error_kind` set.

        Raises:
            InvalidRequest: the model does not draw.
        """
        return generate_images(self._run, self.master, prompts, images, mask, use_tqdm, asked)

    def recommend(self, histories: Prompt | Sequence[Prompt], **params: Any) -> list[SearchOutput]:
        """Search a catalogue for what follows each history; for `LLM(model, backend="rec")`. See `Recommender.recommend`.

        Raises:
            InvalidRequest: a parameter is out of range, or the model is no recommender.
        """
        from xllm_runtime.recommender import recommend

        if self.master.backend != "rec":
            raise InvalidRequest('recommend needs LLM(..., backend="rec").')
        return recommend(cast("RecMaster", self.master), histories, params)

    def close(self) -> None:
        """End the engine and free its memory."""
        self.master.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, error_type: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def _embedding(self, output: RequestOutput, dimensions: int | None) -> EmbeddingOutput:
        vector = None if output.error is not None else self.master.pooling.vector(output, dimensions)
        return EmbeddingOutput(vector, output.num_prompt_tokens, output.error, output.error_kind)

    def _run(
        self, prepare: Callable[[int], PreparedRequest], num_requests: int, use_tqdm: bool | None
    ) -> list[RequestOutput]:
        """Prepare and submit requests 0 to `num_requests` - 1, as many at once as the master takes; wait for all."""
        is_shown = use_tqdm if use_tqdm is not None else num_requests >= PROGRESS_BAR_FROM
        run = _Run(self.master, num_requests)
        try:
            with sparing_what_is_loaded(), tqdm(total=num_requests, unit="prompt", disable=not is_shown) as bar:
                for _ in run.results(prepare):
                    bar.update()
        except BaseException:  # also a Ctrl-C: nothing of this run may go on
            run.cancel()
            raise
        return [run.outputs[index] for index in range(num_requests)]


@dataclass(frozen=True, slots=True)
class EmbeddingOutput:
    """What `LLM.embed` returns for one prompt."""

    embedding: npt.NDArray[np.float32] | None
    """float32 [dimensions]; None where the prompt failed."""
    num_prompt_tokens: int
    error: str | None = None
    error_kind: str | None = None


class _Run:
    """One `generate` or `chat` under way. `outputs` holds what each request brought so far, by index."""

    def __init__(self, master: LLMMaster, num_requests: int) -> None:
        self.outputs: dict[int, RequestOutput] = {}
        self._master = master
        self._num_requests = num_requests
        self._request_ids: list[str] = []
        self._finished: queue.SimpleQueue[int] = queue.SimpleQueue()

    def results(self, prepare: Callable[[int], PreparedRequest]) -> Iterator[int]:
        """Yield the index of each request as it finishes."""
        num_running = 0
        for index in range(self._num_requests):
            try:
                prepared = prepare(index)
            except XLLMError as error:
                self._fail(index, error)
                yield index
                continue
            while not self._is_started(index, prepared):
                if num_running:
                    yield self._finished.get()
                    num_running -= 1
                else:
                    time.sleep(RETRY_S)
            num_running += 1
        for _ in range(num_running):
            yield self._finished.get()

    def cancel(self) -> None:
        """Abort what has not finished."""
        for request_id in self._request_ids:
            self._master.cancel(request_id)

    def _is_started(self, index: int, prepared: PreparedRequest) -> bool:
        """Submit a request; False when the queue is full."""

        def on_output(output: RequestOutput) -> None:
            if index in self.outputs:
                self.outputs[index].extend(output)
            else:
                self.outputs[index] = output
            if output.finished:
                self._finished.put(index)

        try:
            self._master.submit(prepared, on_output)
        except QueueFull:
            return False
        except XLLMError as error:
            self._fail(index, error)
            self._finished.put(index)
        self._request_ids.append(prepared.request_id)
        return True

    def _fail(self, index: int, error: XLLMError) -> None:
        """Record that a request got no further than to the front side."""
        self.outputs[index] = RequestOutput(
            str(index), [], finished=True, num_prompt_tokens=0, error=error.message, error_kind=error.kind
        )


def _prompt_list(prompts: Any) -> list[Any]:
    """Return a list of prompts, also for a single text, a single list of token ids or a single prompt with media."""
    if isinstance(prompts, str | dict):
        return [prompts]
    if len(prompts) > 0 and isinstance(prompts[0], int):
        return [prompts]
    return list(prompts)


def _conversations(conversations: Sequence[Any]) -> list[list[Message]]:
    """Return a list of conversations, also for a single one."""
    batch = list(conversations)
    return [batch] if batch and isinstance(batch[0], dict) else [list(messages) for messages in batch]


def _pairs(text_1: str | Sequence[str], text_2: str | Sequence[str]) -> list[tuple[str, str]]:
    first, second = ([texts] if isinstance(texts, str) else list(texts) for texts in (text_1, text_2))
    if len(first) not in (1, len(second)):
        raise InvalidRequest(f"text_1 has {len(first)} texts for {len(second)} of text_2.", "text_1")
    return list(zip(first * len(second) if len(first) == 1 else first, second, strict=True))


def _one_each(params: SamplingParams | Sequence[SamplingParams] | None, count: int) -> list[SamplingParams]:
    if params is None or isinstance(params, SamplingParams):
        return [params or SamplingParams()] * count
    if len(params) != count:
        raise InvalidRequest(f"sampling_params has {len(params)} entries for {count} prompts.", "sampling_params")
    return list(params)
