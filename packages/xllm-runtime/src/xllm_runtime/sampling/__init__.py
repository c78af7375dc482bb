"""From logits to tokens: on torch's tensors here, on numpy's arrays in `arrays`. Knows nothing of models or of text.

This file imports nothing: workers without torch use `arrays`, `philox` and `logprob_rows`.
"""
