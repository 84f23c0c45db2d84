"""Record what symconfig answers to some 500 commands, and say which answers differ after a change of the code.

    python -m tests.unchanged record FOLDER [--every N]   # before the change; N: only each N-th case
    python -m tests.unchanged compare FOLDER [--only RE]  # after it: exit 1 where an answer differs
    python -m tests.unchanged moved FOLDER                # after it: which first plans moved, and what that gains

A case is one command line. Recorded are its exit code, every byte that it writes, and its JSON answer, or what it says
in a terminal where it gives no JSON: plans of every zoo model and cluster over backends, targets, precisions, pins,
tasks and releases; audits of the corpus and of written launch scripts; the scores of `validate` on the runs in TRUTH;
and what commands say of some recorded plans, scripts and graphs. This file imports nothing of
symconfig but its command line, so that it runs on any commit: PYTHONPATH chooses which.
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
import zlib
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).resolve().parent.parent
SHARED = ROOT.parent / "shared"
TRUTH = (SHARED / "truth", SHARED / "truth_more")
CORPUS = next((ROOT / "tests").rglob("audit/corpus"))
BACKENDS = ("megatron", "deepspeed", "fsdp")
TARGETS = (
    "accelerate", "bridge", "deepspeed", "llamafactory", "megatron", "ms-swift-deepspeed", "ms-swift", "transformers",
    "trl",
)  # fmt: skip
RELEASES = ("core_v0.12", "core_v0.13", "core_v0.14", "core_v0.15", "core_v0.16", "core_v0.17", "core_v0.18", "main")
# Billions of parameters, where the name does not say: only the number of GPUs to plan for depends on it.
BILLIONS = {
    "deepseek-v3": 671, "deepseek-v3.2": 671, "deepseek-v4-flash": 284, "glm-4.5": 355, "glm-4.5-air": 106,
    "gpt-oss-120b": 117, "granite-4.0-h-small": 32, "kimi-k2": 1026, "llama4-maverick": 400, "llama4-scout": 109,
    "minimax-m2": 229, "mixtral-8x7b": 47, "mixtral-8x22b": 141, "phi-4": 14.7,
}  # fmt: skip
PINS = (
    ("tp=2",), ("pp=2..4",), ("recompute=full",), ("zero=3",), ("cp=2",), ("micro_batch=1", "vpp=..2"),
    ("tp=1", "pp=1"),
)  # fmt: skip
# Jobs of reinforcement learning: model, GPUs, algorithm, target.
RL = (
    ("qwen3-8b", 8, "grpo", "verl"), ("qwen3-4b", 8, "ppo", "verl"), ("qwen3-30b-a3b", 32, "gspo", "slime"),
    ("llama3.1-8b", 16, "rloo", "openrlhf"), ("qwen3-32b", 32, "dapo", "nemo-rl"), ("llama3.2-3b", 8, "grpo", "trl"),
)  # fmt: skip
# Recorded answers, without what the clock or the release decides and what only tells how the search went.
UNSTABLE = ("seconds", "symconfig", "search")
SECONDS = re.compile(r"\b(in|took) [\d.,]+ (ms|s|seconds)\b")  # what a search took
SHOWN_LINES = 12


@dataclass(frozen=True, slots=True)
class Case:
    """One command. name: of its folder in the record; out: whether it writes files with --out."""

    name: str
    words: tuple[str, ...]
    out: bool = False
    job: str = ""  # the text of a job's file, which stands in the place of JOB in `words`


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
        "plan", "--model", model, "--cluster", cluster, "--gpus", count, "--global-batch-size", str(batch), "--json",
    )  # fmt: skip
    return Case(f"plan-{name}-{model}-{cluster}".replace("=", "").replace("..", "-"), (*words, *more), out=True)


def plans() -> Iterator[Case]:
    """Some 330, each zoo model and cluster in every role."""
    names, machines = models(), list(clusters())
    ordinary = [name for name in names if "lora" not in name]
    for index, model in enumerate(names):
        for step in range(3):
            cluster = machines[(2 * index + 5 * step + step // 3) % len(machines)]
            backend = BACKENDS[step] if model in ordinary else "deepspeed"
            yield _plan(f"{backend}-{step}", model, cluster, "--backend", backend)
    for index, model in enumerate(ordinary):
        if index % 2:
            yield _plan("fp8", model, ("h100", "h200", "b200")[index // 2 % 3], "--precision", "fp8")
        else:
            blackwell = ("b200", "gb200-nvl72", "gb300-nvl72")[index // 2 % 3]
            precision = ("mxfp8", "nvfp4", "auto")[index // 2 % 3]
            yield _plan("blackwell", model, blackwell, "--precision", precision)
        cluster = machines[(index + 3) % len(machines)]
        pins = PINS[index % len(PINS)]
        words = itertools.chain.from_iterable(("--pin", pin) for pin in pins)
        yield _plan(f"pins-{pins[0]}", model, cluster, "--backend", BACKENDS[index % 2], *words)
        release = RELEASES[index // 2 % len(RELEASES)]
        if index % 2:
            yield _plan("release", model, ("a100-80gb", "h100")[index // 2 % 2], "--megatron-version", release)
    for index, target in enumerate(TARGETS):
        for number in range(3):
            model = names[(5 * index + 4 * number + number // 5) % len(names)]
            yield _plan(f"target-{target}", model, machines[(3 * index + number) % len(machines)], "--target", target)
    for index, model in enumerate(ordinary[::4]):
        cluster = machines[(4 * index) % len(machines)]
        yield _plan("unfused", model, cluster, "--attention", "unfused", "--seq-length", "2048")
        yield _plan("sft", model, ("h100", "a100-80gb")[index % 2], "--task", "sft")
        yield _plan("lora", model, ("h100", "a100-80gb")[index % 2], "--task", "lora")
    for model, cluster in (("llama3.1-8b", "h100"), ("mixtral-8x7b", "a100-80gb"), ("qwen2.5-7b", "b200")):
        yield _plan("auto", model, cluster, gpus="auto", batch=64)
        yield _plan("tight", model, cluster, gpus="8", batch=7)
        yield _plan("imbalance", model, cluster, "--expert-imbalance", "1.3", "--memory-margin", "0.1")
    for model, gpus, algorithm, target in RL:
        section = {
            "algorithm": algorithm,
            "prompts": 256,
            "samples": 8,
            "updates": 2,
            "prompt_length": {"mean": 200, "max": 1024},
            "response_length": {"mean": 1500, "p95": 4000, "max": 8192},
        }
        job = {"model": model, "cluster": "h100", "gpus": gpus, "target": target, "rl": section}
        yield Case(f"plan-rl-{target}-{algorithm}-{model}-h100", ("plan", "JOB", "--json"), True, yaml.safe_dump(job))


def audits(record: Path) -> Iterator[Case]:
    """The corpus, and launch scripts of each third recorded plan; some with a search for a better plan."""
    seen: Counter[str] = Counter()
    for entry in yaml.safe_load((CORPUS / "expected.yaml").read_text(encoding="utf-8")):
        seen[entry["file"]] += 1
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
        name = f"{entry['file'].replace('/', '-')}-{seen[entry['file']]}"
        if zlib.crc32(name.encode()) % 8:
            words.append("--no-plan")
        yield Case(f"audit-corpus-{name}", (*words, "--", *map(str, entry.get("extra") or ())))
    for folder in sorted(record.glob("plan-*/out")):
        cluster = next(name for name in sorted(clusters(), key=len, reverse=True) if folder.parent.name.endswith(name))
        for file in ("launch.sh", "ds_config.json"):
            if zlib.crc32(folder.parent.name.encode()) % 3 == 0 and (folder / file).is_file():
                model = next((name for name in models() if f"-{name}-{cluster}" in folder.parent.name), None)
                asked = ("--model", str(model), "--gpus", "64", "--seq-length", "4096") if file != "launch.sh" else ()
                yield Case(
                    f"audit-own-{folder.parent.name}-{file}",
                    ("audit", str(folder / file), "--json", "--no-plan", "--cluster", cluster, *asked),
                )


def _recorded(record: Path, file: str, every: int) -> Iterator[tuple[int, Path]]:
    """Yield with its number each folder of a recorded plan with the file whose name's hash is a multiple of `every`."""
    for index, path in enumerate(sorted(record.glob(f"plan-*/out/{file}"))):
        if zlib.crc32(path.parts[-3].encode()) % every == 0:
            yield index, path.parent


