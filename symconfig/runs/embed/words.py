"""The words that a plan's program is given, and which of them bash would not pass on from `$(…)` as they are."""

from __future__ import annotations

import importlib
import pkgutil
import re
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from typing import Any

from symconfig import render
from symconfig.errors import InputError, Problem, among
from symconfig.plans.plan import Plan
from symconfig.render.target import Target

MAPFILE = "mapfile -d '' ARGS < <(symconfig render PLAN.json --print --null), then \"${ARGS[@]}\""
# bash splits what `$(…)` gives at white space, and then takes words with these for patterns of file names; of the last
# two, where extglob is on.
_PATTERN = re.compile(r"[*?\[\\]|[+@!]\(")
_OPTION = re.compile(r"(--[^=]+|[a-z_]+(?:\.\w+)+(?==))")  # --lr, or Hydra's optimizer.lr=


@cache
def targets() -> dict[str, Callable[[Plan], Sequence[str]]]:
    """Return {target: function from plan to words} of the targets whose program takes command-line words, by name.
    Cached.
    """
    modules: dict[str, Callable[[Plan], Sequence[str]]] = {}
    for info in pkgutil.iter_modules(render.__path__):
        module: Any = importlib.import_module(f"{render.__name__}.{info.name}")
        target: Target | None = getattr(module, "TARGET", None)
        if target is not None and callable(getattr(module, "words", None)):
            modules[target.name] = module.words
    return dict(sorted(modules.items()))


def words(plan: Plan, target: str) -> list[str]:
    """Return the command-line words for a target's program. Raises InputError for a target without words, and as its
    rendering does.
    """
    if target not in targets():
        what = "is no target whose program takes words"
        raise InputError(what, field="target", got=repr(target), **among(target, targets()))
    return list(targets()[target](plan))


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
