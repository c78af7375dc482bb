"""Tiny random vision-language checkpoints made with transformers, pictures for them, and transformers' answers.

Knows nothing of xLLM.
"""

from __future__ import annotations

import json
import tempfile
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import PIL.Image
import torch

from support.tiny_checkpoints import _root, randomise

SPECIAL_TOKENS = (
    *("<|endoftext|>", "<|im_start|>", "<|im_end|>"),
    *("<|vision_start|>", "<|vision_end|>", "<|vision_pad|>", "<|image_pad|>", "<|video_pad|>"),
    *("<|begin_of_image|>", "<|end_of_image|>", "<|begin_of_video|>", "<|end_of_video|>", "<|image|>", "<|video|>"),
)
FIRST_SPECIAL = 256
IDS = {text: FIRST_SPECIAL + index for index, text in enumerate(SPECIAL_TOKENS)}
VOCAB_SIZE = 272
CHAT_TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message.role }}\n"
    "{% if message.content is string %}{{ message.content }}{% else %}{% for part in message.content %}"
    "{% if part.type == 'image' %}<|vision_start|><|image_pad|><|vision_end|>"
    "{% elif part.type == 'video' %}<|vision_start|><|video_pad|><|vision_end|>"
    "{% else %}{{ part.text }}{% endif %}{% endfor %}{% endif %}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
