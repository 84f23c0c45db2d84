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
    """A number of nodes, processes or GPUs in a script.

    at: index of its word in the launcher, or its name in the scheduler's options, the environment or Accelerate's file
    (`of`). option: its name in messages. word: the digits as they stand. head: the text before them in the same word.
    number: the number that is needed (of GPUs in a list).
    """

    at: int | str
    option: str
    word: Word
    head: str
    number: int
    of: Literal["launcher", "scheduler", "environment", "accelerate"] = "launcher"

    @property
    def now(self) -> str:
        """Return the text that the word needs: the number, or for CUDA_VISIBLE_DEVICES the list `0,1,...` of that many
        GPUs.
        """
        return ",".join(map(str, range(self.number))) if self.at == _SEEN else str(self.number)

    @property
    def right(self) -> bool:
        if self.at == _SEEN:  # whichever they are
            return len(self.word.text.split(",")) == self.number
        return self.word.text == self.now


def counts(reading: Reading, nodes: Nodes) -> Iterator[Count]:
    """Yield each readable number of nodes, processes or GPUs with the number that `nodes` needs, whether it is right or
    not.

    From the launchers' options, #SBATCH comments, CUDA_VISIBLE_DEVICES (if it counts the GPUs) and Accelerate's file.
    """
    launcher = reading.launcher
    for given in launcher_options(launcher):
        outer = given.launcher in _OUTER and bool(_process_starters(launcher[given.at :]))
        number = _number(LAUNCHERS[given.launcher].counts, given.key, nodes, outer)
        if number is not None:
            yield from _count(given.at, given.option, launcher[given.at], given.value, number)
    starts = _process_starters(launcher)
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
    """Yield the numbers of nodes and GPUs in Accelerate's file.

    Yield nothing if there is none, or it is not one of the read files.
    """
    tree = reading.accelerate
    if tree is None or tree.text.file not in {each.file for each in reading.texts}:  # it comes with the program
        return
    for name in _OF_ACCELERATE:
        number, place = _number(_OF_ACCELERATE, name, nodes, False), tree.place((name,))
        if number is not None and type(tree.get(name)) is int and place is not None:
            yield Count(name, name, Word.of(str(tree.get(name)), place, literal=True), "", number, "accelerate")


def _process_starters(launcher: Sequence[Word]) -> list[str]:
    """Return the launchers among the words that start one process per GPU themselves (torchrun, but not srun or
    mpirun).
    """
    return [name for word in launcher if (name := basename(word.text)) in LAUNCHERS and name not in _OUTER]


def _number(table: Mapping[str, str], key: str, nodes: Nodes, outer: bool) -> int | None:
    """Return the number that a launcher's option needs; None where the option counts nothing.

    table: what each option counts. outer: a launcher inside starts a node's processes, so this one starts one task per
    node.
    """
    kind = table.get(key)
    if outer and key in _TASKS:
        return 1 if kind == "per_node" else nodes.count
    return {"nodes": nodes.count, "per_node": nodes.gpus, "gpus": nodes.count * nodes.gpus}.get(kind or "")


def _count(at: int | str, option: str, whole: Word, value: Word, number: int) -> Iterator[Count]:
    """Yield the count if the word's value is digits, or ends in them like `gpu:h100:8`; else nothing.

    at, option: as of `Count`. whole: the word. value: the part of it behind the `=`.
    """
    match = re.fullmatch(r"(gpu:(?:\w+:)?)?(\d+)", value.text)
    if whole.unknown is None and match is not None:
        head = len(whole.text) - len(match[2])
        digits = replace(whole, pieces=value.after(len(value.text) - len(match[2])).pieces)
        yield Count(at, option, digits, whole.text[:head], number)


