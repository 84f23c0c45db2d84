"""All rules of a DeepSpeed configuration, the words that their rows name, and what they find in one."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from symconfig.descriptor.architectures.keys import words
from symconfig.errors import Problem
from symconfig.existing.rules import deepspeed_checks
from symconfig.existing.rules.deepspeed_facts import DeepSpeedFacts
from symconfig.existing.rules.rule import TEXTS, Finding, Language, Looked, Rule, rules_of
from symconfig.frameworks import around_transformers, shared
from symconfig.frameworks.constraint import Constraint, failing
from symconfig.frameworks.deepspeed import constraints
from symconfig.frameworks.deepspeed.keys import ACCUMULATION, ZERO
from symconfig.frameworks.facts import Fixed
from symconfig.plans.columns import Columns

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


def _point(facts: DeepSpeedFacts) -> Columns:
    """Return the configuration's degrees and options as the planner's columns."""
    share = facts.number(ZERO, "offload_optimizer", "ratio")
    return Columns(
        tp=facts.tensor_parallel,
        cp=facts.sequence_parallel,
        ep=facts.expert_parallel,
        cp_comm="a2a",
        zero=facts.stage,
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
    rules_of(file, LANGUAGE, vars(deepspeed_checks))
    for file in ("deepspeed_keys", "deepspeed_batch", "deepspeed_zero", "deepspeed_numbers")
)
MEANING = tuple(rule for rules in _OTHERS for rule in rules)
RULES = (*KEYS, *MEANING)
GRID = "deepspeed-grid"  # the rule of degrees that do not divide


def findings(facts: DeepSpeedFacts, rules: Sequence[Rule[DeepSpeedFacts]] = RULES) -> list[Finding]:
    """Return a finding for each problem of these rules, in the order of the file."""
    broken = [Finding(rule.name, rule.severity, problem) for rule in rules for problem in rule.check(facts)]
    return sorted(broken, key=lambda finding: (finding.problem.line or 0, finding.problem.column or 0))
