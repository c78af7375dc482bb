"""Draws what `gpu.py --record` wrote beside the roofs of an H200: arithmetic reached over arithmetic a byte of memory.

    python benchmarks/gpu_roofline.py RECORD.json docs/images/gpu_roofline.svg

A point on the slope moves its bytes as fast as memory can; one on the level multiplies as fast as the tensor cores can (Williams,
Waterman, Patterson: Roofline, 2009). Needs matplotlib.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from gpu import BYTES_A_SECOND, FLOPS_A_SECOND

MARKS = {"decode": "o", "prefill": "s"}
COLOURS = {"qwen3-0.6b": "#4c9f70", "qwen3-8b": "#2b6cb0", "qwen3-30b-a3b": "#b7532b"}


def draw(record: Path, picture: Path) -> None:
    """Write `picture`, in the format of its name."""
    import matplotlib as mpl

    mpl.use("Agg")
    mpl.rcParams["svg.fonttype"] = "none"
    mpl.rcParams["svg.hashsalt"] = "gpu_roofline"
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(7.2, 4.2))
    edge = FLOPS_A_SECOND / BYTES_A_SECOND
    roof = [(0.5, 0.5 * BYTES_A_SECOND), (edge, FLOPS_A_SECOND), (1e4, FLOPS_A_SECOND)]
    axes.loglog([x for x, _ in roof], [y / 1e12 for _, y in roof], color="black", linewidth=1)
    for row in json.loads(record.read_text()):
        intensity, reached = row["flops"] / row["num_bytes"], row["flops"] / row["ms"] / 1e9
        axes.plot(intensity, reached, MARKS[row["what"]], color=COLOURS[row["model"]], markersize=5)
        axes.annotate(row["shape"], (intensity, reached), xytext=(5, -8), textcoords="offset points", fontsize=6)
    for model, colour in COLOURS.items():
        axes.plot([], [], "o", color=colour, label=f"{model}, decode")
        axes.plot([], [], "s", color=colour, label=f"{model}, prefill")
    axes.set_xlabel("operations a byte that must come from memory")
    axes.set_ylabel("TFLOP/s reached")
    axes.set_title("Steps of one H200 under 4.3 TB/s and 790 TFLOP/s", fontsize=10)
    axes.legend(fontsize=7, loc="lower right")
    axes.grid(visible=True, which="major", linewidth=0.3)
    figure.tight_layout()
    figure.savefig(picture, metadata={"Date": None} if picture.suffix == ".svg" else None)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("record", type=Path, help="what gpu.py --record wrote")
    parser.add_argument("picture", type=Path, help="the file to draw")
    options = parser.parse_args()
    draw(options.record, options.picture)
