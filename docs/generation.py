"""Writes docs/generation.md: an engine's steps that were timed on a GPU, beside what plans of RL count on.

Reads benchmarks/gpu: times of whole steps as `symconfig measure --generation --raw` writes them, and of their kernels.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import yaml

from symconfig.descriptor.load import load_cluster, load_model
from symconfig.format import signed
from symconfig.measured.gpu.kernel_times import Generate, KernelTimes, read
from symconfig.runs.rl.engine import LAYER_S, SAMPLED_BYTES, STEP_S, UNCERTAIN
from symconfig.runs.rl.observed import Observed, compare, predicted_s

COMMAND = "make generation"
DOCS = Path(__file__).resolve().parent
FOLDER = DOCS.parent / "benchmarks" / "gpu"
SMALL, DENSE, EXPERTS = MODELS = "llama3.2-1b", "qwen3-8b", "qwen3-30b-a3b"
OTHER = "other"  # kernels that an engine has in another form
_HEAD = """# Generation on a GPU

Written by `{command}`. Plans of reinforcement learning predict the time of an engine's steps ([rl.md](rl.md)); here
the prediction is held against steps that `symconfig measure --generation MODEL` timed on one GPU: {rig}. They are of
random weights in bf16: joined projections, keys and values of all sequences in memory, attention by PyTorch's
`scaled_dot_product_attention` (the faster of flash and cuDNN), fused norms, turns and gates, a step of decoding as one
captured graph, a word drawn of each sequence. Tests hold this decoder's logits against Transformers'.

A step is predicted as the sum of

- products: their weights at the rate of a copy, or their FLOP at that of large products, whichever takes longer;
- keys and values of all contexts at the rate of a copy; of prompts, attention's FLOP;
- activations that kernels between products read and write, at the rate of a training's such kernels;
- {layer:.0f} us a layer, in which its kernels begin and end;
- {sampled:.0f} bytes of each logit, for drawing.

Only the constant of a layer and how far reading and computing overlap are fitted, to the rows of {small} and every
other one of {dense}; the other rows of {dense}, and all of {experts}, were not seen by the fit. An engine's own
{step:.0f} ms between steps are left out of both.

## Errors

"""
_EXPERTS = """
{experts} is slower than predicted since its experts are PyTorch's: sort, search, gather, a grouped product, scatter
and sum, in some 20 kernels a layer, where an engine has a few of its own. Their time is no engine's and not in the
model. What else its steps take, and those of the others, by the profiler, in ms (keys' copies and what is around
sampling are in *{other}*, too; the last column compares the prediction with all kernels, of {experts} with all but
*{other}*):

"""
_TAIL = """
## Not measured

- An engine itself: vLLM's or SGLang's scheduler (the {step:.0f} ms of a step are assumed), keys in pages,
  FlashAttention-3, kernels of experts, sampling with top-k or top-p, log-probabilities of the words.
- Tensor parallelism's reductions, several ranks of data, 8-bit weights, latent attention, sliding windows.
- Another GPU than {product}: the share of its memory's bandwidth that a copy reaches is taken for all of them.

The interval of a plan's generation, {low} to {high} of the predicted time, is of these: the errors above, and an engine
that needs 0.5 to 6 ms between steps of 10 ms.
"""


def times() -> KernelTimes:
    """Read the steps' times."""
    return read(FOLDER / "generation-h100.yaml")


def points() -> tuple[Observed, ...]:
    """Return the timed steps with their predictions."""
    return compare(times(), [load_model(name) for name in MODELS], load_cluster("h100"))


