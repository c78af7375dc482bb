"""Trains the recommender and writes its folder: `python train.py [--device cuda] [--epochs 60]`. Minutes on a CPU.

A Qwen3-shaped decoder of 4 layers reads users' films as tokens and learns to tell the next token. Knows nothing of serving.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path

import numpy as np
import torch
from movielens import load
from split import BEGIN, HISTORY, VOCAB_SIZE, Split, split
from transformers import Qwen3Config, Qwen3ForCausalLM

MODEL = Path(__file__).parent / "model"
LENGTH = 1 + 3 * (HISTORY + 1)
PAD = -100


def main() -> None:
    """Train, keep the epoch with the best validation, and write it."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--epochs", type=int, default=60)
    parser.add_argument("--out", type=Path, default=MODEL)
    given = parser.parse_args()
    torch.manual_seed(0)
    data = split(load())
    model = Qwen3ForCausalLM(_config()).to(given.device)
    best, weights = -1.0, model.state_dict()
    optimiser = torch.optim.AdamW(model.parameters(), lr=2e-3, weight_decay=0.1, betas=(0.9, 0.98))
    schedule = torch.optim.lr_scheduler.OneCycleLR(
        optimiser, 2e-3, epochs=given.epochs, steps_per_epoch=_num_steps(data)
    )
    random = np.random.default_rng(0)
    for epoch in range(given.epochs):
        start_s = time.monotonic()
        loss = _train_epoch(model, data, optimiser, schedule, random, given.device)
        if epoch % 3 == 2 or epoch == given.epochs - 1:
            score = _validation_score(model, data, given.device)
            print(
                f"epoch {epoch} loss {loss:.3f} validation {score:.4f} ({time.monotonic() - start_s:.1f} s)", flush=True
            )
            if score > best:
                best, weights = score, {name: tensor.clone() for name, tensor in model.state_dict().items()}
    model.load_state_dict(weights)
    write(model, data, given.out)


def write(model: Qwen3ForCausalLM, data: Split, folder: Path) -> None:
    """Write the checkpoint in bfloat16, a tokenizer of one word a token, and the catalogue without titles."""
    from tokenizers import Tokenizer, models, pre_tokenizers

    from xllm_framework.rec import ItemTable, write_items

    model.to(torch.bfloat16).save_pretrained(folder)
    words = ["<begin>", *(f"<{level}{code}>" for level in "abc" for code in range((VOCAB_SIZE - 1) // 3))]
    tokenizer = Tokenizer(models.WordLevel({word: index for index, word in enumerate(words)}, unk_token="<begin>"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": "PreTrainedTokenizerFast"}))
    write_items(folder / "items.bin", ItemTable(np.array(data.item_numbers, np.int64), data.tokens))


def _config() -> Qwen3Config:
    return Qwen3Config(
        vocab_size=VOCAB_SIZE,
        hidden_size=128,
        intermediate_size=384,
        num_hidden_layers=4,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=32,
        max_position_embeddings=512,
        tie_word_embeddings=True,
        attention_dropout=0.1,
        bos_token_id=BEGIN,
        eos_token_id=BEGIN,
    )


BATCH = 64


def _num_steps(data: Split) -> int:
    return -(-2 * len(data.train) // BATCH)


def _train_epoch(
    model: Qwen3ForCausalLM,
    data: Split,
    optimiser: torch.optim.Optimizer,
    schedule: torch.optim.lr_scheduler.LRScheduler,
    random: np.random.Generator,
    device: str,
) -> float:
    """Two windows of every history, at random places; returns the mean loss."""
    model.train()
    losses = []
    users = np.concatenate([random.permutation(len(data.train)) for _ in range(2)])
    for begin in range(0, len(users), BATCH):
        rows = torch.from_numpy(np.stack([_window(data, user, random) for user in users[begin : begin + BATCH]])).to(
            device
        )
        # Some tokens are read wrongly, so that no history is learnt by heart.
        noise = torch.rand(rows.shape, device=device) < 0.1
        inputs = torch.where(noise, torch.randint_like(rows, 1, VOCAB_SIZE), rows.clamp(min=0))
        with torch.autocast(device, torch.bfloat16, enabled=device == "cuda"):
            logits = model(input_ids=inputs[:, :-1]).logits
        loss = torch.nn.functional.cross_entropy(
            logits.float().flatten(0, 1), rows[:, 1:].flatten(), ignore_index=PAD, label_smoothing=0.05
        )
        optimiser.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimiser.step()
        schedule.step()
        losses.append(loss.item())
    return float(np.mean(losses))


def _window(data: Split, user: int, random: np.random.Generator) -> np.ndarray:
    history = data.train[user]
    end = int(random.integers(min(3, len(history)), len(history) + 1)) if random.random() < 0.5 else len(history)
    items = history[max(0, end - HISTORY - 1) : end]
    row = np.full(LENGTH, PAD, np.int64)
    tokens = [BEGIN, *data.tokens[items].flatten().tolist()]
    row[: len(tokens)] = tokens
    return row


@torch.no_grad()
def _validation_score(model: Qwen3ForCausalLM, data: Split, device: str) -> float:
    """Mean log-probability of the validation films, the negative loss that matters; higher is better."""
    model.eval()
    scores = []
    for begin in range(0, len(data.train), 128):
        users = range(begin, min(begin + 128, len(data.train)))
        prompts = [data.prompt(data.train[user]) + data.tokens[data.validation[user]].tolist() for user in users]
        rows = torch.zeros(len(prompts), max(map(len, prompts)), dtype=torch.int64)
        for row, prompt in enumerate(prompts):
            rows[row, : len(prompt)] = torch.tensor(prompt)
        logprobs = model(input_ids=rows.to(device)).logits.float().log_softmax(-1).cpu()
        for row, prompt in enumerate(prompts):
            places = torch.arange(len(prompt) - 4, len(prompt) - 1)
            scores.append(logprobs[row, places, rows[row, places + 1]].sum().item())
    return float(np.mean(scores))


if __name__ == "__main__":
    main()
