"""Names of the reasoning parsers. Importing this loads none of them."""

from __future__ import annotations

from xllm_server.parsers.reasoning.interface import ReasoningParserFactory
from xllm_server.parsers.registry import ParserTable

_THINK = "xllm_server.parsers.reasoning.think_tags"

REASONING_PARSERS: ParserTable[ReasoningParserFactory] = ParserTable(
    "--reasoning-parser",
    {
        "think": f"{_THINK}:ThinkTagParser",
        "deepseek-r1": f"{_THINK}:AlwaysThinkingParser",
        "kimi": f"{_THINK}:KimiThinkParser",
        "kimi-k2": f"{_THINK}:KimiK2ThinkParser",
        "mistral": f"{_THINK}:MistralThinkParser",
        "harmony": "xllm_server.parsers.reasoning.harmony:HarmonyReasoningParser",
    },
    {
        "qwen3": "think",
        "qwen35": "think",
        "glm45": "think",
        "glm47": "think",
        "glm5": "think",
        "deepseek-v3": "think",
        "deepseek-v31": "think",
        "deepseek-v32": "think",
        "deepseek-v4": "think",
        "qwen3-thinking": "deepseek-r1",
        "qwen35-thinking": "deepseek-r1",
        "step3": "deepseek-r1",
        "kimi-k25": "kimi-k2",
        "magistral": "mistral",
        "gpt-oss": "harmony",
        "openai-gptoss": "harmony",
    },
)
