"""Writes docs/generation.md: an engine's steps that were timed on a GPU, beside what plans of RL count on.

Reads benchmarks/gpu: times of whole steps, and of their kernels.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import yaml
from written import ROOT, fill, table

from symconfig.cost.machine import machine
from symconfig.descriptor.load import load_cluster, load_model
from symconfig.format import signed
from symconfig.runs.rl.engine import LAYER_S, SAMPLED_BYTES, STEP_S, UNCERTAIN, Engine

PAGE = Path(__file__).with_suffix(".md")
FOLDER = ROOT / "benchmarks" / "gpu"
SMALL, DENSE, EXPERTS = MODELS = "llama3.2-1b", "qwen3-8b", "qwen3-30b-a3b"
OTHER = "other"  # kernels that an engine has in another form


@dataclass(frozen=True, slots=True)
class Step:
    """A timed part of generation, and the seconds that plans count on: one more word of each of so many sequences of
    `context` tokens with its sampling (decode), prompts of `context` tokens (prefill), or that sampling alone (sample).
    """

    model: str
    part: str
    sequences: int
    context: int
    seconds: float
    predicted_s: float

    @property
    def off(self) -> float:
        """Return the prediction's error, as a share of the measured time."""
        return self.predicted_s / self.seconds - 1


def predicted_s(model: str, part: str, sequences: int, context: int) -> float:
    """Return the seconds that the engine's model gives this part on one H100, without its scheduler."""
    engine = Engine(load_model(model), machine(load_cluster("h100"), "bf16"), 1)
    if part == "prefill":
        return engine.prefilling_s(float(sequences * context), float(context))
    count = np.array([float(sequences)])
    seconds = engine.sampling_s(count) if part == "sample" else engine.decoding_s(count, np.array([float(context)]))
    return float(seconds[0])


@cache
def times() -> dict[str, Any]:
    """Read the steps' times: rig, notes and rows."""
    read: dict[str, Any] = yaml.safe_load((FOLDER / "generation-h100.yaml").read_text(encoding="utf-8"))
    return read


def points() -> tuple[Step, ...]:
    """Return the timed steps with their predictions."""
    sizes = ("model", "part", "sequences", "context")
    return tuple(Step(**row, predicted_s=predicted_s(*(row[name] for name in sizes))) for row in times()["rows"])


def parted(every: Sequence[Step]) -> dict[str, list[Step]]:
    """Return the timed steps in parts: those that constants are fitted to, and others."""
    steps = [point for point in every if point.part != "sample"]
    of = {name: [point for point in steps if point.model == name] for name in MODELS}
    held = of[DENSE][1::2]
    return {
        f"fitted: {SMALL}, half of {DENSE}": of[SMALL] + of[DENSE][::2],
        f"decoding of {DENSE}, other half": [point for point in held if point.part == "decode"],
        f"prompts of {DENSE}, other half": [point for point in held if point.part == "prefill"],
        f"decoding of {EXPERTS}": [point for point in of[EXPERTS] if point.part == "decode"],
        f"prompts of {EXPERTS}": [point for point in of[EXPERTS] if point.part == "prefill"],
        "sampling alone": [point for point in every if point.part == "sample"],
    }


def kernels() -> list[dict[str, Any]]:
    """Return the steps whose kernels were timed, each with microseconds by kind, and the predicted ones of all."""
    rows: list[dict[str, Any]] = yaml.safe_load((FOLDER / "generation-h100-kernels.yaml").read_text(encoding="utf-8"))
    for row in rows:
        row["predicted"] = 1e6 * predicted_s(row["model"], row["part"], row["sequences"], row["context"])
    return rows


def _errors() -> Iterator[list[str]]:
    for name, of in parted(points()).items():
        errors = [point.off for point in of]
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
        cells = [point.model, point.part, str(point.sequences), f"{point.context:,}"]
        yield [*cells, f"{1e3 * point.seconds:.3f}", f"{1e3 * point.predicted_s:.3f}", signed(point.off, 0)]


def parts() -> dict[str, str]:
    """Return the tables, and the numbers that sentences name."""
    rig = times()["rig"]
    software = f"driver {rig['driver']}, CUDA {rig['cuda']}, torch {rig['torch']}, {rig['date']}"
    steps = ("model", "part", "sequences", "tokens each", "ms", "predicted", "off")
    return {
        "rig": f"{rig['product']}, {software}",
        "product": rig["product"],
        "layer": f"{1e6 * LAYER_S:.0f}",
        "sampled": f"{SAMPLED_BYTES:.0f}",
        "step": f"{1e3 * STEP_S:.0f}",
        "interval": f"{UNCERTAIN[0]} to {UNCERTAIN[1]}",
        "errors": table(("rows", "number", "mean error", "predicted against measured"), _errors()),
        "kernels": table(("step", *_KINDS, "predicted", "off"), _kernels()),
        "steps": "".join(f"{note}\n\n" for note in times()["notes"]) + table(steps, _rows()),
    }


if __name__ == "__main__":
    fill(PAGE, parts())