def parted(every: Sequence[Observed]) -> dict[str, list[Observed]]:
    """Return the timed steps in parts: those that constants are fitted to, and others."""
    steps = [point for point in every if point.what.part != "sample"]
    of = {name: [point for point in steps if point.row.model == name] for name in MODELS}
    held = of[DENSE][1::2]
    return {
        f"fitted: {SMALL}, half of {DENSE}": of[SMALL] + of[DENSE][::2],
        f"decoding of {DENSE}, other half": [point for point in held if point.what.part == "decode"],
        f"prompts of {DENSE}, other half": [point for point in held if point.what.part == "prefill"],
        f"decoding of {EXPERTS}": [point for point in of[EXPERTS] if point.what.part == "decode"],
        f"prompts of {EXPERTS}": [point for point in of[EXPERTS] if point.what.part == "prefill"],
        "sampling alone": [point for point in every if point.what.part == "sample"],
    }


def off(point: Observed) -> float:
    """Return the prediction's error, as a share of the measured time."""
    assert point.predicted_s is not None
    return point.predicted_s / point.row.seconds - 1


def kernels() -> list[dict[str, Any]]:
    """Return the steps whose kernels were timed, each with microseconds by kind, and the predicted ones of all."""
    rows: list[dict[str, Any]] = yaml.safe_load((FOLDER / "generation-h100-kernels.yaml").read_text(encoding="utf-8"))
    for row in rows:
        model = load_model(row["model"])
        size = {name: row[name] for name in ("part", "sequences", "context")}
        what = Generate(**size, layers=model.num_hidden_layers)
        row["predicted"] = 1e6 * predicted_s(what, model, load_cluster("h100"))
    return rows


def _table(head: Sequence[str], rows: Iterator[Sequence[str]]) -> str:
    lines = (head, ["---"] * len(head), *rows)
    return "".join(f"| {' | '.join(cells)} |\n" for cells in lines)


def _errors() -> Iterator[list[str]]:
    for name, of in parted(points()).items():
        errors = [off(point) for point in of]
        mean = sum(map(abs, errors)) / len(errors)
        yield [name, str(len(of)), f"{100 * mean:.1f} %", f"{signed(min(errors), 0)} to {signed(max(errors), 0)}"]


def _kernels() -> Iterator[list[str]]:
    for row in kernels():
        ours = sum(us for name, us in row["kernels"].items() if name != OTHER or row["model"] != EXPERTS)
        words = f"{row['model']}: {row['part']}, {row['sequences']} x {row['context']:,}"
        named = [f"{row['kernels'][name] / 1e3:.2f}" if name in row["kernels"] else "" for name in _KINDS]
        yield [words, *named, f"{row['predicted'] / 1e3:.2f}", signed(row["predicted"] / ours - 1, 0)]


_KINDS = ("experts' products", "products", "attention", "norms, turns, gates", "sampling", OTHER)


def _rows() -> Iterator[list[str]]:
    for point in points():
        what, row = point.what, point.row
        assert point.predicted_s is not None
        cells = [row.model or "", what.part, str(what.sequences), f"{what.context:,}"]
        yield [*cells, f"{1e3 * row.seconds:.3f}", f"{1e3 * point.predicted_s:.3f}", signed(off(point), 0)]


def page() -> str:
    """Return docs/generation.md."""
    rig = times().rig
    numbers = {"step": 1e3 * STEP_S, "layer": 1e6 * LAYER_S, "sampled": SAMPLED_BYTES}
    names = {"small": SMALL, "dense": DENSE, "experts": EXPERTS, "command": COMMAND, "rig": rig, "other": OTHER}
    parts = (
        _HEAD.format(**numbers, **names),
        _table(("rows", "number", "mean error", "predicted against measured"), _errors()),
        _EXPERTS.format(**names),
        _table(("step", *_KINDS, "predicted", "off"), _kernels()),
        "\n## Steps\n\n",
        *(f"{note}\n\n" for note in times().notes),
        _table(("model", "part", "sequences", "tokens each", "ms", "predicted", "off"), _rows()),
        _TAIL.format(**numbers, product=rig.product, low=UNCERTAIN[0], high=UNCERTAIN[1]),
    )
    return "".join(parts)


if __name__ == "__main__":
    (DOCS / "generation.md").write_text(page(), encoding="utf-8")
