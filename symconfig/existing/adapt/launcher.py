"""The numbers of nodes and processes that a script gives its launchers, its scheduler, its environment and Accelerate's
file, its own check of them, and the environment variables that a plan cannot do without."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from posixpath import basename
from typing import Literal

from symconfig.existing.adapt import words
from symconfig.existing.adapt.draft import Draft, Meaning, Progress
from symconfig.existing.adapt.outcome import Change, Unplaced
from symconfig.existing.launch.reading import Reading, Word
from symconfig.existing.launch.text import Edit, Place
from symconfig.existing.launch.world import launcher_options
from symconfig.format import several
from symconfig.frameworks.launchers import LAUNCHERS, SLURM
from symconfig.frameworks.megatron import environment
from symconfig.plans.plan import Plan
from symconfig.render import megatron, summary
from symconfig.render.summary import Nodes

_TASKS = ("n", "np", "ntasks", "ntasks_per_node", "num_proc", "npernode")
_OUTER = ("srun", "sbatch", "mpirun", "mpiexec", "horovodrun")
_SEEN = "CUDA_VISIBLE_DEVICES"  # GPUs by their numbers
_OF_ACCELERATE = {"num_machines": "nodes", "num_processes": "gpus"}  # what Accelerate's file counts
_FOLLOWS = "SLURM_"  # variables that the scheduler sets from its own options, which are compared themselves


@dataclass(frozen=True, slots=True)
class Count:
    """One number. at: index of its word in the launcher, or the name of what has it in `of`. word: its digits. head:
    what stands before them in the same word. number: what it has to be, or a list of so many."""

    at: int | str
    option: str
    word: Word
    head: str
    number: int
    of: Literal["launcher", "scheduler", "environment", "accelerate"] = "launcher"

    @property
    def now(self) -> str:
        """Return what has to stand there."""
        return ",".join(map(str, range(self.number))) if self.at == _SEEN else str(self.number)

    @property
    def right(self) -> bool:
        if self.at == _SEEN:  # whichever they are
            return len(self.word.text.split(",")) == self.number
        return self.word.text == self.now


def counts(reading: Reading, nodes: Nodes) -> Iterator[Count]:
    """Yield each number that is known, of the launchers' own words and of the scheduler's comments."""
    launcher = reading.launcher
    for given in launcher_options(launcher):
        outer = given.launcher in _OUTER and bool(_starters(launcher[given.at :]))
        number = _number(LAUNCHERS[given.launcher].counts, given.key, nodes, outer)
        if number is not None:
            yield from _count(given.at, given.option, launcher[given.at], given.value, number)
    starts = _starters(launcher)
    for option, word in reading.scheduler.items():
        number = _number(SLURM, option.replace("-", "_"), nodes, bool(starts))
        if number is not None:
            for count in _count(option, f"#SBATCH --{option}", word, word, number):
                yield replace(count, of="scheduler")
    seen = reading.environment.get(_SEEN)
    if seen is not None and not seen.unknown and reading.world.words and re.fullmatch(r"\d+(,\d+)*", seen.text):
        yield Count(_SEEN, _SEEN, replace(seen, place=written(seen)), "", nodes.gpus, "environment")
    yield from _of_accelerate(reading, nodes)


def _of_accelerate(reading: Reading, nodes: Nodes) -> Iterator[Count]:
    """Yield what Accelerate's file counts."""
    tree = reading.accelerate
    if tree is None or tree.text.file not in {each.file for each in reading.texts}:  # it comes with the program
        return
    for name in _OF_ACCELERATE:
        number, place = _number(_OF_ACCELERATE, name, nodes, False), tree.place((name,))
        if number is not None and type(tree.get(name)) is int and place is not None:
            yield Count(name, name, Word.of(str(tree.get(name)), place, literal=True), "", number, "accelerate")


def _starters(launcher: Sequence[Word]) -> list[str]:
    """Return the launchers that start the processes of a node themselves."""
    return [name for word in launcher if (name := basename(word.text)) in LAUNCHERS and name not in _OUTER]


def _number(table: Mapping[str, str], key: str, nodes: Nodes, outer: bool) -> int | None:
    """Return a number of a launcher. outer: another launcher starts the processes of each node, and this one starts
    that: a task a node.
    """
    kind = table.get(key)
    if outer and key in _TASKS:
        return 1 if kind == "per_node" else nodes.count
    return {"nodes": nodes.count, "per_node": nodes.gpus, "gpus": nodes.count * nodes.gpus}.get(kind or "")


