"""All rules of a DeepSpeed configuration, the names that their rows use, the checks that no row can express."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from symconfig.descriptor.architectures.keys import words
from symconfig.descriptor.document import KeyPath, shorten
from symconfig.errors import Problem
from symconfig.existing.recover.deepspeed_json import OVERWRITTEN, autos, fills
from symconfig.existing.recover.deepspeed_json import mismatches as trainer_mismatches
from symconfig.existing.rules.deepspeed_facts import DeepSpeedFacts
from symconfig.existing.rules.rule import TEXTS, Check, Finding, Language, Looked, Rule, rules_of
from symconfig.frameworks import around_transformers, shared
from symconfig.frameworks.constraint import Constraint, Fixed, failing
from symconfig.frameworks.deepspeed import constraints
from symconfig.frameworks.deepspeed.keys import ACCUMULATION, MICRO, TRAIN, ZERO, Kind, Mismatch, mismatches, schema
from symconfig.plans.configuration_set import ConfigurationSet

_ELSEWHERE: frozenset[KeyPath] = frozenset({("optimizer", "params", "max_grad_norm")})  # has a rule of its own
_BUCKETS = ("reduce_bucket_size", "allgather_bucket_size")
_DEFAULT_BUCKET = 500_000_000  # elements (runtime/zero/config.py)


def _of(kind: Kind, alike: bool | None = None) -> Check[DeepSpeedFacts]:
    """Return a check that yields every mismatch of one kind with DeepSpeed's schema.

    Keys that the Trainer overwrites, or that have rules of their own, are passed over. alike: only mismatches with
    (True) or without (False) a similar known word; None: both.
    """

    def check(facts: DeepSpeedFacts) -> Iterator[Problem]:
        for mismatch in mismatches(facts.tree.data):
            if (facts.trainer and mismatch.path in OVERWRITTEN) or mismatch.path in _ELSEWHERE:
                continue
            if mismatch.kind == kind and (alike is None or alike == (mismatch.alike is not None)):
                yield _mismatch_problem(facts, mismatch)

    return check


def _mismatch_problem(facts: DeepSpeedFacts, mismatch: Mismatch) -> Problem:
    of_key = mismatch.kind in ("removed", "unknown", "ignored", "deprecated")
    hint = f"{mismatch.need} instead" if mismatch.kind == "deprecated" and mismatch.need else mismatch.alike
    need = None if mismatch.kind == "deprecated" else mismatch.need
    return facts.problem(mismatch.path, mismatch.what, got=mismatch.got, need=need, hint=hint, of_key=of_key)


def _dropped(path: tuple[str | int, ...]) -> bool:
    """Return whether DeepSpeed ignores an "auto" in this section and takes its default (runtime/config_utils.py)."""
    section = schema()["properties"].get(str(path[0])) or {}
    return "additionalProperties" in section


deepspeed_misspelt_key = _of("ignored", alike=True)
deepspeed_ignored_key = _of("ignored", alike=False)
deepspeed_unknown_key = _of("unknown")
deepspeed_removed_key = _of("removed")
deepspeed_deprecated_key = _of("deprecated")


def deepspeed_old_and_new_key(facts: DeepSpeedFacts) -> Iterator[Problem]:
    """Yield a problem for each old key of zero_optimization whose new name is given, too."""
    section = facts.section(ZERO)
    for old, node in schema()["properties"][ZERO]["properties"].items():
        new = node.get("x-new-name") if node else None
        if old in section and new in section:
            yield facts.problem(
                (ZERO, old), f"is the old name of {new}, which is given, too", of_key=True, hint=f"leave out {old}"
            )


deepspeed_wrong_type = _of("type")
deepspeed_loose_type = _of("loose")
deepspeed_out_of_range = _of("range")
deepspeed_wrong_choice = _of("choice")
deepspeed_made_up_name = _of("name")


def deepspeed_auto_without_trainer(facts: DeepSpeedFacts) -> Iterator[Problem]:
    """Yield a problem for each "auto" that neither the Trainer fills in nor DeepSpeed ignores, so that
    DeepSpeed fails.
    """
    whose = (
        "the Trainer does not fill in"
        if facts.trainer
        else "only Transformers' Trainer fills in (its option is --deepspeed FILE)"
    )
    for path in autos(facts.tree.data):
        if not _dropped(path) and not (facts.trainer and fills(path, facts.stage)):
            yield facts.problem(path, f'is "auto", which {whose}', hint="a number")


def deepspeed_dropped_auto(facts: DeepSpeedFacts) -> Iterator[Problem]:
    """Yield a problem for each "auto" that the Trainer does not fill in and DeepSpeed silently replaces
    by its default.
    """
    for path in autos(facts.tree.data):
        if not _dropped(path) or (facts.trainer and fills(path, facts.stage)):
            continue
        default = (
            f"its default of {_DEFAULT_BUCKET:,} elements, 1 GB in 16 bits,"
            if path[-1] in _BUCKETS
            else "false"
            if path[-1] == "enabled"
            else "its default"
        )
        whose = "nobody fills in" if not facts.trainer else "Transformers' Trainer does not fill in"
        yield facts.problem(
            path,
            f'is "auto", which {whose}: DeepSpeed then takes {default} in silence',
            hint="a number" if path[-1] != "enabled" else "true or false",
        )


def _counted(tp: int) -> str:
    return f", among which this release counts the {tp} AutoTP ranks of a group" if tp > 1 else ""


def deepspeed_batch_product(facts: DeepSpeedFacts) -> Iterator[Problem]:
    """Yield one problem if train batch, micro-batch and accumulation disagree, or the train batch does not divide.

    With all three their product with the ranks must be the train batch; else the train batch must be a multiple of the
    given one of the two (or of 1) x ranks. Nothing without a train batch, or if the ranks are unknown or AutoTP does
    not divide them.
    """
    ranks, tp = facts.data_ranks, facts.tensor_parallel
    if ranks is None or ranks % tp:
        return
    train, micro, steps = (facts.whole(key) for key in (TRAIN, MICRO, ACCUMULATION))
    right = micro * steps * ranks
    if train and right and train != right:
        why = f", and this release counts the {tp} AutoTP ranks of a group as data ranks" if tp > 1 else ""
        yield facts.problem(
            (TRAIN,), f"{train} is not micro-batch {micro} x accumulation {steps} x {ranks} ranks{why}", hint=str(right)
        )
    elif train and not right:
        per_rank = micro or steps or 1
        least = per_rank * ranks
        if train % least:
            other = "micro-batch" if micro else "accumulation"
            yield facts.problem(
                (TRAIN,),
                f"{train} does not divide by {other} {per_rank} x {ranks} ranks{_counted(tp)}",
                hint=str(max(round(train / least), 1) * least),
            )


def deepspeed_trainer_mismatch(facts: DeepSpeedFacts) -> Iterator[Problem]:
    """Yield a problem for each key whose value differs from the Trainer's argument; nothing for other programs."""
    if facts.trainer:
        for path, got, need in trainer_mismatches(facts.tree.data, facts.arguments):
            yield facts.problem(
                path,
                "is not what the program's arguments say",
                got=shorten(repr(got)),
                need=shorten(repr(need)),
                hint='"auto"',
            )


