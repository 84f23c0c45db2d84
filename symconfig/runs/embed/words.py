"""The words that a plan's program is given, and which of them bash would not pass on from `$(…)` as they are."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from symconfig.errors import InputError, Problem, among
from symconfig.plans.plan import Plan
from symconfig.render import targets

MAPFILE = "mapfile -d '' ARGS < <(symconfig render PLAN.json --print --null), then \"${ARGS[@]}\""
# bash splits what `$(…)` gives at white space, and then takes words with these for patterns of file names; of the last
# two, where extglob is on.
_PATTERN = re.compile(r"[*?\[\\]|[+@!]\(")
_OPTION = re.compile(r"(--[^=]+|[a-z_]+(?:\.\w+)+(?==))")  # --lr, or Hydra's optimizer.lr=


def with_words() -> list[str]:
    """Return the names of the targets whose program takes command-line words."""
    return [name for name, target in targets().items() if target.words is not None]


def words(plan: Plan, target: str) -> list[str]:
    """Return the command-line words for a target's program. Raises InputError for a target without words,
    InfeasibleError for what the target cannot run, and what its `words` raises.
    """
    known = targets().get(target)
    if known is None or known.words is None:
        what = "is no target whose program takes words"
        raise InputError(what, field="target", got=repr(target), **among(target, with_words()))
    known.refuse(plan)
    return list(known.words(plan))


def unsafe(words: Sequence[str]) -> Iterator[Problem]:
    """Yield a problem for each word that unquoted `$(…)` in bash would split, drop or expand as a file pattern."""
    option = "the first word"
    for word in words:
        if named := _OPTION.match(word):
            option = named[0]
        if what := _changed(word):
            yield Problem(f"{what} in $(symconfig render ... --print)", field=option, got=repr(word), hint=MAPFILE)


def _changed(word: str) -> str:
    if not word:
        return "would be lost"
    if word.split() != [word]:
        return "would be split"
    return "may be replaced by names of files" if _PATTERN.search(word) else ""