def others(record: Path) -> Iterator[Case]:
    """What commands say in a terminal, most of them of some recorded plans and scripts; some write files."""
    small = ("--model", "llama3.1-8b", "--cluster", "h100", "--gpus", "16", "--global-batch-size", "64")
    asked = {
        "plan": [(*small, "--pin", pin) for pin in ("tp=2", "recompute=full")]
        + [("--model", model, *small[2:]) for model in ("llama3.1-70b", "mixtral-8x7b", "qwen2.5-7b-lora")],
        "estimate": [(*small, "--pin", "tp=2", "--pin", "pp=2", "--fits-on"), (*small, "--backend", "deepspeed")],
        "size": [("--model", "llama3.1-8b", "--tokens", "100B", "--deadline", "30d", "--clusters", "h100,a100-80gb")],
        "list": [(kind,) for kind in ("models", "clusters", "recipes", "targets", "options", "rules")]
        + [("clusters", "h100"), ("models", "deepseek-v3"), ("recipes", "nothing")],
        "partition": [
            ("--model", model, "--cluster", "h100", "--gpus", gpus, "--global-batch-size", "16", *more)
            for model, gpus, more in (
                ("llama2-7b", "8", ()), ("llama2-7b", "8", ("--solver", "exact", "--baselines")),
                ("mixtral-8x7b", "64", ("--json",)), ("llama3.1-70b", "64", ("--stages", "1..4")),
                ("llama3.1-405b", "8", ()), ("qwen2.5-7b", "8", ("--recompute", "full", "--precision", "fp16")),
            )
        ],
    }  # fmt: skip
    for command, lines in asked.items():
        for index, words in enumerate(lines):
            yield Case(f"{command}-text-{index}", (command, *words), out=command == "partition")
    for script in sorted((SHARED / "cases").glob("*.sh")):
        yield Case(f"estimate-script-{script.stem}", ("estimate", "--script", str(script), "--cluster", "h100"))
        yield Case(f"audit-text-{script.stem}", ("audit", str(script), "--cluster", "h100"))
    folders = list(_recorded(record, "plan.json", 6))
    for (index, folder), (_, other) in zip(folders, [*folders[1:], folders[0]] if folders else [], strict=True):
        plan, name = str(folder), folder.parent.name
        change = "model=llama3.1-8b" if index % 2 else "seq_length=2048"
        vary = ("network=0.5..2x", "global_batch_size=0.5..2x", "seq_length=0.5..4x")[index % 3]
        lines = (
            ("explain", plan), ("explain", plan, "--timeline"), ("explain", plan, "--all"), ("diff", plan, str(other)),
            ("replan", plan, "--global-batch-size", "512"), ("replan", plan, "--lose-nodes", "1"),
            ("whatif", plan, "--vary", vary), ("whatif", plan, "--change", change),
            ("render", plan, "--print"), ("render", plan, "--target", TARGETS[index % len(TARGETS)]),
            ("verify", plan, "--frozen"),
        )  # fmt: skip
        for number in {index % len(lines), (index + 4) % len(lines), (index + 7) % len(lines)}:
            words = lines[number]
            writes = words[0] == "replan" or "--target" in words
            yield Case(f"{words[0]}-{number}-{name}", words, out=writes)
        script = next((path for path in (folder / "launch.sh", other / "launch.sh") if path.is_file()), None)
        if script and index % 2:
            yield Case(f"adapt-{name}", ("adapt", str(script), "--plan", str(other)))
        yield Case(f"audit-text-{name}", ("audit", str(script or folder), "--cluster", "h100", "--no-plan"))


