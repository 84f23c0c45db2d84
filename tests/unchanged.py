"""Record what symconfig answers to some 700 commands, and say which answers differ after a change of the code.

    python -m tests.unchanged record FOLDER [--every N]   # before the change; N: only each N-th case
    python -m tests.unchanged compare FOLDER              # after it: exit 1 where an answer differs

A case is one command line. Recorded are its exit code, what it prints and every byte that it writes: plans of every zoo
model on every cluster for every target, precision, pin, release and objective; audits of the corpus and of the written
launch scripts; the scores of `validate` on the runs in TRUTH. This file imports nothing of symconfig but its command
line, so that it runs on any commit: PYTHONPATH chooses which.
"""

from __future__ import annotations

import argparse
import contextlib
import difflib
import io
import itertools
import json
import math
import multiprocessing
import os
import re
import shutil
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import yaml

ROOT = Path(__file__).resolve().parent.parent
TRUTH = ROOT.parent / "shared" / "truth"
CORPUS = next((ROOT / "tests").rglob("audit/corpus"))
BACKENDS = ("megatron", "deepspeed")
TARGETS = (
    "accelerate",
    "bridge",
    "deepspeed",
    "llamafactory",
    "megatron",
    "model-args",
    "ms-swift",
    "transformers",
)
RELEASES = ("core_v0.12", "core_v0.13", "core_v0.14", "core_v0.15", "core_v0.16", "core_v0.17", "core_v0.18", "dev")
# Billions of parameters, where the name does not say: only the number of GPUs to plan for depends on it.
BILLIONS = {"deepseek-v3": 671, "mixtral-8x7b": 47, "mixtral-8x22b": 141, "gpt-oss-120b": 117}
PINS = (
    ("tp=2",),
    ("pp=2..4",),
    ("recompute=full",),
    ("zero=3",),
    ("cp=2",),
    ("micro_batch=1", "vpp=..2"),
    ("tp=1", "pp=1"),
)
SHOWN_LINES = 12


@dataclass(frozen=True, slots=True)
class Case:
    """One command. name: of its folder in the record; out: whether it writes files with --out."""

    name: str
    words: tuple[str, ...]
    out: bool = False


def models() -> list[str]:
    return sorted(path.stem for path in (ROOT / "model_zoo" / "models").glob("*.yaml"))


@cache
def clusters() -> dict[str, tuple[float, int]]:
    """Bytes of a GPU and GPUs of a node, by name."""
    found = {}
    for path in sorted((ROOT / "model_zoo" / "clusters").glob("*.yaml")):
        data = yaml.safe_load(path.read_text(encoding="utf-8"))
        found[path.stem] = float(data["gpu"]["memory_bytes"]["value"]), int(data["gpus_per_node"])
    return found


def _gpus(model: str, memory_bytes: float, per_node: int) -> int:
    """Whole nodes, a power of two of them, where 20 bytes a parameter fit."""
    billions = BILLIONS.get(model) or float(re.search(r"([\d.]+)b", model)[1])  # type: ignore[index]
    per_parameter = 3 if "lora" in model else 20
    return per_node * 2 ** max(0, math.ceil(math.log2(per_parameter * billions * 1e9 / memory_bytes / per_node)))


def _plan(name: str, model: str, cluster: str, *more: str, gpus: str = "", batch: int = 256) -> Case:
    """A plan on the fewest GPUs that are sure to hold it."""
    count = gpus or str(_gpus(model, *clusters()[cluster]))
    words = (
        "plan",
        "--model",
        model,
        "--cluster",
        cluster,
        "--gpus",
        count,
        "--global-batch-size",
        str(batch),
        "--json",
    )
    return Case(f"plan-{name}-{model}-{cluster}".replace("=", "").replace("..", "-"), (*words, *more), out=True)


