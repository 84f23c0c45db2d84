"""Plan random jobs and hold every plan against the real parsers of Megatron-LM and DeepSpeed.

`python -m tools soak` holds 10,000 plans against them; `--record` writes docs/evidence/soak.md, and
`--count 200 --seed 3` runs fewer, of other jobs.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import time
import traceback
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import symconfig
from benchmarks.jobs import jobs as plain_jobs
from symconfig.descriptor.huggingface import import_config
from symconfig.descriptor.load import load_cluster, load_model
from symconfig.descriptor.training import Training
from symconfig.descriptor.write import config_json, differences
from symconfig.errors import SymconfigError
from symconfig.frameworks.known import BACKENDS
from symconfig.frameworks.megatron import environment
from symconfig.graph.model import parameters
from symconfig.plans.plan import Plan
from symconfig.render import deepspeed as render_deepspeed
from symconfig.render import megatron as render_megatron
from symconfig.render import own_target
from symconfig.solve.run import with_defaults
from symconfig.verify import deepspeed, megatron, megatron_source
from symconfig.verify.checks import Check, Stopwatch
from tests.altered_models import altered
from tools.pages import EVIDENCE

PAGE = EVIDENCE / "soak.md"
TOP = 12  # plans of a job that are held, those that it ranks
RUNS = 5  # what is said of the run, which no plan depends on, is drawn anew so often for each
LEAST_BYTES = 12  # of each parameter: with less memory no job needs to be asked
TOGETHER = 300  # plans that one process of a framework answers for
TIMEOUT_S = 300.0
# Of each what a job may say, None: nothing. The first is what most jobs say.
SAYS: dict[str, tuple[Any, ...]] = {
    "precision": (None, None, None, "auto", "fp16", "fp8"),
    "allow": (None, None, None, ["all"]),
    "optimizer": (None, None, None, None, "muon", "sgd", "adam8bit", "adafactor"),
    "attention": (None, None, None, None, "unfused"),
    "task": (None, None, None, "sft", "lora"),
    "limits": (None, None, {"memory_margin": 0.0}, {"memory_margin": 0.3, "expert_imbalance": 2.0}),
}
TRAINING: dict[str, tuple[Any, ...]] = {
    "lr_decay_style": ("cosine", "constant", "linear", "inverse-square-root", "WSD"),
    "train_iters": (1, 10, 1000, 123457),
    "lr_warmup_iters": (0, 1, 9),
    "weight_decay": (0.0, 0.1),
    "clip_grad": (1.0, 0.0),
    "seed": (0, 1234, 2**31 - 1),
    "save": ("/checkpoints/a run", "ckpt"),
    "tensorboard_dir": ("/logs", "it's here"),
    "wandb_project": ("p", "äöü $HOME"),
    "data_path": (("/data/corpus_text_document",), ("0.3", "/data/a", "0.7", "/data/b c")),
    "split": ("949,50,1", "1,0,0"),
    "eval_iters": (0, 10),
    "manual_gc_interval": (0, 7),
    "adam_beta2": (0.95, 0.999),
    "distributed_timeout_minutes": (10, 90),
}


@dataclass(slots=True)
class Told:
    """What became of the jobs, and of their plans."""

    jobs: Counter[str] = field(default_factory=Counter)
    unsaid: int = 0
    plans: Counter[str] = field(default_factory=Counter)
    refused: list[str] = field(default_factory=list)


def jobs(seed: int) -> Iterator[dict[str, Any]]:
    """Yield random jobs without end, as arguments of `symconfig.plan`: of five one has a model that nobody trained."""
    draw = random.Random(seed)
    while True:
        (job,) = plain_jobs(1, draw.randrange(2**31))
        memory_bytes = job["gpus"] * load_cluster(job["cluster"]).gpu.memory_bytes.value
        if LEAST_BYTES * parameters(load_model(job["model"])).total > memory_bytes:
            continue
        job["top"] = TOP
        job["backend"] = draw.choice(("megatron", "deepspeed"))
        said = {name: draw.choice(values) for name, values in SAYS.items()}
        job |= {name: value for name, value in said.items() if value is not None}
        if draw.random() < 0.2:
            job["model"] = altered(load_model(job["model"]), draw.choice, draw.choice((1, 2, 3))) or job["model"]
        yield job


def _run(draw: random.Random) -> dict[str, Any]:
    """Return a random section `training`."""
    some = draw.sample(sorted(TRAINING), draw.choice((0, 1, 2, 4)))
    return {name: draw.choice(TRAINING[name]) for name in some}


def plans(job: dict[str, Any], told: Told, draw: random.Random) -> list[Plan]:
    """Return every plan of a job that its answer ranks, each for several runs."""
    try:
        found = symconfig.plan(**job)
        if found.warnings:  # files that are written once the framework is changed by hand
            told.jobs["needs a change by hand"] += 1
            return []
        if own_target(found.plan) not in BACKENDS:  # Megatron-LM itself trains no adapters
            told.jobs["for another format"] += 1
            return []
        one, every = found.plan, found.ranked
        asked = [one.job.model_copy(update={"training": Training(**_run(draw))}) for _ in range(RUNS)]
        whole = [with_defaults(one.model, one.cluster, job) for job in asked]
        every = [replace(one, job=job, best=best, alternatives=()) for best in every for job in whole]
    except SymconfigError as error:
        told.jobs["infeasible" if error.exit_code == 1 else "bad input"] += 1
        return []
    except Exception:
        told.jobs["broken"] += 1
        told.refused.append(f"planning broke: {_shown(job)}: {traceback.format_exc()[-1500:]}")
        return []
    told.jobs["planned"] += 1
    return every


def held(found: Sequence[tuple[Plan, str]], told: Told) -> None:
    """Hold plans, each with its job in words, against the parser of its framework."""
    lists, files = dict[str, megatron.Rendered](), dict[str, dict[str, Any]]()
    for number, (plan, words) in enumerate(found):
        try:
            if plan.best.target.backend == "megatron":
                exported = {item.name: item.value for item in environment.variables(plan, plan.best.target.version)}
                lists[str(number)] = megatron.Rendered(plan, render_megatron.arguments(plan), exported)
            else:
                texts = deepspeed.CONFIG, deepspeed.CONFIG_HF
                files[str(number)] = dict(
                    zip(texts, (render_deepspeed.config(plan), render_deepspeed.config_auto(plan)), strict=True)
                )
        except SymconfigError:  # of what is said of the run: weights of data, or data without a tokenizer
            told.unsaid += 1
        except Exception as error:
            told.plans["not written"] += 1
            told.refused.append(f"{words}: not written: {type(error).__name__}: {error}")
    checked = megatron.check_many(lists, megatron_source.find(), TIMEOUT_S) if lists else {}
    checked |= _deepspeed({name: found[int(name)][0] for name in files}, files)
    for name, checks in checked.items():
        plan, words = found[int(name)]
        wrong = [check for check in checks if check.status != "passed"]
        told.plans[f"{plan.best.target.backend}: {'refused' if wrong else 'accepted'}"] += 1
        told.refused += [f"{words}: {plan.best.configuration}: {check}" for check in wrong]


def _deepspeed(of: dict[str, Plan], files: dict[str, dict[str, Any]]) -> dict[str, list[Check]]:
    """Return the checks of DeepSpeed's JSON, all of it by one process, and of the model's config.json."""
    asked = {name: deepspeed.requests(texts, of[name]) for name, texts in files.items()}
    every = [request for requests in asked.values() for request in requests]
    answers = iter(deepspeed.run(every, TIMEOUT_S + len(every)) if every else [])
    found = dict[str, list[Check]]()
    for name, texts in files.items():
        plan, watch = of[name], Stopwatch()
        own = [next(answers) for _ in asked[name]]
        found[name] = [*deepspeed.offline(texts, plan, watch), *deepspeed.judge(texts, plan, own, watch)]
        if plan.model.vision is None:
            again = import_config(config_json(plan.model), deepspeed.MODEL, plan.model.name)
            lost = ", ".join(field for field, _, _ in differences(plan.model, again))
            found[name].append(watch.check(deepspeed.MODEL, "failed" if lost else "passed", lost))
    return found


def _shown(job: dict[str, Any]) -> str:
    model = job["model"]
    if isinstance(model, str):
        return json.dumps(job)
    plain = load_model(model.name).model_dump(mode="json")
    other = {name: value for name, value in model.model_dump(mode="json").items() if plain.get(name) != value}
    gone = [name for name in plain if name not in model.model_dump(mode="json")]
    return json.dumps({**job, "model": model.name, "altered": other, "as by default": gone})


def soak(count: int, seed: int) -> Iterator[Told]:
    """Hold so many plans of random jobs against the parsers, print what is refused, and yield what became of them."""
    told, waiting, started, printed = Told(), list[tuple[Plan, str]](), time.perf_counter(), 0
    draw = random.Random(seed)
    for job in jobs(seed):
        waiting += [(plan, _shown(job)) for plan in plans(job, told, draw)]
        if len(waiting) < min(TOGETHER, count - told.plans.total()):
            continue
        held(waiting, told)
        waiting.clear()
        print(*told.refused[printed:], sep="\n", end="\n" * (len(told.refused) > printed), flush=True)
        minutes, printed = (time.perf_counter() - started) / 60, len(told.refused)
        print(f"{minutes:.1f} min: {dict(told.jobs)} {dict(told.plans)}", file=sys.stderr, flush=True)
        yield told
        if told.plans.total() >= count:
            return


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--count", type=int, default=10_000, help="plans to hold, at least")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--record", action="store_true", help="write docs/evidence/soak.md")
    arguments = parser.parse_args()
    for told in soak(arguments.count, arguments.seed):  # a run that is stopped has its record, too
        if arguments.record:
            PAGE.write_text(page(told, arguments.count, arguments.seed), encoding="utf-8")
    return 1 if told.refused else 0


def page(told: Told, count: int, seed: int) -> str:
    """Return docs/evidence/soak.md."""
    return PAGE_TEXT.format(
        count=count,
        seed=seed,
        jobs=told.jobs.total(),
        asked=", ".join(f"{number:,} {name}" for name, number in told.jobs.most_common()),
        held=told.plans.total(),
        refused=len(told.refused),
        rows="\n".join(f"| {name} | {number:,} |" for name, number in sorted(told.plans.items())),
        what="".join(dict.fromkeys(f"\n- {line.splitlines()[0][:400]}" for line in told.refused)),
    )


PAGE_TEXT = f"""# Random jobs through the real parsers

`python -m tools soak --count {{count}} --seed {{seed}}` plans random jobs: models of the zoo, one of five with fields
that no family has, on any of its clusters, with random pins, precisions, optimizers, options and limits. Every plan
that an answer ranks, {TOP} at most, is rendered for {RUNS} random sections `training` and held against its framework's
own parser. Megatron-LM parses and validates the arguments and makes its configuration of them at the claimed world
size; DeepSpeed resolves its JSON, and Transformers the flavour with "auto". What they resolved is compared with the
plan, and with its model field by field. Nothing may be refused, and nothing differ.

{{jobs:,}} jobs: {{asked}}. {{held:,}} plans held, **{{refused:,}} refused**.

| plans | |
|---|---|
{{rows}}
{{what}}
"""