def scores() -> Iterator[Case]:
    for folder in TRUTH:
        for path in sorted(folder.glob("*.yaml")):
            yield Case(f"validate-{folder.name}-{path.stem}", ("validate", str(path), "--json"))


def _stable(value: object) -> object:
    if isinstance(value, dict):
        return {name: _stable(each) for name, each in value.items() if name not in UNSTABLE}
    return [_stable(each) for each in value] if isinstance(value, list) else value


def _answer(case: Case, folder: Path, source: Path) -> None:
    """Run it below `folder`: out/ is what it writes, answer.json its JSON or its text, and how it ends."""
    from symconfig.cli.main import main

    folder.mkdir(parents=True)
    words = [*case.words]
    if case.job:
        (folder / "job.yaml").write_text(case.job, encoding="utf-8")
        words[words.index("JOB")] = str(folder / "job.yaml")
    if case.out:
        words += ["--out", str(folder / "out") if "--json" in words else "out"]
    told, complained = io.StringIO(), io.StringIO()
    # A path from here: how a text is broken into lines would depend on where the record lies.
    inside = contextlib.chdir(folder) if case.out else contextlib.nullcontext()
    with inside, contextlib.redirect_stdout(told), contextlib.redirect_stderr(complained):
        code = main(words)
    answer: dict[str, object] = {"exit": code}
    try:
        answer["answer"] = _stable(json.loads(told.getvalue()))
    except ValueError:
        lines = (told.getvalue() + complained.getvalue()).splitlines()
        answer["text"] = [SECONDS.sub("SECONDS", line) for line in lines] if "--json" not in words else []
    text = json.dumps(answer, indent=1)
    places = ((folder, "FOLDER"), (folder.parent, "RECORD"), (source, "RECORD"), (CORPUS, "CORPUS"), (ROOT, "ROOT"))
    for path, name in (*places, *((each, "TRUTH") for each in TRUTH)):
        text = text.replace(str(path), name)
    (folder / "answer.json").write_text(text, encoding="utf-8")


