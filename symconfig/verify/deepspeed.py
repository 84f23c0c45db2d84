"""Holds the DeepSpeed target's files against the real DeepSpeed, Transformers, and our own strict schema."""

from __future__ import annotations

import importlib.util
import json
import os
import sys
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from symconfig import install
from symconfig.descriptor.huggingface import import_config
from symconfig.descriptor.write import differences
from symconfig.errors import InputError, Problem
from symconfig.existing.recover.deepspeed import built_json
from symconfig.existing.rules import deepspeed as rules
from symconfig.existing.rules.deepspeed import DeepSpeedFacts
from symconfig.existing.rules.rule import Rule, findings
from symconfig.frameworks.deepspeed.keys import release
from symconfig.plans.plan import Plan
from symconfig.verify.checks import Check, Compared, Options, Stopwatch
from symconfig.verify.conversation import GRACE_S, START_S, converse
from symconfig.verify.rank_states import PADDING, Predicted, predicted
from symconfig.verify.shell import dry_run

Json = dict[str, Any]
CONFIG, CONFIG_HF, MODEL = "ds_config.json", "ds_config_hf.json", "model/config.json"
_ARGUMENTS, _FILLED = "train.py: arguments", f"{CONFIG_HF}: filled in by Trainer"
RUNNER = "symconfig.verify.runners.deepspeed_runner"
OWN_BUCKET = "reduce_bucket_size"  # Transformers takes hidden_size squared, symconfig that within bounds


def applies(plan: Plan) -> bool:
    return plan.best.target.backend == "deepspeed"


def checks(folder: Path, plan: Plan, options: Options) -> Iterator[Check]:
    """Yield all checks of a folder with DeepSpeed files: keys, model, arguments, and DeepSpeed's own configuration;
    with `build` also the ranks, if the arguments are known.

    If programs may not run, the arguments' check has the refusal's status; if launch.sh's dry run starts no train.py,
    it failed. Without DeepSpeed and torch its checks are one skipped check; with `build` (which also needs
    transformers, and peft for adapters) InputError. Without transformers and accelerate only the filled configuration
    is skipped.
    """
    watch = Stopwatch()
    texts: dict[str, Json] = {}
    for name in (CONFIG, CONFIG_HF):
        if problems := _load(folder / name, texts, name):
            yield watch.problems(f"{name}: keys", problems, "")
    yield from offline(texts, plan, watch)
    yield _model(folder, plan, watch)
    programs = options.programs or folder
    words: list[str] | None = None  # of train.py; None: not known
    if options.refused is not None:
        yield watch.check(_ARGUMENTS, options.refused.status, options.refused.why)
    else:
        ran = dry_run(programs, "launch.sh", options.timeout_s)
        script = next((i for i, word in enumerate(ran.words) if Path(word).name == "train.py"), None)
        if ran.status or script is None:
            why = f"launch.sh does not start train.py: {ran.last_words or 'it printed no command'}"
            yield watch.check(_ARGUMENTS, "failed", why)
        else:
            words = list(ran.words[script + 1 :])
    peft = ("peft",) if options.build and plan.model.adapter else ()
    if missing := _missing("deepspeed", "torch", *(("transformers", *peft) if options.build else ())):
        if options.build:
            raise InputError(f"needs {missing}", file=str(folder), field="--build", hint=install.EXTRA)
        yield watch.check("DeepSpeed", "skipped", f"not installed: {missing}: {install.EXTRA}")
        return
    if CONFIG_HF in texts and (missing := _missing("transformers", "accelerate")):
        del texts[CONFIG_HF]
        yield watch.check(_FILLED, "skipped", f"not installed: {missing}: {install.EXTRA}")
    options.progress("DeepSpeed's own configuration")
    if CONFIG in texts:
        yield from judge(texts, plan, run(requests(texts, plan), options.timeout_s), watch)
        if options.build and words is not None:
            yield from ranks(programs, plan, words, options)


def _missing(*packages: str) -> str:
    return ", ".join(name for name in packages if importlib.util.find_spec(name) is None)


def offline(texts: dict[str, Json], plan: Plan, watch: Stopwatch) -> Iterator[Check]:
    """Yield the checks that need no DeepSpeed: keys of each file, and rules on the native one if it is there."""
    for name, data in texts.items():
        problems = broken(DeepSpeedFacts(tree=built_json(data, name), trainer=name == CONFIG_HF), rules.KEYS)
        yield watch.problems(f"{name}: keys", problems, f"every key is one that DeepSpeed {release()} reads")
    if CONFIG in texts:
        tree, world = built_json(texts[CONFIG], CONFIG), plan.best.configuration.world_size
        facts = DeepSpeedFacts(tree=tree, trainer=False, gpus=world)
        yield watch.problems(f"{CONFIG}: meaning", broken(facts, rules.MEANING), "makes sense")


