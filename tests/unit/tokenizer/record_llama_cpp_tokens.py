# ruff: noqa: SIM905  # word lists read better as text
"""Records how llama.cpp tokenises mixed random strings with the embedded demo model's vocabulary.

Run it with an interpreter that has llama-cpp-python (version 0.3.36 made the file that is checked in):

    python record_llama_cpp_tokens.py SmolLM2-135M-Instruct.Q4_1.gguf data

It writes llama_cpp_tokens.json.gz, [[string, ids], ...], and llama_cpp_word_rules.json.gz, {rule: [ids, ...]} for the
first strings with the same vocabulary and other pre-tokenizers.
"""

from __future__ import annotations

import gzip
import json
import random
import struct
import sys
import tempfile
from pathlib import Path

import llama_cpp

NUM_STRINGS = 3000
NUM_STRINGS_PER_RULE = 400
WORD_RULES = ["default", "gpt-2", "llama-bpe", "qwen2", "tekken", "gpt-4o"]
ALIGNMENT = 32
WORDS = """the of and to in is you that it he was for on are with as his they at be this from have or by one had not but
what all were when we there can an your which their said if do will each about how up out them then she many some so these
would other into has more her two like him see time could no make than first been its who now people my made over did down
def return import class lambda self None True print range len str int float async await SELECT FROM WHERE JOIN
don't I'll we've it's they're I'd I'm DON'T It'S naïve café Straße über Ångström élève""".split()
OTHER_SCRIPTS = """客单价 你好世界 深度学习 こんにちは カタカナ 한국어 Привет мир Ελληνικά עברית العربية हिन्दी ไทย தமிழ் ქართული
Việt Tiếng ÆØÅ ñandú""".split()
SYMBOLS = (
    list("!?.,;:'\"()[]{}<>@#$%^&*-_=+/\\|~`")
    + "… — – “ ” ‘ ’ « » € £ ¥ § ¶ © ® ™ ° ± × ÷ ≤ ≥ ≠ ∞ √ ∑ → ← ↔ ■ ●".split()
)
EMOJI = ["😀", "🎉", "👍🏽", "👩‍👩‍👧‍👦", "🇫🇷", "❤️", "🏳️‍🌈", "🤷🏿‍♂️", "☃", "𝒳", "𐍈"]
SPACES = [
    " ",
    " ",
    " ",
    "  ",
    "   ",
    "\n",
    "\n\n",
    "\t",
    "\r\n",
    " \n",
    "\n ",
    "\u00a0",
    "\u3000",
    "\u2003",
    "        ",
]
COMBINED = ["e\u0301", "a\u0308\u0323", "n\u0303", "\u0301", "\u200d", "\u200b", "\ufeff", "x\u0336"]
NUMBERS_LIKE = ["½", "²", "Ⅷ", "٣٤٥", "一二三", "①", "3.14", "1,000,000", "0x1F", "12:34", "2026-11-29"]
SPECIAL = ["<|im_start|>", "<|im_end|>", "<|endoftext|>", "<|im_start", "<|", "|>", "<repo_name>", "<file_sep>"]


def piece(rng: random.Random) -> str:
    """Return one short random piece of text."""
    kind = rng.choices(range(10), weights=[30, 10, 10, 6, 14, 4, 10, 3, 3, 3])[0]
    if kind == 6:
        return str(rng.randrange(10 ** rng.randint(1, 12)))
    if kind == 8:
        return "".join(
            chr(rng.choice([*range(0x20, 0xD800), *range(0xE000, 0xFFFE)])) for _ in range(rng.randint(1, 4))
        )
    if kind == 9:
        return rng.choice("abcZ 7é\n") * rng.randint(2, 40)
    pools = {0: WORDS, 1: OTHER_SCRIPTS, 2: SYMBOLS, 3: EMOJI, 4: SPACES, 5: COMBINED, 7: SPECIAL}
    text = rng.choice(pools.get(kind, NUMBERS_LIKE))
    return rng.choice([text, text.upper(), text.title()]) if kind == 0 and rng.random() < 0.3 else text


def mixed_string(rng: random.Random) -> str:
    """Return a random string of pieces, about half of them set apart by spaces."""
    parts = [rng.choice(NUMBERS_LIKE) if rng.random() < 0.05 else piece(rng) for _ in range(rng.randint(1, 12))]
    return "".join(part + (" " if rng.random() < 0.5 else "") for part in parts)


def with_word_rule(model: bytes, rule: str) -> bytes:
    """Return the model's file with another pre-tokenizer; its name is filled up so that all tensors stay aligned."""
    changed = replace_string(model, "tokenizer.ggml.pre", "smollm", rule)
    name = "Smollm2 135M 8k Lc100K Mix1 Ep2"
    return replace_string(changed, "general.name", name, name + " " * ((len(model) - len(changed)) % ALIGNMENT))


def replace_string(model: bytes, key: str, old: str, new: str) -> bytes:
    """Return the file with another value of one metadata string."""
    before, after = (encoded(key) + struct.pack("<I", 8) + encoded(value) for value in (old, new))
    assert model.count(before) == 1
    return model.replace(before, after)


def encoded(text: str) -> bytes:
    """Return a string as GGUF writes it."""
    return struct.pack("<Q", len(text.encode())) + text.encode()


def tokens_of(model_path: Path, strings: list[str]) -> list[list[int]]:
    """Return llama.cpp's ids."""
    vocabulary = llama_cpp.Llama(str(model_path), vocab_only=True, verbose=False)
    return [vocabulary.tokenize(text.encode(), add_bos=False, special=True) for text in strings]


def write(path: Path, recorded: object) -> None:
    """Write compressed JSON that is the same for the same content."""
    content = json.dumps(recorded, ensure_ascii=False, separators=(",", ":")).encode()
    path.write_bytes(gzip.compress(content, 9, mtime=0))


def main(model_path: Path, folder: Path) -> None:
    """Record both files."""
    rng = random.Random(20261129)
    strings = [mixed_string(rng) for _ in range(NUM_STRINGS)]
    recorded = [list(pair) for pair in zip(strings, tokens_of(model_path, strings), strict=True)]
    write(folder / "llama_cpp_tokens.json.gz", recorded)
    model = model_path.read_bytes()
    by_rule = {}
    with tempfile.TemporaryDirectory() as scratch:
        changed_path = Path(scratch) / "model.gguf"
        for rule in WORD_RULES:
            changed_path.write_bytes(with_word_rule(model, rule))
            by_rule[rule] = tokens_of(changed_path, strings[:NUM_STRINGS_PER_RULE])
    write(folder / "llama_cpp_word_rules.json.gz", by_rule)


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