def _work(given: tuple[Case, Path, Path]) -> str:
    case, record, source = given
    try:
        _answer(case, record / case.name, source)
    except BaseException as error:
        return f"{case.name}: {type(error).__name__}: {error}"
    return ""


def record(folder: Path, every: int, source: Path | None = None, only: str = "") -> None:
    """Answer all cases below `folder`, or those whose names match `only`.

    source: the record whose plans and launch scripts are read, itself by default.
    """
    os.environ["COLUMNS"] = "120"
    parts = (plans, lambda: audits(source or folder), scores, lambda: others(source or folder))
    with multiprocessing.get_context("spawn").Pool(2) as pool:
        for number, cases in enumerate(parts):
            chosen = [
                (case, folder, source or folder)
                for case in itertools.islice(cases(), None, None, every)
                if re.search(only, case.name)
            ]
            for done, trouble in enumerate(pool.imap_unordered(_work, chosen), 1):
                if trouble or done % 50 == 0:
                    print(
                        trouble or f"part {number + 1} of {len(parts)}: {done} of {len(chosen)}",
                        file=sys.stderr,
                        flush=True,
                    )


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


def _run(words: tuple[str, ...]) -> dict[str, object] | None:
    from symconfig.cli.main import main

    told = io.StringIO()
    quiet = contextlib.redirect_stderr(io.StringIO())
    with tempfile.TemporaryDirectory() as folder, contextlib.redirect_stdout(told), quiet:
        code = main([*words, "--json", "--out", f"{folder}/out"])
    return json.loads(told.getvalue()) if code == 0 else None


def layout(best: dict[str, Any]) -> dict[str, object]:
    """Return what a first plan is told by: degrees, micro-batch, recompute."""
    parallel, recompute = best["parallel"], best["options"]["recompute"]
    degrees = {name: parallel[name] for name in ("tp", "pp", "cp", "ep")}
    return {**degrees, "mbs": best["batch"]["micro"], "recompute": recompute["granularity"]}


def _moved(given: tuple[Case, Path]) -> str:
    """Return how the first plan of a case moved; nothing where it did not."""
    case, record = given
    recorded = json.loads((record / case.name / "answer.json").read_text(encoding="utf-8"))
    before = (recorded.get("answer") or {}).get("best")
    words = case.words
    if case.job:
        words = tuple(str(record / case.name / "job.yaml") if word == "JOB" else word for word in words)
    words = tuple(word for word in words if word != "--json")
    answer = _run(words)
    if before is None or answer is None or "parallel" not in before:
        return "" if (before is None) == (answer is None) or case.job else f"{case.name}: feasible and not"
    after: Any = answer["best"]
    old, new = layout(before), layout(after)
    if old == new:
        return ""
    pins = [f"{name}={value}" for name, value in old.items()]
    again: Any = _run((*words, *itertools.chain.from_iterable(("--pin", pin) for pin in pins)))
    step = again["best"]["predicted"]["step_s"] if again else before["predicted"]["step_s"]
    change = step / after["predicted"]["step_s"] - 1
    return f"{case.name}: {old} -> {new}: the old one is {100 * change:+.2f} % slower" + (
        "" if again else " (as recorded)"
    )


def moved(folder: Path, every: int) -> list[str]:
    chosen = [(case, folder) for case in itertools.islice(plans(), None, None, every)]
    with multiprocessing.get_context("spawn").Pool(2) as pool:
        found = [text for text in pool.imap_unordered(_moved, chosen) if text]
    return [*sorted(found), f"{len(chosen)} plans, {len(found)} moved"]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("does", choices=("record", "compare", "moved"))
    parser.add_argument("folder", type=Path)
    parser.add_argument("--every", type=int, default=1)
    parser.add_argument("--only", default="", help="compare only cases whose names match this regular expression")
    asked = parser.parse_args()
    folder = asked.folder.resolve()
    if asked.does == "record":
        record(folder, asked.every)
        (folder / "every.json").write_text(json.dumps(asked.every), encoding="utf-8")
        print(f"{len(list(folder.glob('*/answer.json')))} answers in {folder}")
        return 0
    if asked.does == "moved":
        print("\n".join(moved(folder, asked.every)))
        return 0
    every = max(asked.every, json.loads((folder / "every.json").read_text(encoding="utf-8")))
    new = Path(tempfile.mkdtemp(prefix="unchanged-"))
    record(new, every, folder, asked.only)
    done = {path.parent.name for path in new.glob("*/answer.json")}
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