def counted(progress: Progress, nodes: Nodes) -> Progress:
    """Return the progress with every wrong number of nodes, processes or GPUs replaced, in one edit.

    If that cannot be done without other changes, each number is listed as unplaced. Other commands that change with the
    numbers are allowed if need be, and noted.
    """
    draft = progress.draft
    reading = draft.reading
    wrong = [count for each in (reading, *reading.runs) for count in counts(each, nodes) if not count.right]
    if not wrong:
        return progress
    goal = _goal(draft.meaning, reading, nodes)
    own, literals = _without_scheduler_variables(goal), [_literals(wrong, draft)]
    # Programs beside the training may hang on the number of nodes, as one that reads so many lines of a host file.
    free = replace(own, others=())
    after = (
        draft.tried(literals, lambda meaning: _without_scheduler_variables(meaning) == own)
        or draft.tried(literals, lambda meaning: replace(_without_scheduler_variables(meaning), others=()) == free)
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
    """Return the configuration's meaning with every number as `nodes` needs it, in all runs."""
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
    """Return the draft with the numbers written in place of the variables that gave them; None where that is not right.

    None also where one comes through a SLURM_ variable.
    """
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
    return draft.tried(
        [tuple(every)], lambda meaning: _without_scheduler_variables(meaning) == _without_scheduler_variables(goal)
    )


def _literals(wrong: Iterable[Count], draft: Draft) -> tuple[Edit, ...]:
    """Return one edit for each literal that the wrong numbers come from.

    Return () if any of them is not written in a file of the draft.
    """
    edits: dict[Edit, None] = {}
    for count in wrong:
        place = count.word.pieces[-1].place
        if place is None or place.file not in draft.texts or draft.texts[place.file].at(place) != count.word.text:
            return ()
        edits[Edit(place, count.now)] = None
    return tuple(edits)


def _without_scheduler_variables(meaning: Meaning) -> Meaning:
    """Return the meaning without the SLURM_ variables, in all runs: the scheduler derives them from its options."""
    environment = tuple(item for item in meaning.environment if not item[0].startswith(_FOLLOWS))
    return replace(meaning, environment=environment, runs=tuple(map(_without_scheduler_variables, meaning.runs)))


def written(word: Word) -> Place:
    """Return where the value of an environment variable is written; the word's own place if it is written nowhere."""
    return next((piece.place for piece in word.pieces if piece.place is not None), word.place)


def checks(draft: Draft) -> frozenset[str]:
    """Return the source texts of the script's checks that fail with its current values and stop it."""
    return frozenset(_source(draft, check) for check in draft.reading.stops)


def moved(progress: Progress, before: frozenset[str], was: str, now: str) -> Progress:
    """Return the progress with `was` replaced by `now` in each check that fails since the number of GPUs changed.

    before: texts of the checks that failed already. A check that cannot be corrected like this is listed as unplaced.
    """
    new = [check for check in progress.draft.reading.stops if _source(progress.draft, check) not in before]
    for check in reversed(new):  # from the end, so that the places of the others stay
        progress = _corrected_check(progress, check, was, now)
    return progress


def _source(draft: Draft, check: Place) -> str:
    text = draft.texts.get(check.file)
    return text.at(check) if text is not None else ""


def _corrected_check(progress: Progress, check: Place, was: str, now: str) -> Progress:
    """Return the progress with the number in one check replaced, if it occurs there once and the check then passes.

    Else the number is listed as unplaced.
    """
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
    """Return the meaning without the other commands that the script starts, which include the check's own."""
    return replace(meaning, others=())


def numbers(progress: Progress, plan: Plan) -> Progress:
    """Return the progress with the launcher's numbers set to the plan's GPUs, and the script's checks of them
    corrected.

    Unchanged if the number of GPUs is right already; other nodes for the same number are only noted. An unknown number
    is noted, and one that cannot be changed is listed as unplaced.
    """
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
    """Return the progress with the environment variables that the plan needs to start or to be right.

    Advised ones are left alone. A variable with another value is changed; one that cannot be read or changed is listed
    as unplaced.
    """
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
    """Return the progress with an `export` line added after another one.

    The variable is only noted where no other change is made to the files, or no such line can be added.
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
    """Yield alternative edits that insert a line after each one-line `export`, the last of the script first."""
    places = (written(word) for word in draft.reading.environment.values())
    for place in sorted((place for place in places if place.file in draft.texts), reverse=True):
        text = draft.texts[place.file]
        start, end = text.data.rfind(b"\n", 0, place.start) + 1, text.data.find(b"\n", place.end)
        if end >= 0 and text.data[start:end].startswith(b"export ") and b"\n" not in text.data[start:end]:
            newline = "\r\n" if text.data[:end].endswith(b"\r") else "\n"
            yield (Edit(text.place(end + 1, end + 1), f"{line}{newline}"),)


def unset(progress: Progress, name: str, why: str) -> Iterator[Progress]:
    """Yield the progress with a variable's `export` line deleted; nothing if the line does anything else.

    why: a clause.
    """
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
    """Return the progress with a variable's value replaced; listed as unplaced where no edit changes just that."""
    before = progress.draft.meaning
    goal = before.exported(row.name, row.value)
    after = progress.draft.tried(words.changed(word, row.value, progress.draft.texts), goal.__eq__)
    if after is None:
        why = "to write it there would change something else as well"
        return progress.lacking(Unplaced(row.name, row.value, why, written(word)))
    return progress.went(after, Change(row.name, word.text, row.value, written(word)))
