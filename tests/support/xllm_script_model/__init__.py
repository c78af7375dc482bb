"""The script model: a causal language model that answers with the tokens that its prompt spells out.

`script(...)` writes such a prompt, `write_checkpoint(folder)` the model's files. Importing this package imports no torch;
the model class itself lies in `xllm_script_model.model`, where the entry point group `xllm.models` finds it.
"""

from xllm_script_model.checkpoint import write_checkpoint
from xllm_script_model.script import script
from xllm_script_model.vocabulary import EOS, NAN, RAISE, SLOW, TOKENS, token_id

__all__ = ["EOS", "NAN", "RAISE", "SLOW", "TOKENS", "script", "token_id", "write_checkpoint"]
