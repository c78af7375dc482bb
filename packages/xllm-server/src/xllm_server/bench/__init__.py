"""`xllm-server bench`: drives any OpenAI server and measures it. Knows nothing of our own server or engine."""