def deepspeed_four_bit_weights_whole(facts: DeepSpeedFacts) -> Iterator[Problem]:
    """Yield a problem if 4-bit weights are loaded under ZeRO-3 without bnb_4bit_quant_storage: it cannot shard them."""
    names, given = ("load_in_4bit", "use_4bit", "quantization_bit", "bits"), facts.arguments
    option, text = given.find(*names), given.text(*names)
    whole = text is not None and text.lower() in ("4", "", "true", "1") and not given.given("bnb_4bit_quant_storage")
    if facts.stage == 3 and whole:
        loader = option.spelled if option else "the program"
        what = f"stage 3 does not split the 4-bit weights that {loader} loads: every GPU holds all of them"
        yield facts.problem((ZERO, "stage"), what, hint="bnb_4bit_quant_storage bfloat16, or stage 2")


# Attributes of the facts that rows name as they are. Every other name is a key, a path with dots.
FACTS = words("stage precision tensor_parallel sequence_parallel expert_parallel may_share_data trainer gpus")
TABLE: Mapping[str, Constraint] = {**vars(shared), **vars(around_transformers), **vars(constraints)}

ACCUMULATED = "data_types.grad_accum_dtype"
# What follows from keys and from what is around them, by the names that rows give it.
DERIVED: Mapping[str, Callable[[DeepSpeedFacts], Any]] = {
    "degree": lambda facts: facts.tensor_parallel * facts.sequence_parallel,
    "key_of_degree": lambda facts: (
        "tensor_parallel.autotp_size" if facts.tensor_parallel > 1 else "sequence_parallel_size"
    ),
    "key_of_precision": lambda facts: "bf16" if facts.section("bf16") else "",
    "key_of_accumulation": lambda facts: ACCUMULATED if _key(facts, ACCUMULATED) else ACCUMULATION,
    "accumulates_otherwise": lambda facts: facts.precision not in (_key(facts, ACCUMULATED), "unknown"),
    "stage3_key": lambda facts: next((key for key in facts.section(ZERO) if key.startswith("stage3_")), None),
    "gib": lambda facts: Looked(lambda key: 2 * _key(facts, key) / 2**30),
    "torchrun": lambda facts: any("torchrun" in word or "torch.distributed" in word for word in facts.launcher),
    "threads_unset": lambda facts: facts.environment is not None and "OMP_NUM_THREADS" not in facts.environment,
}


