"""The Responses API: its requests are chats, perhaps after answers that are still kept. Knows nothing of tokens."""

from __future__ import annotations

from typing import Any

from xllm_framework.errors import InvalidRequest
from xllm_server.api_service.chat import ChatService
from xllm_server.api_service.generation import Generation
from xllm_server.api_service.response_store import ResponseStore
from xllm_server.api_service.responses_rendering import ResponsesRendering
from xllm_server.api_service.service import CheckedRequest, GenerationService
from xllm_server.errors import UnknownResponse
from xllm_server.protocol.as_chat import renamed
from xllm_server.protocol.responses import CHAT_NAMES, ResponseAnswer, ResponsesRequest
from xllm_server.state import ServerState


class ResponsesService(GenerationService[ResponsesRequest]):
    """Serves /v1/responses, and answers that it keeps."""

    body_type = ResponsesRequest
    id_prefix = "resp_"

    def __init__(self, state: ServerState) -> None:
        super().__init__(state)
        self._chat = ChatService(state)
        self._store = ResponseStore()

    def check(self, body: ResponsesRequest) -> CheckedRequest:
        """See `GenerationService.check`. The answer before is looked up here alone: it may be forgotten at any time."""
        earlier = self._earlier(body)
        chat = body.to_chat(earlier)
        try:
            checked = self._chat.check(chat)
        except InvalidRequest as error:
            raise renamed(error, CHAT_NAMES) from None

        def keep(answer: ResponseAnswer, turn: list[dict[str, Any]]) -> None:
            if body.store is not False:
                self._store.put(answer, [*earlier, *body.messages(), *turn])

        def render(answer_id: str, generation: Generation) -> ResponsesRendering:
            parsing = self._chat.parsing(chat, generation)
            return ResponsesRendering(body, answer_id, self._state.master.model_name, parsing, keep)

        return CheckedRequest(checked.prepare, render)

    def retrieve(self, response_id: str) -> ResponseAnswer:
        """Return an answer that is still kept.

        Raises:
            UnknownResponse: it is not.
        """
        stored = self._store.get(response_id)
        if stored is None:
            raise UnknownResponse(f"No response {response_id[:200]!r} is kept here (any more).", "response_id")
        return stored.answer

    def remove(self, response_id: str) -> None:
        """Forget an answer; raises as `retrieve` does."""
        self.retrieve(response_id)
        self._store.remove(response_id)

    def _earlier(self, body: ResponsesRequest) -> list[dict[str, Any]]:
        """Return the conversation that `body` goes on from."""
        if body.previous_response_id is None:
            return []
        stored = self._store.get(body.previous_response_id)
        if stored is None:
            name = body.previous_response_id[:200]
            raise UnknownResponse(f"No response {name!r} is kept here (any more).", "previous_response_id")
        return stored.messages
