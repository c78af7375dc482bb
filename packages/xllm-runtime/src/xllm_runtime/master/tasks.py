"""What a model was loaded for (option `task`), and which requests that leaves out. Knows nothing of how requests are made."""

from __future__ import annotations

from xllm_framework.config import ModelConfig
from xllm_framework.errors import InvalidRequest
from xllm_framework.model import ModelArgs

TOWER_ALONE = "This model was loaded for the task mm_embed, its vision tower alone: ask for embeddings of messages with images or videos."


def check_generates(config: ModelConfig, args: ModelArgs) -> None:
    """Check that the model makes texts.

    Raises:
        InvalidRequest: it has no head for that, or was not loaded for it.
    """
    if config.task == "mm_embed":
        raise InvalidRequest(TOWER_ALONE, "model")
    if args.head != "language":
        raise InvalidRequest("This model generates no text: ask it for embeddings or scores.", "model")
    if config.task == "embed":
        raise InvalidRequest(
            "This model was loaded for the task embed and generates no text: ask it for embeddings or scores.", "model"
        )


def check_embeds(config: ModelConfig, args: ModelArgs) -> None:
    """Check that the model makes vectors of texts and conversations.

    Raises:
        InvalidRequest: it is a classifier, or was not loaded for it.
    """
    if config.task == "mm_embed":
        raise InvalidRequest(TOWER_ALONE, "model")
    if args.head == "classifier":
        raise InvalidRequest("This model is a classifier and makes no embeddings: ask it for scores.", "model")
