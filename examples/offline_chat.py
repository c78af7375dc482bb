"""Chats with the model that comes along, without a server: `uv run python examples/offline_chat.py`."""

from xllm_runtime import LLM, SamplingParams

QUESTIONS = ["Name the planet we live on.", "What do bees make?"]

with LLM() as llm:
    conversations = [[{"role": "user", "content": question}] for question in QUESTIONS]
    for question, output in zip(
        QUESTIONS, llm.chat(conversations, SamplingParams(max_tokens=40, temperature=0)), strict=True
    ):
        print(f"{question}\n  {output.outputs[0].text}")
