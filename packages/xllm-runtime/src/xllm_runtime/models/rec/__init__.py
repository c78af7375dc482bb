"""Models as recommenders: language models whose beams keep KV of their own, and encoder-decoders made for it."""
