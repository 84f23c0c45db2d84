"""The numbers of nodes and processes that a script gives its launchers, its scheduler, its environment and Accelerate's
file, and the environment variables that a plan cannot do without."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from posixpath import basename
from typing import Any

from symconfig.existing.adapt import words
from symconfig.existing.adapt.draft import ELSE_TOO, Change, Draft, Meaning, Progress, Ways
from symconfig.existing.launch.reading import Reading, Word
from symconfig.existing.launch.text import Edit, Place
from symconfig.existing.launch.world import launcher_options
from symconfig.format import several
from symconfig.frameworks.launchers import LAUNCHERS, SLURM
from symconfig.frameworks.megatron import environment
from symconfig.plans.plan import Plan
from symconfig.render import megatron, shared
from symconfig.render.shared import Nodes

_TASKS = ("n", "np", "ntasks", "ntasks_per_node", "num_proc", "npernode")
_OUTER = ("srun", "sbatch", "mpirun", "mpiexec", "horovodrun")
_SEEN = "CUDA_VISIBLE_DEVICES"  # GPUs by their numbers
_OF_ACCELERATE = {"num_machines": "nodes", "num_processes": "gpus"}  # what Accelerate's file counts
_FOLLOWS = "SLURM_"  # variables that the scheduler sets from its own options, which are compared themselves


@dataclass(frozen=True, slots=True)
class Count:
    """A number of nodes, processes or GPUs in a script.

    option: its name in messages. word: the text that counts, as it stands. now: the text that is needed. part, key:
    where a Meaning has it, and text: what that becomes.
    """

    option: str
    word: Word
    now: str
    part: str
    key: int | str
    text: Any


def counts(reading: Reading, nodes: Nodes) -> Iterator[Count]:
    """Yield a Count for each known number of nodes, processes or GPUs, with the number that `nodes` needs in its place.

    From the launchers' options, #SBATCH comments, CUDA_VISIBLE_DEVICES and the Accelerate file that was read. Right
    numbers are yielded, too.
    """
    launcher = reading.launcher
    for given in launcher_options(launcher):
        outer = given.launcher in _OUTER and bool(_process_starters(launcher[given.at :]))
        number = _number(LAUNCHERS[given.launcher].counts, given.key, nodes, outer)
        if number is not None:
            yield from _count(given.option, launcher[given.at], given.value, number, "launcher", given.at)
    starts = _process_starters(launcher)
    for option, word in reading.scheduler.items():
        number = _number(SLURM, option.replace("-", "_"), nodes, bool(starts))
        if number is not None:
            yield from _count(f"#SBATCH --{option}", word, word, number, "scheduler", option)
    seen = reading.environment.get(_SEEN)
    if seen is not None and not seen.unknown and reading.world.words and re.fullmatch(r"\d+(,\d+)*", seen.text):
        right = len(seen.text.split(",")) == nodes.gpus  # whichever they are
        now = seen.text if right else ",".join(map(str, range(nodes.gpus)))
        yield Count(_SEEN, replace(seen, place=written(seen)), now, "environment", _SEEN, now)
    tree = reading.accelerate
    if tree is None or tree.text.file not in {each.file for each in reading.texts}:  # it comes with the program
        return
    for name in _OF_ACCELERATE:
        number, place = _number(_OF_ACCELERATE, name, nodes, False), tree.place((name,))
        if number is not None and type(tree.get(name)) is int and place is not None:
            word = Word.of(str(tree.get(name)), place, literal=True)
            yield Count(name, word, str(number), "accelerate", name, number)


def _process_starters(launcher: Sequence[Word]) -> list[str]:
    """Return the launchers among the words that start a process per GPU (torchrun, but not srun or mpirun)."""
    return [name for word in launcher if (name := basename(word.text)) in LAUNCHERS and name not in _OUTER]


def _number(table: Mapping[str, str], key: str, nodes: Nodes, outer: bool) -> int | None:
    """Return the nodes, GPUs per node or GPUs, whichever the option `key` counts by `table`; None for others.

    outer: a launcher inside starts a node's processes; numbers of tasks are those of nodes.
    """
    kind = table.get(key)
    if outer and key in _TASKS:
        return 1 if kind == "per_node" else nodes.count
    return {"nodes": nodes.count, "per_node": nodes.gpus, "gpus": nodes.count * nodes.gpus}.get(kind or "")


def _count(option: str, whole: Word, value: Word, number: int, part: str, key: int | str) -> Iterator[Count]:
    """Yield the count if `value`, the end of the word `whole`, is digits or ends in them like `gpu:h100:8`."""
    match = re.fullmatch(r"(gpu:(?:\w+:)?)?(\d+)", value.text)
    if whole.unknown is None and match is not None:
        head = whole.text[: len(whole.text) - len(match[2])]
        digits = replace(whole, pieces=value.after(len(value.text) - len(match[2])).pieces)
        yield Count(option, digits, str(number), part, key, f"{head}{number}")


def with_gpus(progress: Progress, plan: Plan) -> Progress:
    """Return the progress with the launcher's numbers set to the plan's GPUs.

    Unchanged if the number of GPUs is right, but another number of nodes is noted. An unknown number is noted, one that
    cannot be changed listed as unplaced, and so is a check of the script's own that fails then.
    """
    world, wanted = progress.draft.reading.world, plan.best.configuration.world_size
    nodes = shared.nodes(plan)
    if world.gpus == wanted:
        if world.nodes is not None and world.nodes != nodes.count:
            return progress.with_note(
                f"The plan counts on {nodes.count} x {nodes.gpus} GPUs; here "
                f"{several(world.nodes, 'node')} of {world.gpus_per_node} are started, "
                "between which other links lie."
            )
        return progress

    failed = _stops(progress.draft)
    progress = _counted(progress, nodes)
    for source, check in _stops(progress.draft).items():
        if source not in failed:
            why = f"the script stops unless {source.strip()} is passed"
            progress = progress.with_unplaced("the number of GPUs in a check", str(wanted), why, check)
    gpus = progress.draft.reading.world.gpus
    if gpus is None:
        return progress.with_note(f"The plan is for {wanted} GPUs; the file does not state how many it starts.")
    if gpus != wanted:
        place = next((word.place for word in progress.draft.reading.world.words), None)
        why = f"the launcher's words for {gpus} GPUs could not be changed without changing something else"
        return progress.with_unplaced("the number of GPUs", str(wanted), why, place)
    return progress


def _stops(draft: Draft) -> dict[str, Place]:
    """Return the checks that end the script with an error, by their text."""
    return {draft.texts[check.file].at(check): check for check in draft.reading.stops if check.file in draft.texts}


def _counted(progress: Progress, nodes: Nodes) -> Progress:
    """Return the progress with every wrong number of nodes, processes or GPUs replaced, in one edit.

    If that cannot be done without other changes, each number is listed as unplaced. Commands that follow are noted.
    """
    draft = progress.draft
    wrong = [count for count in counts(draft.reading, nodes) if count.word.text != count.now]
    if not wrong:
        return progress
    goal = draft.meaning
    for count in wrong:
        goal = goal.put(count.part, count.key, count.text)
    own = _without_derived(goal)
    places = {count.word.pieces[-1].place: count for count in wrong}
    edits = [
        Edit(place, count.now)
        for place, count in places.items()
        if place is not None and place.file in draft.texts and draft.texts[place.file].at(place) == count.word.text
    ]
    after = draft.first_right(
        [edits] if len(edits) == len(places) else (), lambda meaning: _without_derived(meaning) == own
    )
    if after is None:
        why = "it hangs together with other words that would change as well"
        for count in wrong:
            progress = progress.with_unplaced(count.option, count.now, why, count.word.place)
        return progress
    for other in after.meaning.others:
        if other not in draft.meaning.others:
            progress = progress.with_note(f"Another command follows the number of nodes or GPUs: {' '.join(other)}")
    changed = {count.word.place: Change(count.option, count.word.text, count.now, count.word.place) for count in wrong}
    return progress.with_changes(after, *changed.values())


def _without_derived(meaning: Meaning) -> Meaning:
    """Return the meaning without the script's other commands and without the variables that the scheduler derives."""
    stated = {name: value for name, value in meaning.environment.items() if not name.startswith(_FOLLOWS)}
    return replace(meaning, others=(), environment=stated)


