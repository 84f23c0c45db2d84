"""A script's own check of the number of GPUs, which would stop it with another number."""

from __future__ import annotations

import re
from dataclasses import replace

from symconfig.existing.adapt.draft import Draft, Meaning, Progress
from symconfig.existing.adapt.outcome import Change, Unplaced
from symconfig.existing.launch.text import Edit, Place


def checks(draft: Draft) -> frozenset[str]:
    """Return what is written of the conditions under which the script stops now."""
    return frozenset(_source(draft, check) for check in draft.reading.stops)


def moved(progress: Progress, before: frozenset[str], was: str, now: str) -> Progress:
    """Change the number in each new check, where it stands there once; else it is said that the script stops.

    before: checks that did not pass with the numbers that were there either.
    """
    new = [check for check in progress.draft.reading.stops if _source(progress.draft, check) not in before]
    for check in reversed(new):  # from the end, so that the places of the others stay
        progress = _moved(progress, check, was, now)
    return progress


def _source(draft: Draft, check: Place) -> str:
    text = draft.texts.get(check.file)
    return text.at(check) if text is not None else ""


def _moved(progress: Progress, check: Place, was: str, now: str) -> Progress:
    draft = progress.draft
    text = draft.texts.get(check.file)
    source = _source(draft, check)
    matches = list(re.finditer(rf"(?<![\w.]){re.escape(was)}(?![\w.])", source))
    after = None
    if text is not None and len(matches) == 1:
        start = check.start + len(source[: matches[0].start()].encode())
        place = text.place(start, start + len(was))
        goal = _comparable(draft.meaning)
        after = draft.tried([(Edit(place, now),)], lambda meaning: _comparable(meaning) == goal)
        if after is not None and len(after.reading.stops) < len(draft.reading.stops):
            return progress.went(after, Change("the script's own check", was, now, place))
    why = f"the script stops unless {source.strip()} is passed" if source else "the script stops at a check of its own"
    return progress.lacking(Unplaced("the number of GPUs in a check", now, why, check))


def _comparable(meaning: Meaning) -> Meaning:
    """Return the configuration less the commands of the check itself."""
    return replace(meaning, others=())
