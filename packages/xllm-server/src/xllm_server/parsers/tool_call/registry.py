"""Names of the tool-call parsers. Importing this loads none of them."""

from __future__ import annotations

from xllm_server.parsers.registry import ParserTable
from xllm_server.parsers.tool_call.interface import ToolCallParserFactory

_FOLDER = "xllm_server.parsers.tool_call"

TOOL_CALL_PARSERS: ParserTable[ToolCallParserFactory] = ParserTable(
    "--tool-call-parser",
    {
        "hermes": f"{_FOLDER}.hermes:HermesParser",
        "qwen3-coder": f"{_FOLDER}.elements:Qwen3CoderParser",
        "llama3-json": f"{_FOLDER}.llama_json:LlamaJsonParser",
        "pythonic": f"{_FOLDER}.pythonic:PythonicParser",
        "mistral": f"{_FOLDER}.mistral:MistralParser",
        "deepseek-v3": f"{_FOLDER}.tagged_json:DeepseekV3Parser",
        "deepseek-v31": f"{_FOLDER}.tagged_json:DeepseekV31Parser",
        "deepseek-v32": f"{_FOLDER}.elements:DsmlParser",
        "kimi-k2": f"{_FOLDER}.tagged_json:KimiK2Parser",
        "glm45": f"{_FOLDER}.elements:GlmParser",
        "harmony": f"{_FOLDER}.harmony:HarmonyToolCallParser",
    },
    {
        "qwen2": "hermes",
        "qwen25": "hermes",
        "qwen3": "hermes",
        "qwen35": "qwen3-coder",
        "qwen3-xml": "qwen3-coder",
        "llama3": "llama3-json",
        "llama4-json": "llama3-json",
        "llama4-pythonic": "pythonic",
        "deepseekv3": "deepseek-v3",
        "deepseekv31": "deepseek-v31",
        "deepseekv32": "deepseek-v32",
        "deepseekv4": "deepseek-v32",
        "deepseek-v4": "deepseek-v32",
        "kimi-k25": "kimi-k2",
        "glm47": "glm45",
        "glm5": "glm45",
        "gpt-oss": "harmony",
        "openai": "harmony",
    },
)
