"""xLLM's nouns and the state they hold. Knows nothing of torch, of devices, of HTTP or of who runs next."""
