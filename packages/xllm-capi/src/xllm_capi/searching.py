"""One call for recommendations: a search of the master, and its one answer to the host. Knows nothing of sockets."""

from __future__ import annotations

import math
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, cast

from xllm_capi.messages import Path, Paths, Search, Tensor
from xllm_framework.errors import InvalidRequest, XLLMError
from xllm_framework.request import FinishReason
from xllm_framework.request.rec_messages import InputTensor

if TYPE_CHECKING:
    from xllm_runtime.master import LLMMaster
    from xllm_runtime.master.rec import RecMaster
    from xllm_runtime.master.rec_dispatcher import SearchOutput
    from xllm_runtime.master.rec_request import PreparedSearch


def refuse_recommender(master: LLMMaster) -> None:
    """Refuse what a recommender does not do.

    Raises:
        InvalidRequest: `master` is one.
    """
    if master.backend == "rec":
        raise InvalidRequest("This engine is a recommender: it answers xllm_recommend and its variants alone.")


class SearchCall:
    """Answers `message` through `answer`, exactly once. `run` may take long for a long text."""

    def __init__(self, master: LLMMaster, message: Search, answer: Callable[[Paths], None]) -> None:
        self._master = cast("RecMaster", master)
        self._message = message
        self._answer = answer
        self._lock = threading.Lock()
        self._is_over = False
        self._request_id: str | None = None

    def run(self) -> None:
        """Prepare and submit the search; return when it is on its way, or over."""
        try:
            prepared = self._prepare()
            with self._lock:
                if self._is_over:
                    return
                self._request_id = prepared.request_id
                self._master.submit(prepared, self._on_output)
        except XLLMError as error:
            self._end(Paths(self._message.id, error.kind, error.message))
        except Exception as error:  # one call fails alone
            self._end(Paths(self._message.id, "internal", f"The engine could not prepare the request: {error}"))

    def cancel(self) -> None:
        """Give the call up. Any thread."""
        if self._end(Paths(self._message.id, "cancelled", "The engine has given the request up.")):
            request_id = self._request_id
            if request_id is not None:
                self._master.cancel(request_id)

    def _prepare(self) -> PreparedSearch:
        message = self._message
        if self._master.backend != "rec":
            raise InvalidRequest('This engine is no recommender: create it with the option "backend": "rec".')
        params = self._master.search_params(**message.params)
        if message.messages is None:
            return self._master.prepare_search(
                message.token_ids if message.prompt is None else message.prompt,
                params,
                seed=message.seed,
                request_id=message.request_id,
                priority=message.priority,
                cache_salt=message.cache_salt,
                tensors=tuple(map(_checked, message.tensors)),
            )
        from xllm_runtime.master import ChatInput

        chat = ChatInput(messages=[{"role": role, "content": content} for role, content in message.messages])
        return self._master.prepare_chat_search(
            chat,
            params,
            seed=message.seed,
            request_id=message.request_id,
            priority=message.priority,
            cache_salt=message.cache_salt,
        )

    def _on_output(self, output: SearchOutput) -> None:
        """Take the end of the search from the master's dispatcher thread."""
        number = self._message.id
        if output.error is not None:
            self._end(Paths(number, output.error_kind or "internal", output.error))
        elif any(sequence.finish_reason is FinishReason.ABORT for sequence in output.outputs):
            self._end(Paths(number, "cancelled", "The engine has given the request up."))
        else:
            self._end(_found(number, output))

    def _end(self, paths: Paths) -> bool:
        """Answer, if nothing has answered yet; return whether that was so."""
        with self._lock:
            if self._is_over:
                return False
            self._is_over = True
        self._answer(paths)
        return True


def _checked(tensor: Tensor) -> InputTensor:
    """Return what the engine side trusts.

    Raises:
        InvalidRequest: the shape is none, or does not fit the content.
    """
    if not tensor.shape or min(tensor.shape) < 1:
        raise InvalidRequest(f"{tensor.name} has shape {tensor.shape}, but positive sizes are taken.", "tensors")
    expected = math.prod(tensor.shape) * (4 if tensor.dtype == "float32" else 8)
    if expected != len(tensor.content):
        raise InvalidRequest(
            f"{tensor.name} has {len(tensor.content)} bytes, but its shape needs {expected}.", "tensors"
        )
    return InputTensor(tensor.name, tensor.dtype, tensor.shape, tensor.content)


def _found(number: int, output: SearchOutput) -> Paths:
    paths = [
        Path(path.token_ids, path.logprobs, path.score, path.item_ids, path.document_ids, path.kinds, sequence.text)
        for path, sequence in zip(output.paths, output.outputs, strict=True)
    ]
    return Paths(
        number, None, None, output.num_prompt_tokens, output.num_cached_tokens, output.catalogue_version, paths
    )