GLM_CHAT_TEMPLATE = (
    CHAT_TEMPLATE.replace("<|vision_start|><|image_pad|><|vision_end|>", "<|begin_of_image|><|image|><|end_of_image|>")
).replace("<|vision_start|><|video_pad|><|vision_end|>", "<|begin_of_video|><|video|><|end_of_video|>")
TEXT = {
    "vocab_size": VOCAB_SIZE,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 2048,
    "bos_token_id": 256,
    "eos_token_id": 258,
    "pad_token_id": 256,
    "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0, "mrope_section": [2, 3, 3]},
}
TOKENS = {
    "image_token_id": IDS["<|image_pad|>"],
    "video_token_id": IDS["<|video_pad|>"],
    "vision_start_token_id": IDS["<|vision_start|>"],
    "vision_end_token_id": IDS["<|vision_end|>"],
}
QWEN3_TEXT = {
    **TEXT,
    "head_dim": 16,
    "rope_parameters": {
        "rope_type": "default",
        "rope_theta": 10000.0,
        "mrope_section": [4, 2, 2],
        "mrope_interleaved": True,
    },
}
QWEN3_VISION = {
    "depth": 4,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_heads": 2,
    "out_hidden_size": 64,
    "num_position_embeddings": 64,
    "deepstack_visual_indexes": [0, 2],
}
CONFIGS: dict[str, dict[str, Any]] = {
    "qwen2_vl": {
        "text_config": TEXT,
        "vision_config": {"depth": 3, "embed_dim": 32, "num_heads": 2, "hidden_size": 64, "mlp_ratio": 2},
        **TOKENS,
    },
    "qwen2_5_vl": {
        "text_config": TEXT,
        "vision_config": {
            "depth": 3,
            "hidden_size": 32,
            "intermediate_size": 48,
            "num_heads": 2,
            "out_hidden_size": 64,
            "window_size": 56,
            "fullatt_block_indexes": [1],
            "tokens_per_second": 2,
        },
        **TOKENS,
    },
    "qwen3_vl": {"text_config": QWEN3_TEXT, "vision_config": QWEN3_VISION, **TOKENS},
    "qwen3_vl_moe": {
        "text_config": {
            **QWEN3_TEXT,
            "num_experts": 4,
            "num_experts_per_tok": 2,
            "moe_intermediate_size": 24,
            "decoder_sparse_step": 1,
            "mlp_only_layers": [1],
        },
        "vision_config": QWEN3_VISION,
        **TOKENS,
    },
}
GLM_VISION = {
    "depth": 3,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_heads": 2,
    "out_hidden_size": 64,
    "image_size": 56,
}
GLM_TOKENS = {
    "image_token_id": IDS["<|image|>"],
    "video_token_id": IDS["<|video|>"],
    "image_start_token_id": IDS["<|begin_of_image|>"],
    "image_end_token_id": IDS["<|end_of_image|>"],
    "video_start_token_id": IDS["<|begin_of_video|>"],
    "video_end_token_id": IDS["<|end_of_video|>"],
}
GLM_ROTARY = {
    "rope_type": "default",
    "rope_theta": 10000.0,
    "mrope_section": [1, 1, 2],
    "partial_rotary_factor": 0.5,
}
CONFIGS["glm4v"] = {
    "text_config": {**TEXT, "rope_parameters": GLM_ROTARY},
    "vision_config": GLM_VISION,
    **GLM_TOKENS,
}
CONFIGS["glm46v"] = CONFIGS["glm4v"]
CONFIGS["glm4v_moe"] = {
    "text_config": {
        **TEXT,
        "rope_parameters": GLM_ROTARY,
        "head_dim": 16,
        "moe_intermediate_size": 24,
        "n_routed_experts": 8,
        "num_experts_per_tok": 2,
        "n_shared_experts": 1,
        "n_group": 4,
        "topk_group": 2,
        "routed_scaling_factor": 1.5,
    },
    "vision_config": GLM_VISION,
    **GLM_TOKENS,
}
TILES = [[56, 56], [56, 112], [112, 56], [112, 112], [56, 168], [168, 56]]
CONFIGS["llava_onevision"] = {
    "text_config": {
        **{key: value for key, value in TEXT.items() if key != "rope_parameters"},
        "model_type": "qwen2",
    },
    "vision_config": {
        "model_type": "siglip_vision_model",
        "hidden_size": 32,
        "intermediate_size": 48,
        "num_hidden_layers": 3,
        "num_attention_heads": 2,
        "image_size": 56,
        "patch_size": 14,
        "vision_use_head": False,
    },
    "image_token_index": IDS["<|image_pad|>"],
    "video_token_index": IDS["<|video_pad|>"],
    "image_grid_pinpoints": TILES,
    "vision_aspect_ratio": "anyres_max_2",
}
CLASSES = {
    "glm4v": "Glm4vForConditionalGeneration",
    "glm46v": "Glm46VForConditionalGeneration",
    "glm4v_moe": "Glm4vMoeForConditionalGeneration",
    "llava_onevision": "LlavaOnevisionForConditionalGeneration",
    "qwen2_vl": "Qwen2VLForConditionalGeneration",
    "qwen2_5_vl": "Qwen2_5_VLForConditionalGeneration",
    "qwen3_vl": "Qwen3VLForConditionalGeneration",
    "qwen3_vl_moe": "Qwen3VLMoeForConditionalGeneration",
}
QWEN2_IMAGES = {
    "image_processor_type": "Qwen2VLImageProcessor",
    "size": {"shortest_edge": 28 * 28 * 4, "longest_edge": 28 * 28 * 64},
    "patch_size": 14,
    "temporal_patch_size": 2,
    "merge_size": 2,
}
QWEN2_VIDEOS = {
    **QWEN2_IMAGES,
    "video_processor_type": "Qwen2VLVideoProcessor",
    "size": {"shortest_edge": 28 * 28 * 4, "longest_edge": 28 * 28 * 16},
}
QWEN3_IMAGES = {
    **QWEN2_IMAGES,
    "size": {"shortest_edge": 32 * 32 * 4, "longest_edge": 32 * 32 * 64},
    "patch_size": 16,
    "image_mean": [0.5, 0.5, 0.5],
    "image_std": [0.5, 0.5, 0.5],
}
QWEN3_VIDEOS = {
    **QWEN3_IMAGES,
    "video_processor_type": "Qwen3VLVideoProcessor",
    "size": {"shortest_edge": 32 * 32 * 4, "longest_edge": 32 * 32 * 96},
}
GLM_IMAGES = {
    **QWEN2_IMAGES,
    "image_processor_type": "Glm4vImageProcessor",
    "size": {"shortest_edge": 28 * 28 * 8, "longest_edge": 28 * 28 * 128},
}
GLM_VIDEOS = {
    **QWEN2_IMAGES,
    "video_processor_type": "Glm4vVideoProcessor",
    "size": {"shortest_edge": 28 * 28 * 8, "longest_edge": 28 * 28 * 64},
}
GLM46_VIDEOS = {**GLM_VIDEOS, "video_processor_type": "Glm46VVideoProcessor"}
LLAVA_IMAGES = {
    "image_processor_type": "LlavaOnevisionImageProcessor",
    "size": {"height": 56, "width": 56},
    "image_grid_pinpoints": TILES,
    "image_mean": [0.5, 0.5, 0.5],
    "image_std": [0.5, 0.5, 0.5],
}
PREPROCESSORS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "glm4v": (GLM_IMAGES, GLM_VIDEOS),
    "glm46v": (GLM_IMAGES, GLM46_VIDEOS),
    "glm4v_moe": (GLM_IMAGES, GLM_VIDEOS),
    "llava_onevision": (LLAVA_IMAGES, LLAVA_IMAGES),
    "qwen2_vl": (QWEN2_IMAGES, QWEN2_VIDEOS),
    "qwen2_5_vl": (QWEN2_IMAGES, QWEN2_VIDEOS),
    "qwen3_vl": (QWEN3_IMAGES, QWEN3_VIDEOS),
    "qwen3_vl_moe": (QWEN3_IMAGES, QWEN3_VIDEOS),
}
"""Settings of images and of videos."""


@cache
def tiny_vision_checkpoint(model_type: str) -> Path:
    """Return the folder of a random float32 model of `model_type`. The folder is shared: copy it before you change it."""
    folder = Path(tempfile.mkdtemp(dir=_root(), prefix=f"{model_type}-"))
    write_vision_checkpoint(folder, model_type, CONFIGS[model_type], PREPROCESSORS[model_type])
    return folder


