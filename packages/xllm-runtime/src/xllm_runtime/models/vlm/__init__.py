"""Vision-language models: a vision tower each, and a decoder of `models.llm` behind it."""
