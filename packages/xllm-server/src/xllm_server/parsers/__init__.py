"""From a model's raw text to reasoning, content and tool calls, while it streams. Knows nothing of HTTP or of tokens."""
