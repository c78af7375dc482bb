"""Images and videos in a prompt as plain data: what they are, where their place-holders lie, which positions they take.

No tensors on devices, no files, no decoding: numpy arrays of pixels come in ready to be encoded.
"""

from xllm_framework.multimodal.media_item import MediaItem
from xllm_framework.multimodal.placeholders import expand_placeholders
from xllm_framework.multimodal.positions import PositionRule, multimodal_positions
from xllm_framework.multimodal.prompt_media import MediaPiece, PromptMedia

__all__ = [
    "MediaItem",
    "MediaPiece",
    "PositionRule",
    "PromptMedia",
    "expand_placeholders",
    "multimodal_positions",
]
