"""Writes docs/generation.md: an engine's steps that were timed on a GPU, beside what plans of RL count on.

Reads benchmarks/gpu: times of whole steps as `symconfig measure --generation --raw` writes them, and of their kernels.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import yaml
from written import ROOT, fill, table

from symconfig.descriptor.load import load_cluster, load_model
from symconfig.format import signed
from symconfig.measured.gpu.kernel_times import Generate, KernelTimes, read
from symconfig.runs.rl.engine import LAYER_S, SAMPLED_BYTES, STEP_S, UNCERTAIN
from symconfig.runs.rl.observed import Observed, compare, predicted_s

PAGE = Path(__file__).with_suffix(".md")
FOLDER = ROOT / "benchmarks" / "gpu"
SMALL, DENSE, EXPERTS = MODELS = "llama3.2-1b", "qwen3-8b", "qwen3-30b-a3b"
OTHER = "other"  # kernels that an engine has in another form


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


def parts() -> dict[str, str]:
    """Return the tables, and the numbers that sentences name."""
    rig = times().rig
    steps = ("model", "part", "sequences", "tokens each", "ms", "predicted", "off")
    return {
        "rig": str(rig),
        "product": rig.product,
        "layer": f"{1e6 * LAYER_S:.0f}",
        "sampled": f"{SAMPLED_BYTES:.0f}",
        "step": f"{1e3 * STEP_S:.0f}",
        "interval": f"{UNCERTAIN[0]} to {UNCERTAIN[1]}",
        "errors": table(("rows", "number", "mean error", "predicted against measured"), _errors()),
        "kernels": table(("step", *_KINDS, "predicted", "off"), _kernels()),
        "steps": "".join(f"{note}\n\n" for note in times().notes) + table(steps, _rows()),
    }


if __name__ == "__main__":
    fill(PAGE, parts())
