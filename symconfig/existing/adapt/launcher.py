"""The launcher's numbers of nodes and GPUs, and the environment variables that a plan cannot do without."""

from __future__ import annotations

import re
from collections.abc import Iterator

from symconfig.existing.adapt import guard, words
from symconfig.existing.adapt.counts import counted, written
from symconfig.existing.adapt.draft import Draft, Progress
from symconfig.existing.adapt.outcome import Change, Unplaced
from symconfig.existing.launch.reading import Word
from symconfig.existing.launch.text import Edit
from symconfig.format import several
from symconfig.frameworks.megatron import environment
from symconfig.plans.plan import Plan
from symconfig.render import megatron, summary


def numbers(progress: Progress, plan: Plan) -> Progress:
    """Set as many GPUs as the plan is for, where the launcher says a number."""
    world, wanted = progress.draft.reading.world, plan.best.parallel.world_size
    nodes = summary.nodes(plan)
    if world.gpus == wanted:
        if world.nodes is not None and world.nodes != nodes.count:
            return progress.noted(
                f"The plan counts on {nodes.count} x {nodes.gpus} GPUs; here "
                f"{several(world.nodes, 'node')} of {world.gpus_per_node} are started, "
                "between which other links lie."
            )
        return progress
    stops = guard.checks(progress.draft)
    progress = counted(progress, nodes)
    progress = guard.moved(progress, stops, str(world.gpus), str(wanted))
    gpus = progress.draft.reading.world.gpus
    if gpus is None:
        return progress.noted(f"The plan is for {wanted} GPUs; how many are started here is not said in the file.")
    if gpus != wanted:
        place = next((word.place for word in progress.draft.reading.world.words), None)
        why = f"the launcher's words for {gpus} GPUs could not be changed without changing something else"
        return progress.lacking(Unplaced("the number of GPUs", str(wanted), why, place))
    return progress


def variables(progress: Progress, plan: Plan) -> Progress:
    """Return the variables without which the plan does not start or is wrong; the others are the user's own choice."""
    for row in environment.variables(plan, megatron.version(plan)):
        if not row.forced:
            continue
        word = progress.draft.reading.environment.get(row.name)
        if word is None:
            progress = _exported(progress, row)
        elif word.unknown is not None:
            progress = progress.lacking(Unplaced(row.name, row.value, f"its value {word.unknown}", written(word)))
        elif word.text != row.value:
            progress = _variable(progress, row, word)
    return progress


def _exported(progress: Progress, row: environment.Variable) -> Progress:
    """Add a line for a variable behind another that exports, where the file changes anyway; else a person may have it
    elsewhere.
    """
    draft = progress.draft
    before = draft.meaning
    goal = before.exported(row.name, row.value)
    edits = list(_export_lines(draft, f"export {row.name}={row.value}")) if progress.changes else []
    after = draft.tried(edits, goal.__eq__)
    if after is None:
        return progress.noted(f"{row.name}={row.value} has to be in the environment: {row.reason}.")
    return progress.went(after, Change(row.name, None, row.value, written(after.reading.environment[row.name])))


def _export_lines(draft: Draft, line: str) -> Iterator[tuple[Edit, ...]]:
    """Yield the line behind each one-line export, the last first."""
    places = (written(word) for word in draft.reading.environment.values())
    for place in sorted((place for place in places if place.file in draft.texts), reverse=True):
        text = draft.texts[place.file]
        start, end = text.data.rfind(b"\n", 0, place.start) + 1, text.data.find(b"\n", place.end)
        if end >= 0 and text.data[start:end].startswith(b"export ") and b"\n" not in text.data[start:end]:
            newline = "\r\n" if text.data[:end].endswith(b"\r") else "\n"
            yield (Edit(text.place(end + 1, end + 1), f"{line}{newline}"),)


def unset(progress: Progress, name: str, why: str) -> Iterator[Progress]:
    """Yield the progress without this variable, where a line of its own exports it. why: a clause."""
    draft = progress.draft
    word = draft.reading.environment[name]
    place = written(word)
    text = draft.texts.get(place.file)
    if text is None:
        return
    start, end = text.data.rfind(b"\n", 0, place.start) + 1, text.data.find(b"\n", place.end)
    line = text.data[start : max(end, 0)]
    if re.fullmatch(rb"[ \t]*export[ \t]+%s=\S+[ \t]*(#.*)?\r?" % re.escape(name.encode()), line) is None:
        return
    after = draft.tried([(Edit(text.place(start, end + 1), ""),)], draft.meaning.without(name).__eq__)
    if after is not None:
        yield progress.went(after, Change(name, word.text, None, place, why))


def _variable(progress: Progress, row: environment.Variable, word: Word) -> Progress:
    before = progress.draft.meaning
    goal = before.exported(row.name, row.value)
    after = progress.draft.tried(words.changed(word, row.value, progress.draft.texts), goal.__eq__)
    if after is None:
        why = "to write it there would change something else as well"
        return progress.lacking(Unplaced(row.name, row.value, why, written(word)))
    return progress.went(after, Change(row.name, word.text, row.value, written(word)))
