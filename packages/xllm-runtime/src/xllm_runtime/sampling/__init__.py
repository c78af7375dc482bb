"""From logits to tokens. Knows nothing of models, of sequences or of text."""

from xllm_runtime.sampling.logprobs import LogprobRows, prompt_logprobs, token_logprobs
from xllm_runtime.sampling.sampler import sample

__all__ = ["LogprobRows", "prompt_logprobs", "sample", "token_logprobs"]
