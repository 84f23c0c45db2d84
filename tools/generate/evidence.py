"""Tables of docs/evidence that are read or computed here. A function returns the parts of its page."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from symconfig.cost.machine import machine
from symconfig.descriptor.load import load_cluster, load_model
from symconfig.format import signed
from symconfig.runs.checkpoint.facts import FACTS
from symconfig.runs.checkpoint.table import Rule
from symconfig.runs.checkpoint.table import table as loading_rules
from symconfig.runs.rl.engine import LAYER_S, SAMPLED_BYTES, STEP_S, UNCERTAIN, Engine
from tools.pages import ROOT, table

# --- checkpoints ------------------------------------------------------------------------------------------------------


SEEN = ROOT / "tests" / "runs" / "checkpoint" / "seen.json"


def checkpoints() -> dict[str, str]:
    """Return the tables of kinds and cases, and the rules."""
    seen: dict[str, Any] = json.loads(SEEN.read_text(encoding="utf-8"))
    cases = ((name, f"`{case['kind']}`", case["verdict"], _said(case["refused"])) for name, case in seen.items())
    return {
        "kinds": table(("kind", "of", "what it is"), _kinds()),
        "count": str(len(seen)),
        "seen": table(("case", "kind", "answer", "without help the framework says"), cases),
        "rules": "\n".join(line for rule in loading_rules().rules for line in _loading_rule(rule)),
    }


def _kinds() -> Iterator[tuple[str, ...]]:
    for name, entry in loading_rules().formats.items():
        ways = f" Its optimizer: {', '.join(f'`{way}`' for way in entry.optimizer)}." if entry.optimizer else ""
        yield f"`{name}`", ", ".join(entry.framework), f"{entry.does}.{ways}"


def _said(text: str) -> str:
    """The start of what the framework said, in one line."""
    words = " ".join(text.split())
    short = words if len(words) <= 150 else f"{words[:70].rstrip()} … {words[-70:].lstrip()}"
    return f"`{short.replace('`', '')}`" if short else "it loads"


def _loading_rule(rule: Rule) -> Iterator[str]:
    otherwise = f" (else {rule.otherwise})" if rule.otherwise else ""
    yield f"### {rule.name}: {rule.verdict}{otherwise}"
    yield ""
    yield f"{_capital(rule.says.replace(': {changed}', ''))}."
    yield ""
    yield f"- of {', '.join(f'`{name}`' for name in rule.formats)}{_optimizer(rule)}"
    for what, since, until in (
        ("written by", rule.written_since, rule.written_until),
        ("read by", rule.read_since, rule.read_until),
    ):
        if since or until:
            yield f"- {what} {since or 'the first'} to {until or 'the last'}"
    for what, names in (("when one of these", rule.any_of), ("with", rule.all_of), ("without", rule.none_of)):
        if names:
            yield f"- {what}: {'; '.join(FACTS[name].does for name in names)}"
    for name in rule.how:
        if (conversion := loading_rules().conversions.get(name)) is not None:
            for row in conversion.rows:
                yield f"- {'old run' if row.run == 'old' else 'between'}: `{_capitals(row.words)}`"
        else:
            yield f"- new run: `{_capitals(loading_rules().tells[name].words)}`"
    if made := [loading_rules().conversions[name].makes for name in rule.how if name in loading_rules().conversions]:
        place = loading_rules().conversions[rule.how[-1]].at
        yield f"- new run: `{loading_rules().loads[made[-1]].words.replace('<<from>>', place)}`"
    if rule.across:
        yield "- also between the frameworks"
    if rule.lost:
        yield f"- starts anew: {'; '.join(loading_rules().lost[name] for name in rule.lost)}"
    yield f"- source: {rule.source}" + (f"; *seen*: {rule.seen}" if rule.seen else "")
    yield ""


def _capitals(words: str) -> str:
    return words.replace("<<from>>", "CHECKPOINT")


def _optimizer(rule: Rule) -> str:
    return f" with the optimizer as {', '.join(f'`{name}`' for name in rule.optimizer)}" if rule.optimizer else ""


def _capital(text: str) -> str:
    return text if text[:10].startswith(("torch", "train.py")) else text[:1].upper() + text[1:]


# --- generation -------------------------------------------------------------------------------------------------------


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


def generation() -> dict[str, str]:
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


# --- trained ----------------------------------------------------------------------------------------------------------


MODULE = {
    "t5_plain": "T5", "resnet_of_100k_classes": "ResNet, 100,000 classes", "gpt2_plain": "GPT-2", "llama": "Llama",
    "mixtral": "Mixtral", "bert": "BERT", "gemma2": "Gemma 2", "qwen3_moe": "Qwen 3 MoE", "opt": "OPT", "vit": "ViT",
    "convnext": "ConvNeXt",
}  # fmt: skip


def _trained_rows(found: dict[str, Any]) -> Iterator[tuple[str, ...]]:
    from tests.solve.partition.executed_cases import MODULES, MORE, REAL, dtype, files

    for case, (factory, ranks, one) in files(more=True).items():
        name = factory.removeprefix(MODULES)
        if name in (*REAL, *MORE):
            far, split = found[case], case.removeprefix(name + "_").rpartition("_")[0].replace("_", "-")
            gathered = len({each.node for each in one.executed.gathered})
            layouts = [(*ran.inputs, *ran.outputs) for ran in one.executed.ran.values()]
            cut = sum(any("Shard" in word for x in some for word in x.placements) for some in layouts)
            counts = map(str, (ranks, len(one.executed.ran), cut, gathered))
            apart = (f"{far[name]:.1e}" for name in ("loss", "gradients", "state"))
            yield MODULE[name], split, *counts, *apart, dtype(factory)


def trained() -> dict[str, str]:
    """Train every module of the tests from its file on CPU ranks, and return how far each is from one rank."""
    from tests.solve.partition.executed_cases import FOUR, MODULES, built, run, write

    with tempfile.TemporaryDirectory() as folder:
        found = run(write(Path(folder), more=True), more=True)
    spatial = built(MODULES + "wide_resnet", "spatial", FOUR).sentences()
    whole = ["Images of 64 x 64 cut by rows in a wide ResNet, on four ranks:", "", *(f"    {line}" for line in spatial)]
    head = ("module", "split", "ranks", "operators", "of those cut", "run whole", "loss", "gradients", "weights", "in")
    return {"steps": table(head, _trained_rows(found)), "whole": "\n".join(whole)}
