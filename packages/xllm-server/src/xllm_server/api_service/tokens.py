"""Text to token ids and back, with the served model's tokenizer and chat template. Nothing reaches the engine."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from xllm_framework.errors import InvalidRequest
from xllm_server.api_service.chat import chat_input
from xllm_server.api_service.logprobs import token_text
from xllm_server.api_service.service import read_request
from xllm_server.protocol.as_chat import chat_request
from xllm_server.protocol.tokens import DetokenizeAnswer, DetokenizeRequest, TokenizeAnswer, TokenizeRequest
from xllm_server.state import ServerState


class TokenService:
    """Serves /tokenize and /detokenize; the work is done in the thread pool."""

    def __init__(self, state: ServerState) -> None:
        self._state = state

    async def tokenize(self, http: Request) -> Response:
        """Answer the token ids of a text, or of a conversation's prompt.

        Raises:
            XLLMError: the request is refused.
        """
        body = await read_request(self._state, http, TokenizeRequest)
        body.check()
        return await self._answer(lambda: self._tokenized(body))

    async def detokenize(self, http: Request) -> Response:
        """Answer the text of token ids; raises as `tokenize` does."""
        body = await read_request(self._state, http, DetokenizeRequest)
        body.check_engine_fields()
        return await self._answer(lambda: self._detokenized(body))

    async def _answer(self, work: Callable[[], msgspec.Struct]) -> Response:
        def encoded() -> bytes:
            return msgspec.json.encode(work())

        content = await asyncio.get_running_loop().run_in_executor(self._state.executor, encoded)
        return Response(content, media_type="application/json")

    def _tokenized(self, body: TokenizeRequest) -> TokenizeAnswer:
        master = self._state.master
        if body.prompt is not None:
            ids = master.tokenizer.encode(body.prompt, add_special_tokens=body.add_special_tokens is not False)
        else:
            chat = chat_request(body, body.chat_content(), {})
            ids = master.tokenize_chat(chat_input(chat))
        answer = TokenizeAnswer(len(ids), master.ready.max_model_len, ids)
        if body.return_token_strs:
            answer.token_strs = [token_text(master.tokenizer.token_bytes(token_id)) for token_id in ids]
        return answer

    def _detokenized(self, body: DetokenizeRequest) -> DetokenizeAnswer:
        vocab_size = self._state.master.ready.vocab_size
        for token_id in body.tokens:
            if not 0 <= token_id < vocab_size:
                raise InvalidRequest(
                    f"tokens holds token id {token_id}, but ids go from 0 to {vocab_size - 1}.", "tokens"
                )
        skips_special = bool(body.skip_special_tokens)
        return DetokenizeAnswer(self._state.master.tokenizer.decode(body.tokens, skip_special_tokens=skips_special))