def requests(texts: dict[str, Json], plan: Plan) -> list[Json]:
    """Return the requests to the DeepSpeed runner: the native configuration, then the "auto" one if there is one."""
    auto = [_trainer_request(texts[CONFIG_HF], plan)] if CONFIG_HF in texts else []
    return [{"task": "resolve", "config": texts[CONFIG], "world_size": plan.best.configuration.world_size}, *auto]


def judge(texts: dict[str, Json], plan: Plan, answers: Sequence[Json], watch: Stopwatch) -> Iterator[Check]:
    """Yield the checks of the runner's answers to `requests`, against the plan."""
    yield _accepted(answers[0], plan, watch)
    if CONFIG_HF in texts:
        yield _trainer(texts[CONFIG], answers[1], watch)


def broken(facts: DeepSpeedFacts, these: Sequence[Rule[DeepSpeedFacts]] = rules.RULES) -> list[Problem]:
    """Return the problems that the rules find; notes are left out, except those of the rules on keys and types."""
    exact = {rule.name for rule in rules.KEYS}
    return [
        finding.problem for finding in findings(these, facts) if finding.severity != "note" or finding.rule in exact
    ]


def _load(path: Path, texts: dict[str, Json], name: str) -> list[Problem]:
    """Read a JSON object into `texts[name]` and return []; else return one problem: unreadable, or no JSON object."""
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        return [Problem(f"cannot be read: {error}", file=name)]
    if not isinstance(data, dict):
        return [Problem("is not a JSON object", file=name)]
    texts[name] = data
    return []


def _model(folder: Path, plan: Plan, watch: Stopwatch) -> Check:
    """Return the check that config.json, imported again, is the plan's model: a problem for each field that differs, or
    those of reading and importing it.
    """
    texts: dict[str, Json] = {}
    problems = _load(folder / MODEL, texts, MODEL)
    if not problems:
        try:
            reread = import_config(texts[MODEL], MODEL, plan.model.name)
            problems = [
                Problem("is another model", file=MODEL, field=name, got=theirs, need=ours)
                for name, ours, theirs in differences(plan.model, reread)
            ]
        except InputError as error:
            problems = list(error.problems)
    return watch.problems(MODEL, problems, "imported again, it is the plan's model, field by field")


def _trainer_request(auto: Json, plan: Plan) -> Json:
    """Return the runner's request: the "auto" configuration, world size, hidden size, and the plan's Trainer arguments,
    whose world size leaves out cp.
    """
    c, training = plan.best.configuration, plan.training
    arguments = {
        "world_size": c.world_size // c.cp,
        "per_device_train_batch_size": c.micro,
        "gradient_accumulation_steps": c.num_microbatches,
        "max_grad_norm": training.clip_grad,
        "learning_rate": training.lr,
        "adam_beta1": training.adam_beta1,
        "adam_beta2": training.adam_beta2,
        "adam_epsilon": training.adam_eps,
        "weight_decay": training.weight_decay,
        c.precision: True,
    }
    return {
        "task": "resolve",
        "config": auto,
        "world_size": c.world_size,
        "trainer": arguments,
        "hidden_size": plan.model.hidden_size,
    }


def _accepted(answer: Json, plan: Plan, watch: Stopwatch) -> Check:
    """Return the check that DeepSpeedConfig accepts the file and resolves it to the plan's values (train_batch_size
    counts tensor-parallel ranks as data ranks). Failed with the answer's error if that is not ok.
    """
    title = f"{CONFIG}: DeepSpeedConfig"
    if not answer["ok"]:
        return watch.check(title, "failed", answer["error"])
    got, c = answer["resolved"], plan.best.configuration
    accumulated = c.micro * c.num_microbatches
    want = {
        "train_micro_batch_size_per_gpu": c.micro,
        "gradient_accumulation_steps": c.num_microbatches,
        "train_batch_size": accumulated * c.dp * c.tp,
        "gradient_clipping": plan.training.clip_grad,
        "lr": plan.training.lr,
        "zero_stage": c.zero_stage,
        "precision": c.precision,
        "optimizer_offload": c.optimizer_offload,
        "param_offload": c.param_offload,
        "autotp_size": c.tp,
        "sequence_parallel_size": c.cp,
        "autoep_size": c.ep,
    }
    problems = [
        Problem("DeepSpeed resolved another value", file=CONFIG, field=name, got=repr(got[name]), need=repr(value))
        for name, value in want.items()
        if got[name] != value
    ]
    return watch.problems(
        title,
        problems,
        f"accepted at {c.world_size} ranks: train_batch_size "
        f"{got['train_batch_size']}, {c.global_batch} distinct sequences",
    )


