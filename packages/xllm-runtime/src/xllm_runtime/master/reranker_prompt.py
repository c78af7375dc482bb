"""The prompt that Qwen3-Reranker was trained with (its model card). Knows nothing of scores."""

from __future__ import annotations

from xllm_framework.tokenizer import Tokenizer

PREFIX = (
    "<|im_start|>system\nJudge whether the Document meets the requirements based on the Query and the Instruct provided. "
    'Note that the answer can only be "yes" or "no".<|im_end|>\n<|im_start|>user\n'
)
SUFFIX = "<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n"
INSTRUCTION = "Given a web search query, retrieve relevant passages that answer the query"


class RerankerPrompt:
    """Makes the token ids of a pair."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._prefix = tokenizer.encode(PREFIX, add_special_tokens=False)
        self._suffix = tokenizer.encode(SUFFIX, add_special_tokens=False)

    def __call__(self, pair: tuple[str, str], max_tokens: int | None) -> list[int]:
        """Return the prompt of (query, document); its end is cut off the document, so that the whole has `max_tokens`."""
        query, document = pair
        text = f"<Instruct>: {INSTRUCTION}\n<Query>: {query}\n<Document>: {document}"
        ids = self._tokenizer.encode(text, add_special_tokens=False)
        if max_tokens is not None:
            ids = ids[: max(0, max_tokens - len(self._prefix) - len(self._suffix))]
        return [*self._prefix, *ids, *self._suffix]
