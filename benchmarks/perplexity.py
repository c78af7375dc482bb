"""Perplexity of a fixed text with each quantisation, beside the same weights dequantised to float32.

    python benchmarks/perplexity.py [--model FILE.gguf] [--threads N] [--check]

The model (the demo model unless named) is run as it is stored; then its weights are stored again in each type that the
`gguf` package can write, and run from there. Reference: the same file with `dtype` float32, where every product is
computed in float32 on dequantised weights; so what shows is the error of computing on quantised weights, not that of
having quantised them. int8 and int4 on the fly stand beside the weights they were made from: theirs is both together.
`--check` exits with 1 where a type computes more than 1 % worse than its reference.
"""

from __future__ import annotations

import argparse
import math
import sys
import tempfile
from pathlib import Path

from gguf import GGMLQuantizationType
from peers.weights import demo_file, write_copy

from xllm_runtime import LLM, SamplingParams

TEXT = Path(__file__).parent / "data" / "perplexity.txt"
KINDS = ("Q8_0", "Q5_1", "Q5_0", "Q4_1", "Q4_0", "F16", "BF16")
ON_THE_FLY = ("bf16", "int8", "int4")
MAX_RATIO = 1.01


def main() -> int:
    """Print a line a type and return the exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path, help="a GGUF file")
    parser.add_argument("--threads", type=int, default=0, help="compute threads; 0 takes one a core")
    parser.add_argument("--check", action="store_true", help="exit with 1 where a type is more than 1 %% worse")
    options = parser.parse_args()
    model = options.model or demo_file()
    print(f"{'weights':<28} {'perplexity':>10} {'float32':>10} {'ratio':>8}")
    reference = perplexity(model, options.threads, dtype="float32")
    ratios = [report("as stored", perplexity(model, options.threads), reference)]
    with tempfile.TemporaryDirectory() as folder:
        for kind in KINDS:
            path = Path(folder) / f"{kind}.gguf"
            write_copy(model, path, GGMLQuantizationType[kind])
            exact = perplexity(path, options.threads, dtype="float32")
            ratios.append(report(f"stored as {kind}", perplexity(path, options.threads), exact))
            path.unlink()
    for quantization in ON_THE_FLY:
        report(f"{quantization} on the fly", perplexity(model, options.threads, quantization=quantization), reference)
    worst = max(ratios)
    print(f"\nworst of those stored: {worst:.4f}, goal <= {MAX_RATIO}")
    return 1 if options.check and worst > MAX_RATIO else 0


def perplexity(model: Path, threads: int, **options: object) -> float:
    """Return the perplexity of the text under one model, all of it in one context."""
    with LLM(str(model), device="cpu", model_impl="native", threads=threads, **options) as llm:
        token_ids = llm.master.tokenizer.encode(TEXT.read_text(encoding="utf-8"), add_special_tokens=True)
        [result] = llm.generate([token_ids], SamplingParams(max_tokens=1, temperature=0.0, prompt_logprobs=0))
    if result.error is not None or result.prompt_logprobs is None:
        raise SystemExit(f"{model}: {result.error}")
    logprobs = [entry.logprob for entry in result.prompt_logprobs if entry is not None]
    return math.exp(-sum(logprobs) / len(logprobs))


def report(name: str, value: float, reference: float) -> float:
    """Print one line and return the ratio."""
    print(f"{name:<28} {value:>10.3f} {reference:>10.3f} {value / reference:>8.4f}", flush=True)
    return value / reference


if __name__ == "__main__":
    sys.exit(main())