def _key(facts: DeepSpeedFacts, path: str) -> Any:
    return facts.get(*path.split("."))


def _value(facts: DeepSpeedFacts, name: str) -> Any:
    if name in FACTS:
        return getattr(facts, name)
    return DERIVED[name](facts) if name in DERIVED else _key(facts, name)


def _stated(facts: DeepSpeedFacts, path: str) -> bool:
    """Return whether the key at a dotted path is given, with any value."""
    *section, key = path.split(".")
    return key in facts.section(*section)


def _failing(facts: DeepSpeedFacts, names: str) -> tuple[str, str | None] | None:
    """Return sentence and hint of the first of the named constraints that fails; None if none is known to.

    names: constraints of the table, separated by blanks.
    """
    fixed, point = Fixed() if facts.model is None else Fixed.of(facts.model), _point(facts)
    for constraint in failing([TABLE[name] for name in names.split()], fixed, point):
        return constraint.sentence_at(fixed, point), constraint.hint
    return None


def _point(facts: DeepSpeedFacts) -> ConfigurationSet:
    """Return the configuration's degrees and options as the planner's columns; tp is AutoTP's and cp Ulysses' degree.

    The optimizer's offloaded share is 1 without a ratio, and 0 if it is not offloaded.
    """
    share = facts.number(ZERO, "offload_optimizer", "ratio")
    return ConfigurationSet(
        tp=facts.tensor_parallel,
        cp=facts.sequence_parallel,
        ep=facts.expert_parallel,
        cp_comm="a2a",
        zero_stage=facts.stage,
        grad_bytes=4 if facts.get("data_types", "grad_accum_dtype") == "fp32" else 2,
        optimizer_offload=0.0 if not facts.offloads("offload_optimizer") else 1.0 if share is None else share,
        param_offload=facts.offloads("offload_param"),
    )


def _problem(
    facts: DeepSpeedFacts, about: list[str], what: str = "", fails: str | None = None, of_key: bool = False, **more: Any
) -> Problem | None:
    """Return a problem at the key `about[0]` (without one, about the whole JSON).

    Return None if `fails` is given and none of it fails. of_key: at the key's name, not at its value. fails: names of
    constraints; the first failing one supplies sentence and hint.
    """
    texts = {key: more[key] for key in TEXTS if key in more}
    if fails is not None:
        if (failed := _failing(facts, fails)) is None:
            return None
        what, texts["hint"] = failed
    return facts.problem(tuple(about[0].split(".")) if about else (), what, of_key=of_key, **texts)


NAME_TESTS = {"stated": _stated, "fails": lambda facts, name: _failing(facts, name) is not None}
_MICRO = '{"train_micro_batch_size_per_gpu": 1, "bf16": {"enabled": true}'
_STAGE2 = '"zero_optimization": {"stage": 2, "overlap_comm": true'
# How examples begin; each closes the braces that are open.
BASES = {
    "MICRO": _MICRO,
    "STEPS": _MICRO.replace(" 1,", ' 1, "gradient_accumulation_steps": 8,'),
    "STAGE2": f"{_MICRO}, {_STAGE2}",
    "BATCH": f'{{"bf16": {{"enabled": true}}, "data_types": {{"grad_accum_dtype": "fp32"}}, {_STAGE2}}}',
}
LANGUAGE = Language(_value, _problem, NAME_TESTS, BASES)

KEYS, *_OTHERS = (
    rules_of(file, LANGUAGE, globals())
    for file in ("deepspeed_keys", "deepspeed_batch", "deepspeed_zero", "deepspeed_numbers")
)
MEANING = tuple(rule for rules in _OTHERS for rule in rules)
RULES = (*KEYS, *MEANING)
GRID = "deepspeed-grid"  # the rule of degrees that do not divide


def findings(facts: DeepSpeedFacts, rules: Sequence[Rule[DeepSpeedFacts]] = RULES) -> list[Finding]:
    """Return a finding for each problem of these rules, in the order of the file."""
    broken = [Finding(rule.name, rule.severity, problem) for rule in rules for problem in rule.check(facts)]
    return sorted(broken, key=lambda finding: (finding.problem.line or 0, finding.problem.column or 0))