def _trainer(native: Json, answer: Json, watch: Stopwatch) -> Check:
    """Return the check that Transformers fills the "auto" configuration in to the native one; monitors of the native
    one and the bucket size that Transformers chooses are left out. Failed with the answer's error if that is not ok.
    """
    title = _FILLED
    if not answer["ok"]:
        return watch.check(title, "failed", answer["error"])
    ours = _comparable({key: value for key, value in native.items() if key not in ("tensorboard", "wandb")})
    filled = _comparable(answer["config"])
    problems = [
        Problem(
            f"differs from {CONFIG}", file=CONFIG_HF, field=key, got=repr(filled.get(key)), need=repr(ours.get(key))
        )
        for key in sorted({*ours, *filled})
        if ours.get(key) != filled.get(key)
    ]
    return watch.problems(title, problems, f"gives the values of {CONFIG}")


def _comparable(config: Json) -> Json:
    """Return the configuration without the bucket size that Transformers chooses by its own rule."""
    zero = {key: value for key, value in (config.get("zero_optimization") or {}).items() if key != OWN_BUCKET}
    return {**config, "zero_optimization": zero}


def run(jobs: Sequence[Json], timeout_s: float) -> list[Json]:
    """Return the runner's answer to each job; one that crashes, takes too long or is not reached is not `ok`."""
    answers: list[Json] = []
    request, limits_s = {"jobs": jobs, "timeout_s": timeout_s}, (START_S + timeout_s, timeout_s + GRACE_S)
    how, last_lines = converse((sys.executable, "-m", RUNNER), request, os.environ, limits_s, answers.append)
    answers += [{"crash": how, "last_lines": last_lines}] * (len(jobs) - len(answers))
    return [
        {"ok": False, "error": f"DeepSpeed {one['crash']}; its last lines: " + " | ".join(one["last_lines"])}
        if "crash" in one
        else one
        for one in answers
    ]


def ranks(folder: Path, plan: Plan, words: Sequence[str], options: Options) -> Iterator[Check]:
    """Yield a check of the first rank and of the last, which has the padding (one if they are the same); one skipped
    check for QLoRA. A rank passes if each compared figure is within PADDING of the built one; figures are in
    `compared`. words: train.py's arguments.
    """
    watch, world = Stopwatch(), plan.best.configuration.world_size
    if plan.model.adapter is not None and plan.model.adapter.method == "qlora":
        yield watch.check("DeepSpeed's ranks", "skipped", "bitsandbytes quantises on a GPU only")
        return
    ours, ranks = predicted(plan, 0), tuple(dict.fromkeys((0, world - 1)))
    options.progress(f"DeepSpeed builds rank {' and rank '.join(map(str, ranks))} of {world}")
    for rank, real in zip(ranks, build(folder, words, world, ranks, options.timeout_s), strict=True):
        title = f"DeepSpeed's rank {rank} of {world}"
        if not real["ok"]:
            yield watch.check(title, "failed", real["error"])
            continue
        compared = tuple(_compared(ours, real))
        wrong = [
            Problem(
                f"{item.what}: not what {real['optimizer']} really holds",
                file="model/config.json" if item.unit == "count" else "ds_config.json",
                field=None if item.unit == "count" else "zero_optimization",
                got=f"{item.real:,.0f} {item.unit}",
                need=f"{item.ours:,.0f}",
            )
            for item in compared
            if abs(item.ours - item.real) > PADDING * item.real
        ]
        check = watch.problems(title, wrong, f"{real['optimizer']} holds what the plan predicts, padding aside")
        yield replace(check, compared=compared)


def _compared(ours: Predicted, real: Json) -> Iterator[Compared]:
    """Yield predicted and real parameters, trained parameters and optimizer bytes, host and device together."""
    yield Compared("parameters before ZeRO", ours.elements, real["elements"], "count")
    yield Compared("trained ones of them", ours.trained, real["trained"], "count")
    yield Compared("optimizer state", ours.optimizer_bytes, sum(real["held"]["optimizer"].values()), "bytes")


def build(folder: Path, words: Sequence[str], world_size: int, ranks: Sequence[int], timeout_s: float) -> list[Json]:
    """Return an answer for each rank, built with random weights of model/config.json: {ok, error} and what
    the runner's `build` returns. --model, --model-config and --load among train.py's arguments `words` are replaced.
    """
    own = [word for word in words if not word.startswith(("--model=", "--model-config=", "--load="))]
    place = folder.resolve()
    words = [*own, f"--model-config={place / 'model'}"]
    job = {"task": "build", "folder": str(place), "words": words, "world_size": world_size}
    return run([{**job, "rank": rank} for rank in ranks], timeout_s)
