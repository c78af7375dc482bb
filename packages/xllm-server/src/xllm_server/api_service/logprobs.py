"""Log-probabilities in the two shapes that OpenAI clients know. Knows nothing of choices or streams.

A token that the text leaves out (special ones, and the token that ended the text) has no entry: what is listed, joined,
is the text.
"""

from __future__ import annotations

import codecs
from collections.abc import Sequence

from xllm_framework.request import FinishReason, SequenceOutput, TokenLogprob
from xllm_server.ports import Tokenizer
from xllm_server.protocol.chat import ChatLogprobs, TokenLogprobContent, TopLogprob
from xllm_server.protocol.completion import CompletionLogprobs


def token_text(content: bytes) -> str:
    r"""Return a token's bytes as text, or as `bytes:\xe4\xbd` when they are no whole characters."""
    try:
        return content.decode()
    except UnicodeDecodeError:
        return "bytes:" + "".join(f"\\x{byte:02x}" for byte in content)


class LogprobsRenderer:
    """Renders the tokens of one sequence, in order; `skips_special` is whether the text leaves special tokens out."""

    def __init__(self, tokenizer: Tokenizer, *, skips_special: bool) -> None:
        self._tokenizer = tokenizer
        self._skips_special = skips_special
        self._characters = codecs.getincrementaldecoder("utf-8")("replace")
        self._offset = 0

    def chat(self, sequence: SequenceOutput) -> ChatLogprobs:
        """Return the shape of chat completions for the tokens of `sequence`."""
        return ChatLogprobs([self._chat_entry(entry) for entry in self._entries(sequence)])

    def completion(self, sequence: SequenceOutput) -> CompletionLogprobs:
        """Return the shape of completions for the tokens of `sequence`; offsets go on where the last call ended."""
        rendered = CompletionLogprobs()
        for entry in self._entries(sequence):
            self._append(rendered, entry.token_id, entry)
        return rendered

    def prompt(self, token_ids: Sequence[int], entries: Sequence[TokenLogprob | None]) -> CompletionLogprobs:
        """Return the shape of completions for an echoed prompt, whose first token has no log-probability."""
        rendered = CompletionLogprobs()
        for token_id, entry in zip(token_ids, entries, strict=True):
            if not self._is_left_out(token_id):
                self._append(rendered, token_id, entry)
        return rendered

    def _entries(self, sequence: SequenceOutput) -> list[TokenLogprob]:
        entries = sequence.logprobs or []
        if sequence.finish_reason is FinishReason.STOP and not isinstance(sequence.stop_reason, str):
            entries = entries[:-1]
        return [entry for entry in entries if not self._is_left_out(entry.token_id)]

    def _is_left_out(self, token_id: int) -> bool:
        return self._skips_special and self._tokenizer.is_special(token_id)

    def _text(self, token_id: int) -> str:
        return token_text(self._tokenizer.token_bytes(token_id))

    def _append(self, rendered: CompletionLogprobs, token_id: int, entry: TokenLogprob | None) -> None:
        content = self._tokenizer.token_bytes(token_id)
        rendered.tokens.append(token_text(content))
        rendered.text_offset.append(self._offset)
        self._offset += len(self._characters.decode(content))
        rendered.token_logprobs.append(None if entry is None else entry.logprob)
        if entry is None:
            rendered.top_logprobs.append(None)
            return
        top = {self._text(candidate): logprob for candidate, logprob in entry.top}
        top.setdefault(token_text(content), entry.logprob)
        rendered.top_logprobs.append(top)

    def _chat_entry(self, entry: TokenLogprob) -> TokenLogprobContent:
        content = self._tokenizer.token_bytes(entry.token_id)
        top = []
        for token_id, logprob in entry.top:
            candidate = self._tokenizer.token_bytes(token_id)
            top.append(TopLogprob(token_text(candidate), logprob, list(candidate)))
        return TokenLogprobContent(token_text(content), entry.logprob, list(content), top)
