"""Draws 200 digits with the model of this folder and lets a classifier that has never seen a drawn one read them.

uv run --group dit-digits python examples/dit_digits/evaluate.py
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
from PIL import Image
from sklearn.datasets import load_digits
from sklearn.svm import SVC

from xllm_runtime import LLM

NAMES = ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine")
PER_DIGIT = 20


def main() -> None:
    """Draw, read and print the share that is read as what was asked for."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", type=Path, default=Path(__file__).parent / "model")
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--guidance", type=float, default=2.0)
    arguments = parser.parse_args()
    real = load_digits()
    classifier = SVC(gamma=0.001, C=10.0).fit(real.data, real.target)
    with LLM(str(arguments.model), max_requests_per_batch=20) as model:
        outputs = model.generate_images(
            list(NAMES),
            num_images=10,
            seed=1,
            num_inference_steps=arguments.steps,
            guidance_scale=arguments.guidance,
        ) + model.generate_images(
            list(NAMES),
            num_images=10,
            seed=1001,
            num_inference_steps=arguments.steps,
            guidance_scale=arguments.guidance,
        )
    asked = [number % 10 for number, output in enumerate(outputs) for _ in output.images]
    drawn = np.stack([_as_data(image.to_pil()) for output in outputs for image in output.images])
    right = classifier.predict(drawn) == asked
    print(f"{right.sum()} of {len(right)} drawn digits are read as what was asked for ({right.mean():.1%}).")
    for digit, name in enumerate(NAMES):
        print(f"  {name}: {right[np.array(asked) == digit].sum()} of {PER_DIGIT}")


def _as_data(image: Image.Image) -> np.ndarray:
    """Return a drawn image as scikit-learn has its digits: 64 numbers from 0 to 16."""
    small = image.convert("L").resize((8, 8), Image.Resampling.BOX)
    return np.asarray(small, np.float64).reshape(64) / 255.0 * 16.0


if __name__ == "__main__":
    main()
