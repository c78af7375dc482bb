"""Text to token ids and back: a model's tokenizer, text that arrives token by token, and stop strings."""

from xllm_framework.tokenizer.incremental import IncrementalDetokenizer
from xllm_framework.tokenizer.loading import load_tokenizer
from xllm_framework.tokenizer.stop_strings import StopStringMatcher
from xllm_framework.tokenizer.tokenizer import Tokenizer, without_lone_surrogates

__all__ = ["IncrementalDetokenizer", "StopStringMatcher", "Tokenizer", "load_tokenizer", "without_lone_surrogates"]
