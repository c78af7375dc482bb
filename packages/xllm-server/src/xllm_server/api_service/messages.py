"""The Messages API: its requests are chats, its answers are rows of blocks. Knows nothing of tokens."""

from __future__ import annotations

import asyncio

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from xllm_framework.errors import InvalidRequest, XLLMError
from xllm_server.api_service.chat import ChatService, chat_input
from xllm_server.api_service.generation import Generation
from xllm_server.api_service.messages_rendering import MessagesRendering, message_error
from xllm_server.api_service.service import CheckedRequest, GenerationService, read_request
from xllm_server.errors import error_response
from xllm_server.protocol.as_chat import renamed
from xllm_server.protocol.messages import CHAT_NAMES, CountTokensRequest, MessagesRequest
from xllm_server.state import ServerState


class MessagesService(GenerationService[MessagesRequest]):
    """Serves /v1/messages."""

    body_type = MessagesRequest
    id_prefix = "msg_"

    def __init__(self, state: ServerState) -> None:
        super().__init__(state)
        self._chat = ChatService(state)

    def check(self, body: MessagesRequest) -> CheckedRequest:
        """See `GenerationService.check`."""
        chat = body.to_chat()
        try:
            checked = self._chat.check(chat)
        except InvalidRequest as error:
            raise renamed(error, CHAT_NAMES) from None

        def render(answer_id: str, generation: Generation) -> MessagesRendering:
            parsing = self._chat.parsing(chat, generation)
            return MessagesRendering(answer_id, self._state.master.model_name, parsing)

        return CheckedRequest(checked.prepare, render)

    async def respond(self, http: Request) -> Response:
        """Serve one request; errors have Anthropic's shape."""
        try:
            return await super().respond(http)
        except XLLMError as error:
            return messages_error_response(error)

    async def count_tokens(self, http: Request) -> Response:
        """Answer how many tokens the request's prompt has; errors have Anthropic's shape."""
        try:
            body = await read_request(self._state, http, CountTokensRequest)
            chat = body.to_chat()

            def count() -> int:
                return len(self._state.master.tokenize_chat(chat_input(chat)))

            loop = asyncio.get_running_loop()
            content = {"input_tokens": await loop.run_in_executor(self._state.executor, count)}
        except XLLMError as error:
            return messages_error_response(error)
        return Response(msgspec.json.encode(content), media_type="application/json")


def messages_error_response(error: XLLMError) -> Response:
    """Return `error` with its usual status and headers, and Anthropic's body."""
    response = error_response(error)
    headers = {name: value for name, value in response.headers.items() if name != "content-length"}
    return Response(msgspec.json.encode(message_error(error)), response.status_code, headers)