def write_vision_checkpoint(
    folder: Path, model_type: str, config: dict[str, Any], preprocessors: tuple[dict[str, Any], dict[str, Any]]
) -> None:
    """Write a random float32 model with its tokenizer, and its settings of images and of videos, into `folder`."""
    import transformers

    model = getattr(transformers, CLASSES[model_type])(transformers.AutoConfig.for_model(model_type, **config))
    randomise(model.to(torch.float32), 0)
    model.save_pretrained(folder)
    _write_tokenizer(folder, GLM_CHAT_TEMPLATE if model_type.startswith("glm") else CHAT_TEMPLATE)
    for name, settings in zip(("preprocessor", "video_preprocessor"), preprocessors, strict=True):
        (folder / f"{name}_config.json").write_text(json.dumps(settings))


def _write_tokenizer(folder: Path, chat_template: str = CHAT_TEMPLATE) -> None:
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE(vocab={text: index for index, text in enumerate(alphabet)}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(text, special=True) for text in SPECIAL_TOKENS])
    tokenizer.save(str(folder / "tokenizer.json"))
    settings = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": "<|endoftext|>",
        "eos_token": "<|im_end|>",
        "chat_template": chat_template,
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(settings, indent=2))


def picture(seed: int, width: int = 90, height: int = 70) -> PIL.Image.Image:
    """Return an RGB picture with structure at several scales."""
    generator = np.random.default_rng(seed)
    coarse = PIL.Image.fromarray(generator.integers(0, 256, (6, 7, 3), np.uint8)).resize((width, height))
    noise = generator.integers(0, 60, (height, width, 3), np.uint8)
    return PIL.Image.fromarray((np.asarray(coarse) // 2 + noise).astype(np.uint8))


class Reference:
    """transformers' model and processors for one checkpoint."""

    def __init__(self, model_type: str) -> None:
        import transformers
        from transformers import AutoImageProcessor, AutoTokenizer

        self.model_type = model_type
        self.folder = tiny_vision_checkpoint(model_type)
        self.image_id = (GLM_TOKENS if model_type.startswith("glm") else TOKENS)["image_token_id"]
        self.model = getattr(transformers, CLASSES[model_type]).from_pretrained(self.folder, dtype=torch.float32)
        self.model.eval()
        self.tokenizer = AutoTokenizer.from_pretrained(self.folder)
        self.image_processor = AutoImageProcessor.from_pretrained(self.folder, backend="pil")

    def inputs(self, messages: list[dict[str, Any]], images: list[PIL.Image.Image]) -> dict[str, torch.Tensor]:
        """Return the model's inputs for a conversation whose image parts are `images`, in order."""
        text = self.tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
        result: dict[str, torch.Tensor] = {}
        if images:
            result = dict(self.image_processor(images=[images], return_tensors="pt"))
            mark = self.tokenizer.convert_ids_to_tokens(self.image_id)
            pieces, counts = text.split(mark), self.num_tokens(result)
            text = pieces[0] + "".join(mark * count + piece for count, piece in zip(counts, pieces[1:], strict=True))
        ids = self.tokenizer(text, add_special_tokens=False, return_tensors="pt").input_ids
        types = (ids == self.image_id).long()
        inputs = {"input_ids": ids, **result}
        return inputs if self.model_type == "llava_onevision" else {**inputs, "mm_token_type_ids": types.int()}

    def num_tokens(self, images: dict[str, torch.Tensor]) -> list[int]:
        """Return the tokens of each image that the processor made."""
        if "image_grid_thw" in images:
            return (images["image_grid_thw"].prod(-1) // 4).tolist()
        from transformers.models.llava_onevision.processing_llava_onevision import LlavaOnevisionProcessor

        counting = LlavaOnevisionProcessor.__new__(LlavaOnevisionProcessor)
        counting.image_token, counting.num_image_tokens = "|", 16
        counting.vision_feature_select_strategy, counting.vision_aspect_ratio = "full", "anyres_max_2"
        counting.image_processor = self.image_processor
        return [len(counting.replace_image_token(images, index)) for index in range(len(images["image_sizes"]))]

    @torch.inference_mode()
    def greedy(self, inputs: dict[str, torch.Tensor], num_tokens: int) -> list[int]:
        """Return the most probable continuation, end tokens included."""
        output = self.model.generate(
            **inputs, max_new_tokens=num_tokens, eos_token_id=-1, do_sample=False, use_cache=True
        )
        return output[0, inputs["input_ids"].shape[1] :].tolist()

    @torch.inference_mode()
    def logits(self, inputs: dict[str, torch.Tensor]) -> torch.Tensor:
        """Return float32 [T, vocab]."""
        return self.model(**inputs).logits[0]
