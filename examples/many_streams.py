"""Four streams at once against a running server: `uv run python examples/many_streams.py`.

XLLM_BASE_URL names another server than http://127.0.0.1:8000/v1.
"""

import asyncio
import os

from openai import AsyncOpenAI

SUBJECTS = ["the sea", "a mountain", "a city", "a forest"]


async def main() -> None:
    """Ask for four short poems at once and print each as it is complete."""
    client = AsyncOpenAI(base_url=os.environ.get("XLLM_BASE_URL", "http://127.0.0.1:8000/v1"), api_key="none")
    model = (await client.models.list()).data[0].id

    async def describe(subject: str) -> None:
        stream = await client.chat.completions.create(
            model=model,
            messages=[{"role": "user", "content": f"Describe {subject} in one sentence."}],
            max_tokens=48,
            stream=True,
        )
        text = "".join([chunk.choices[0].delta.content or "" async for chunk in stream])
        print(f"{subject}: {text}")

    await asyncio.gather(*[describe(subject) for subject in SUBJECTS])


asyncio.run(main())
