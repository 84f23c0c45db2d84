"""What rows about a DeepSpeed JSON can ask: values by their keys, facts around it, and constraints of the table."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from symconfig.descriptor.architectures.keys import words
from symconfig.errors import Problem
from symconfig.existing.rules.deepspeed_facts import DeepSpeedFacts
from symconfig.existing.rules.row import Language, Row
from symconfig.frameworks import around_transformers, shared
from symconfig.frameworks.constraint import Constraint, failing
from symconfig.frameworks.deepspeed import constraints
from symconfig.frameworks.deepspeed.keys import ZERO
from symconfig.frameworks.facts import Fixed
from symconfig.plans.columns import Columns

# Attributes of the facts that rows name as they are.
FACTS = words(
    """
    stage precision tensor_parallel sequence_parallel expert_parallel may_share_data trainer gpus arguments environment
    offloads
    """
)
TABLE: Mapping[str, Constraint] = {**vars(shared), **vars(around_transformers), **vars(constraints)}

# Each is given the facts; what it returns may be a function, which a row then calls. A key is a path with dots.
QUESTIONS: Mapping[str, Callable[[DeepSpeedFacts], Any]] = {
    "get": lambda facts: lambda key: facts.get(*key.split(".")),
    "zero": lambda facts: lambda key: facts.get(ZERO, *key.split(".")),
    "number": lambda facts: lambda key: facts.number(*key.split(".")),
    "whole": lambda facts: lambda key: facts.whole(*key.split(".")),
    "section": lambda facts: lambda key: facts.section(*key.split(".")),
    "stated": lambda facts: facts.section().__contains__,
    "failing": lambda facts: lambda names: _failing(facts, names),
    "torchrun": lambda facts: any("torchrun" in word or "torch.distributed" in word for word in facts.launcher),
}


def _word(facts: DeepSpeedFacts, name: str) -> Any:
    return getattr(facts, name) if name in FACTS else QUESTIONS[name](facts)


def _failing(facts: DeepSpeedFacts, names: str) -> tuple[str, str | None] | None:
    """Return the sentence and the hint of the first of some constraints that a configuration is known to fail."""
    fixed, point = Fixed() if facts.model is None else Fixed.of(facts.model), _point(facts)
    for constraint in failing([TABLE[name] for name in names.split()], fixed, point):
        return constraint.sentence_at(fixed, point), constraint.hint
    return None


def _point(facts: DeepSpeedFacts) -> Columns:
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


def _problem(facts: DeepSpeedFacts, about: list[str], what: str, **texts: Any) -> Problem:
    """Return a problem at a key. of_key: at its name, not at its value."""
    return facts.problem(tuple(about[0].split(".")) if about else (), what, **texts)


def _expanded(case: Row) -> Iterator[Row]:
    """Fill in the sentence of the first constraint that `fails`, where a case names some."""
    if "fails" in case:
        first = f"failing({case['fails']!r})"
        case = {key: value for key, value in case.items() if key != "fails"} | {
            "let": {"failed": first},
            "when": "failed is not None",
            "what": "{failed[0]}",
            "hint": "{failed[1]}",
        }
    yield case


LANGUAGE = Language(_word, _problem, _expanded)