def _count(at: int | str, option: str, whole: Word, value: Word, number: int) -> Iterator[Count]:
    """Yield a count. value: the end of the word `whole`; of `gpu:h100:8` the digits count."""
    match = re.fullmatch(r"(gpu:(?:\w+:)?)?(\d+)", value.text)
    if whole.unknown is None and match is not None:
        head = len(whole.text) - len(match[2])
        digits = replace(whole, pieces=value.after(len(value.text) - len(match[2])).pieces)
        yield Count(at, option, digits, whole.text[:head], number)


def counted(progress: Progress, nodes: Nodes) -> Progress:
    """Change all numbers at once, so that those which hang together stay together."""
    draft = progress.draft
    reading = draft.reading
    wrong = [count for each in (reading, *reading.runs) for count in counts(each, nodes) if not count.right]
    if not wrong:
        return progress
    goal = _goal(draft.meaning, reading, nodes)
    own, literals = _own(goal), [_literals(wrong, draft)]
    # Programs beside the training may hang on the number of nodes, as one that reads so many lines of a host file.
    free = replace(own, others=())
    after = (
        draft.tried(literals, lambda meaning: _own(meaning) == own)
        or draft.tried(literals, lambda meaning: replace(_own(meaning), others=()) == free)
        or _at_use(draft, wrong, goal)
    )
    if after is None:
        for count in wrong:
            why = "it hangs together with other words that would change as well"
            progress = progress.lacking(
                Unplaced(count.option, f"{count.head}{count.now}".rpartition("=")[2], why, count.word.place)
            )
        return progress
    for words_now in after.meaning.others:
        if words_now not in draft.meaning.others:
            progress = progress.noted(f"Another command follows the number of nodes or GPUs: {' '.join(words_now)}")
    for place, count in {count.word.place: count for count in wrong}.items():
        progress = progress.went(after, Change(count.option, count.word.text, count.now, place))
    return progress


def _goal(meaning: Meaning, reading: Reading, nodes: Nodes) -> Meaning:
    launcher, scheduler, filed = list(meaning.launcher), dict(meaning.scheduler), meaning.accelerate
    for count in counts(reading, nodes):
        now = f"{count.head}{count.number}"
        if isinstance(count.at, int):
            launcher[count.at] = now
        elif count.of == "scheduler":
            scheduler[count.at] = now
        elif count.of == "accelerate":
            filed = {**filed, count.at: count.number}
        elif not count.right:
            meaning = meaning.exported(count.at, count.now)
            launcher = [f"{count.at}={count.now}" if word.startswith(f"{count.at}=") else word for word in launcher]
    runs = (_goal(run, each, nodes) for run, each in zip(meaning.runs, reading.runs, strict=True))
    scheduled = tuple(sorted(scheduler.items()))
    return replace(meaning, launcher=tuple(launcher), scheduler=scheduled, accelerate=filed, runs=tuple(runs))


def _at_use(draft: Draft, wrong: Sequence[Count], goal: Meaning) -> Draft | None:
    """Change counts where the words stand, unless the scheduler's own number is one of them through a variable."""
    if any(
        any(name.startswith(_FOLLOWS) for piece in count.word.pieces for name in piece.variables) for count in wrong
    ):
        return None
    edits = (
        next(words.changed(replace(count.word, pieces=()), count.now, draft.texts), ())
        for count in wrong
        if len(count.word.pieces) == 1 and count.word.pieces[0].variables
    )
    plain = _literals([count for count in wrong if not any(piece.variables for piece in count.word.pieces)], draft)
    every = dict.fromkeys(edit for way in (*edits, plain) for edit in way)
    return draft.tried([tuple(every)], lambda meaning: _own(meaning) == _own(goal))


def _literals(wrong: Iterable[Count], draft: Draft) -> tuple[Edit, ...]:
    """Return each literal where its digits stand, once; nothing where one of them stands nowhere."""
    edits: dict[Edit, None] = {}
    for count in wrong:
        place = count.word.pieces[-1].place
        if place is None or place.file not in draft.texts or draft.texts[place.file].at(place) != count.word.text:
            return ()
        edits[Edit(place, count.now)] = None
    return tuple(edits)


def _own(meaning: Meaning) -> Meaning:
    """Return the configuration less what the scheduler sets itself."""
    environment = tuple(item for item in meaning.environment if not item[0].startswith(_FOLLOWS))
    return replace(meaning, environment=environment, runs=tuple(map(_own, meaning.runs)))


def written(word: Word) -> Place:
    """Return where the characters of a variable stand; the word itself is used by the whole command."""
    return next((piece.place for piece in word.pieces if piece.place is not None), word.place)


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
    stops = checks(progress.draft)
    progress = counted(progress, nodes)
    progress = moved(progress, stops, str(world.gpus), str(wanted))
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
