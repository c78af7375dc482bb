"""Which routes a server offers over which backend. A backend adds its rows here; knows nothing of what routes do."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import NamedTuple

import msgspec
from fastapi import APIRouter

from xllm_server.protocol.chat import ChatCompletionRequest
from xllm_server.protocol.completion import CompletionRequest
from xllm_server.protocol.images import ImageEditRequest, ImageGenerationRequest, ReferenceImageRequest
from xllm_server.protocol.messages import CountTokensRequest, MessagesRequest
from xllm_server.protocol.pooling import EmbeddingRequest, RerankRequest, ScoreRequest
from xllm_server.protocol.recommendation import CatalogueRequest, ChatRecommendationRequest, RecommendationRequest
from xllm_server.protocol.responses import ResponsesRequest
from xllm_server.protocol.sample import SampleRequest
from xllm_server.protocol.tokens import DetokenizeRequest, TokenizeRequest
from xllm_server.routes.chat import chat_router
from xllm_server.routes.completions import completions_router
from xllm_server.routes.control import PauseRequest, control_router
from xllm_server.routes.embeddings import embeddings_router
from xllm_server.routes.image_page import image_page_router
from xllm_server.routes.images import images_router
from xllm_server.routes.messages import messages_router
from xllm_server.routes.models import models_router
from xllm_server.routes.operations import operations_router
from xllm_server.routes.recommendations import catalogue_router, recommendations_router
from xllm_server.routes.rerank import rerank_router
from xllm_server.routes.responses import responses_router
from xllm_server.routes.sample import sample_router
from xllm_server.routes.score import score_router
from xllm_server.routes.tokens import tokens_router
from xllm_server.routes.web import web_router
from xllm_server.state import ServerState


class RouteGroup(NamedTuple):
    """A router, the request types that its routes describe in the OpenAPI document, and who offers it."""

    router: Callable[[ServerState], APIRouter]
    bodies: tuple[type[msgspec.Struct], ...]
    backends: frozenset[str]


ALL = frozenset({"llm", "vlm", "dit", "rec"})
TEXT = frozenset({"llm", "vlm"})
LLM = frozenset({"llm"})
REC = frozenset({"rec"})
DIT = frozenset({"dit"})

ROUTE_GROUPS = (
    RouteGroup(chat_router, (ChatCompletionRequest,), TEXT),
    RouteGroup(completions_router, (CompletionRequest,), TEXT),
    RouteGroup(responses_router, (ResponsesRequest,), TEXT),
    RouteGroup(messages_router, (MessagesRequest, CountTokensRequest), TEXT),
    RouteGroup(sample_router, (SampleRequest,), LLM),
    RouteGroup(embeddings_router, (EmbeddingRequest,), TEXT),
    RouteGroup(rerank_router, (RerankRequest,), LLM),
    RouteGroup(score_router, (ScoreRequest,), LLM),
    RouteGroup(tokens_router, (TokenizeRequest, DetokenizeRequest), TEXT),
    RouteGroup(recommendations_router, (RecommendationRequest, ChatRecommendationRequest), REC),
    RouteGroup(catalogue_router, (CatalogueRequest,), REC),
    RouteGroup(images_router, (ImageGenerationRequest, ImageEditRequest, ReferenceImageRequest), DIT),
    RouteGroup(models_router, (), ALL),
    RouteGroup(operations_router, (), ALL),
    RouteGroup(control_router, (PauseRequest,), ALL),
    RouteGroup(web_router, (), TEXT),
    RouteGroup(image_page_router, (), DIT),
)
"""In the order in which paths are tried."""


def routers_for(backend: str) -> list[Callable[[ServerState], APIRouter]]:
    """Return what makes the routers of a server over `backend`."""
    return [group.router for group in _groups(backend)]


def bodies_for(backend: str) -> list[type[msgspec.Struct]]:
    """Return the request types that these routes take."""
    return [body for group in _groups(backend) for body in group.bodies]


def _groups(backend: str) -> Iterable[RouteGroup]:
    return (group for group in ROUTE_GROUPS if backend in group.backends)
