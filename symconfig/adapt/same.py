"""A plan is for one model and one sequence length: a configuration of another is refused, with what differs."""

from __future__ import annotations

from symconfig.errors import InputError, Problem
from symconfig.plan import Plan
from symconfig.recover.model import described
from symconfig.recover.namespace import Namespace
from symconfig.recover.zoo import differing, meaning


def check(names: Namespace, plan: Plan) -> None:
    """Raises InputError with every field in which the configuration's model is not the plan's."""
    wanted = plan.best.batch.seq_length
    said = names.whole("seq_length", wanted)
    problems = [] if said == wanted else [_length(names, said, wanted)]
    try:
        mine = meaning(described(names, seq_length=said, vocab_size=plan.model.vocab_size, named=plan.model).model)
    except InputError as error:
        raise InputError([*problems, *error.problems]) from None
    theirs = meaning(plan.model)
    file = names.settings[0].place.file if names.settings else None
    problems += [
        Problem(f"is not that of the plan's model, {plan.model.name}", file=file, field=field,
                got=_shown(mine.get(field)), need=_shown(theirs.get(field)), hint="a plan for this model")
        for field in differing(mine, theirs)
    ]
    if problems:
        raise InputError(problems)


def _shown(value: object) -> str:
    return "nothing" if value is None else str(value)


def _length(names: Namespace, said: int, wanted: int) -> Problem:
    what, hint = "is not the sequence length of the plan", "a plan for this length"
    setting = names.setting("seq_length")
    if setting is None:
        return Problem(what, field="seq_length", got=str(said), need=str(wanted), hint=hint)
    return names.problem(setting, what, got=str(said), need=str(wanted), hint=hint)