def written(word: Word) -> Place:
    """Return where the value of an environment variable is written; the word's own place if it is written nowhere."""
    return next((piece.place for piece in word.pieces if piece.place is not None), word.place)


def with_variables(progress: Progress, plan: Plan) -> Progress:
    """Return the progress with the environment variables that the plan needs to start or to be right.

    One with another value is changed, or listed as unplaced. A missing one gets an `export` line, or is noted.
    """
    for row in environment.variables(plan, megatron.version(plan)):
        if not row.forced:
            continue
        draft = progress.draft
        word, goal = draft.reading.environment.get(row.name), draft.meaning.exported(row.name, row.value)
        if word is not None and word.unknown is not None:
            progress = progress.with_unplaced(row.name, row.value, f"its value {word.unknown}", written(word))
        elif word is not None and word.text != row.value:
            if (after := draft.first_right(words.changed(word, row.value, draft.texts), goal.__eq__)) is None:
                progress = progress.with_unplaced(row.name, row.value, ELSE_TOO, written(word))
            else:
                progress = progress.with_changes(after, Change(row.name, word.text, row.value, written(word)))
        elif word is None:
            lines = _export_lines(progress, f"export {row.name}={row.value}") if progress.changes else ()
            if (after := draft.first_right(lines, goal.__eq__)) is None:
                progress = progress.with_note(f"{row.name}={row.value} has to be in the environment: {row.reason}.")
            else:
                place = written(after.reading.environment[row.name])
                progress = progress.with_changes(after, Change(row.name, None, row.value, place))
    return progress