def plans() -> Iterator[Case]:
    """Several hundred, each zoo model and cluster in every role."""
    names, machines = models(), list(clusters())
    ordinary = [name for name in names if "lora" not in name]
    for index, model in enumerate(names):
        for step in range(6):
            cluster = machines[(2 * index + 5 * step + step // 3) % len(machines)]
            for backend in BACKENDS if model in ordinary else ("deepspeed",):
                yield _plan(f"{backend}-{step}", model, cluster, "--backend", backend)
    for index, model in enumerate(ordinary):
        yield _plan("fp8", model, ("h100", "h200", "b200")[index % 3], "--precision", "fp8")
        yield _plan(
            "blackwell",
            model,
            ("b200", "gb200-nvl72", "gb300-nvl72")[index % 3],
            "--precision",
            ("mxfp8", "nvfp4", "auto")[index // 2 % 3],
        )
        cluster = machines[(index + 3) % len(machines)]
        for number in (0, 3):
            pins = PINS[(index + number) % len(PINS)]
            yield _plan(
                f"pins-{pins[0]}",
                model,
                cluster,
                "--backend",
                BACKENDS[(index + number) % 2],
                *itertools.chain.from_iterable(("--pin", pin) for pin in pins),
            )
        yield _plan(
            "release", model, ("a100-80gb", "h100")[index % 2], "--megatron-version", RELEASES[index % len(RELEASES)]
        )
    for index, target in enumerate(TARGETS):
        for number in range(6):
            model = names[(5 * index + 4 * number + number // 5) % len(names)]
            yield _plan(f"target-{target}", model, machines[(3 * index + number) % len(machines)], "--target", target)
    for index, model in enumerate(names[::3]):
        cluster = machines[(4 * index) % len(machines)]
        yield _plan("symtensor", model, cluster, "--objective", "symtensor")
        yield _plan("unfused", model, cluster, "--attention", "unfused", "--seq-length", "2048")
        yield _plan("sft", model, cluster, "--task", "sft", "--top", "2")
    for model, cluster in (("llama3.1-8b", "h100"), ("mixtral-8x7b", "a100-80gb"), ("qwen2.5-7b", "b200")):
        yield _plan("auto", model, cluster, gpus="auto", batch=64)
        yield _plan("tight", model, cluster, gpus="8", batch=7)
        yield _plan("imbalance", model, cluster, "--expert-imbalance", "1.3", "--memory-margin", "0.1")


def audits(record: Path) -> Iterator[Case]:
    """The corpus, and launch scripts of each tenth recorded plan; some with a search for a better plan."""
    for number, entry in enumerate(yaml.safe_load((CORPUS / "expected.yaml").read_text(encoding="utf-8"))):
        given = dict(entry.get("asked") or {})
        words = ["audit", str(CORPUS / entry["file"]), "--json", "--cluster", str(given.get("cluster", "h100"))]
        for name in ("gpus", "model", "seq_length", "vocab_size", "megatron_version"):
            if given.get(name) is not None:
                value = given[name]
                path = CORPUS / str(value)
                words += [
                    "--" + name.replace("_", "-"),
                    str(path) if name == "model" and path.is_file() else str(value),
                ]
        for name, value in (entry.get("variables") or {}).items():
            words += ["--set", f"{name}={value}"]
        if number % 8:
            words.append("--no-plan")
        yield Case(f"audit-corpus-{number:03}", (*words, "--", *map(str, entry.get("extra") or ())))
    for number, folder in enumerate(sorted(record.glob("plan-*/out"))):
        cluster = next(name for name in sorted(clusters(), key=len, reverse=True) if folder.parent.name.endswith(name))
        for file in ("launch.sh", "ds_config.json"):
            if number % 5 == 0 and (folder / file).is_file():
                model = next((name for name in models() if f"-{name}-{cluster}" in folder.parent.name), None)
                asked = ("--model", str(model), "--gpus", "64", "--seq-length", "4096") if file != "launch.sh" else ()
                yield Case(
                    f"audit-own-{number:03}-{file}",
                    ("audit", str(folder / file), "--json", "--no-plan", "--cluster", cluster, *asked),
                )


def scores() -> Iterator[Case]:
    for path in sorted(TRUTH.glob("*.yaml")):
        yield Case(f"validate-{path.stem}", ("validate", str(path), "--json"))


def _answer(case: Case, folder: Path, source: Path) -> None:
    """Run it below `folder`: out/ is what it writes, answer.txt what it prints and how it ends."""
    try:
        from symconfig.cli.main import main
    except ImportError:  # a commit before commands had a folder
        from symconfig.cli import main  # type: ignore[attr-defined, no-redef]

    folder.mkdir(parents=True)
    words = [*case.words]
    if case.out:
        words += ["--out", str(folder / "out")]
    told, said = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(told), contextlib.redirect_stderr(said):
        code = main(words)
    text = f"exit {code}\n--- stderr\n{said.getvalue()}--- stdout\n{told.getvalue()}"
    text = re.sub(r'"seconds": [\d.e-]+', '"seconds": 0', text)
    text = re.sub(r"\b[\d.]+ s(?= for| of search|\))", "0 s", text)
    # Progress is written by the clock.
    text = re.sub(r"^[\d,]+ candidates weighed: \d+ %\n", "", text, flags=re.MULTILINE)
    places = ((folder, "FOLDER"), (folder.parent, "RECORD"), (source, "RECORD"), (CORPUS, "CORPUS"), (ROOT, "ROOT"))
    for path, name in (*places, (TRUTH, "TRUTH")):
        text = text.replace(str(path), name)
    (folder / "answer.txt").write_text(text, encoding="utf-8")


def _work(given: tuple[Case, Path, Path]) -> str:
    case, record, source = given
    try:
        _answer(case, record / case.name, source)
    except BaseException as error:
        return f"{case.name}: {type(error).__name__}: {error}"
    return ""


def record(folder: Path, every: int, source: Path | None = None) -> None:
    """Answer all cases below `folder`. source: the record whose launch scripts are audited, itself by default."""
    os.environ["COLUMNS"] = "120"
    with multiprocessing.get_context("spawn").Pool(2) as pool:
        for number, cases in enumerate((plans, lambda: audits(source or folder), scores)):
            chosen = [(case, folder, source or folder) for case in itertools.islice(cases(), None, None, every)]
            for done, trouble in enumerate(pool.imap_unordered(_work, chosen), 1):
                if trouble or done % 50 == 0:
                    print(trouble or f"part {number + 1} of 3: {done} of {len(chosen)}", file=sys.stderr, flush=True)


def _files(folder: Path) -> dict[str, Path]:
    return {str(path.relative_to(folder)): path for path in sorted(folder.rglob("*")) if path.is_file()}


def differences(old: Path, new: Path) -> list[str]:
    """Names of files that differ, are missing or are new, each followed by its first differing lines."""
    found, before, after = [], _files(old), _files(new)
    for name in sorted({*before, *after} - {"every.json"}):
        texts = [
            path.read_bytes().decode("utf-8", "replace") if path else "" for path in (before.get(name), after.get(name))
        ]
        if texts[0] != texts[1]:
            lines = difflib.unified_diff(*(text.splitlines() for text in texts), "before", "after", "", "", 0, "")
            found.append("\n    ".join((name, *itertools.islice(lines, 2, 2 + SHOWN_LINES))))
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("does", choices=("record", "compare"))
    parser.add_argument("folder", type=Path)
    parser.add_argument("--every", type=int, default=1)
    asked = parser.parse_args()
    folder = asked.folder.resolve()
    if asked.does == "record":
        record(folder, asked.every)
        (folder / "every.json").write_text(json.dumps(asked.every), encoding="utf-8")
        print(f"{len(list(folder.glob('*/answer.txt')))} answers in {folder}")
        return 0
    every = max(asked.every, json.loads((folder / "every.json").read_text(encoding="utf-8")))
    new = Path(tempfile.mkdtemp(prefix="unchanged-"))
    record(new, every, source=folder)
    done = {path.parent.name for path in new.glob("*/answer.txt")}
    old = Path(tempfile.mkdtemp(prefix="unchanged-old-"))
    for name in done & {path.name for path in folder.iterdir()}:
        (old / name).symlink_to(folder / name)
    found = []
    for name in sorted(done):
        found += [f"{name}/{line}" for line in differences(folder / name, new / name)]
    print("\n".join((*found, f"{len(done)} answers, {len(found)} files differ")))
    shutil.rmtree(old)
    if not found:
        shutil.rmtree(new)
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
