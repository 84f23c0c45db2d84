"""A plan is for one model and one sequence length: a configuration of another is refused, with what differs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from symconfig.descriptor.meaning import meaning
from symconfig.errors import Problem, Problems
from symconfig.existing.launch.reading import Reading
from symconfig.existing.recover.arguments import Arguments
from symconfig.existing.recover.deepspeed_model import described as named
from symconfig.existing.recover.model import described
from symconfig.existing.recover.namespace import Namespace
from symconfig.existing.recover.run import Supplied
from symconfig.existing.recover.zoo import differing
from symconfig.formats.tuners import SEQUENCE
from symconfig.plans.plan import Plan

# A plan may not depend on these, or hardly: dropout keeps masks, and a script has some by default.
_OPEN = frozenset({"norm_eps", "attention_dropout", "hidden_dropout", "adapter.lora_alpha", "adapter.lora_dropout"})
WHAT, HINT = "is not the sequence length of the plan", "a plan for this length"


def check(names: Namespace, plan: Plan) -> None:
    """Raise InputError with every field in which Megatron-LM's options state another model or length than the plan."""
    wanted, problems = plan.best.configuration.seq_length, Problems()
    if (length := names.whole("seq_length", wanted)) != wanted:
        problems.add(names.problem(WHAT, "seq_length", got=length, need=str(wanted), hint=HINT))
    vocab_size = plan.model.vocab_size
    mine = problems.collect(
        lambda: meaning(described(names, seq_length=length, vocab_size=vocab_size, named=plan.model).model)
    )
    if mine is not None:
        problems.add(*_other_model(mine, plan, names.settings[0].place.file if names.settings else None))
    problems.check()


def check_program(reading: Reading, plan: Plan) -> None:
    """Raise InputError if a program states another sequence length or model than the plan."""
    arguments, wanted = Arguments(reading.settings), plan.best.configuration.seq_length
    problems = Problems()
    length = arguments.whole(*SEQUENCE)
    if length is not None and length != wanted:
        problems.add(Problem(WHAT, file=reading.file, got=str(length), need=str(wanted), hint=HINT))
    described = named(reading, arguments, Supplied(), [])
    if described is not None:
        problems.add(*_other_model(meaning(described.model), plan, reading.file))
    problems.check()


def _other_model(mine: Mapping[str, object], plan: Plan, file: str | None) -> Iterator[Problem]:
    """Yield a problem for each field in which two models differ, but for those of `_OPEN`.

    mine: the configuration's model, as fields by dotted name. file: named in each problem.
    """
    theirs = meaning(plan.model)
    for field in (each for each in differing(mine, theirs) if each not in _OPEN):
        yield Problem(
            f"is not that of the plan's model, {plan.model.name}",
            file=file,
            field=field,
            got=str(mine.get(field, "nothing")),
            need=str(theirs.get(field, "nothing")),
            hint="a plan for this model",
        )