def without_export(progress: Progress, name: str) -> Progress | None:
    """Return the progress with a variable's `export NAME=value` line deleted.

    None if it has no such line, or if deleting it would change anything else.
    """
    draft = progress.draft
    if (word := draft.reading.environment.get(name)) is None or (text := draft.texts.get(written(word).file)) is None:
        return None
    place = written(word)
    start, end = text.data.rfind(b"\n", 0, place.start) + 1, text.data.find(b"\n", place.end) + 1
    if re.fullmatch(rb"[ \t]*export[ \t]+%s=\S+[ \t]*(#.*)?\r?\n" % name.encode(), text.data[start:end]) is None:
        return None
    rest = {key: value for key, value in draft.meaning.environment.items() if key != name}
    goal = replace(draft.meaning, environment=rest)
    after = draft.first_right([(Edit(text.place(start, end), ""),)], goal.__eq__)
    return None if after is None else progress.with_changes(after, Change(name, word.text, None, place))


def _export_lines(progress: Progress, line: str) -> Ways:
    """Yield alternative edits that insert a line after each one-line `export`, the last of the script first."""
    draft = progress.draft
    places = (written(word) for word in draft.reading.environment.values())
    for place in sorted((place for place in places if place.file in draft.texts), reverse=True):
        text = draft.texts[place.file]
        start, end = text.data.rfind(b"\n", 0, place.start) + 1, text.data.find(b"\n", place.end)
        if end >= 0 and text.data[start:end].startswith(b"export ") and b"\n" not in text.data[start:end]:
            newline = "\r\n" if text.data[:end].endswith(b"\r") else "\n"
            yield (Edit(text.place(end + 1, end + 1), f"{line}{newline}"),)
