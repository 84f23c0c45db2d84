"""From a script, or a line of arguments, to a Reading."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from symconfig.errors import InputError, Problem
from symconfig.existing.launch.bash import training
from symconfig.existing.launch.bash.interpret import Interpreter
from symconfig.existing.launch.bash.source import Source
from symconfig.existing.launch.bash.state import Budget, Exhausted, Leave, Log, State, plain, shortened
from symconfig.existing.launch.bash.training import Split, arguments, may_be_options, unread_word
from symconfig.existing.launch.reading import OTHER_RUN, Hides, Piece, Reading, Unread, Word, text_of, unknown_of
from symconfig.existing.launch.text import Place, Text
from symconfig.existing.launch.world import world

COMMAND = "a command such as torchrun ... pretrain_gpt.py --num-layers 32 ..."  # that is needed
GIVEN = "(arguments given to the script)"  # the file of words that `extra` adds
LINE_BYTES = 1 << 16  # of one line: columns are counted from its start
_SHOWN = 5  # commands that a message names
MOST_RUNS = 16  # of one program that are read as runs of their own
_CUT = "is a command of its own for bash: the one above it ends before, at a comment, a blank line or a \\ with a blank"
_VARIABLE = re.compile(r"([A-Z_][A-Z0-9_]*)=")
_DIRECTIVE = re.compile(rb"^#SBATCH[ \t]+(.*)$", re.MULTILINE)
# What Slurm sets from its options: sbatch's manual, "output environment variables".
_SLURM = {
    **dict.fromkeys(("nodes", "N"), ("SLURM_NNODES", "SLURM_JOB_NUM_NODES")),
    **dict.fromkeys(("ntasks", "n"), ("SLURM_NTASKS", "SLURM_NPROCS")),
    "ntasks-per-node": ("SLURM_NTASKS_PER_NODE",),
    "gpus-per-node": ("SLURM_GPUS_PER_NODE", "SLURM_GPUS_ON_NODE"),
    "gres": ("SLURM_GPUS_ON_NODE",),
    "cpus-per-task": ("SLURM_CPUS_PER_TASK",),
}


@dataclass(frozen=True, slots=True)
class Bash:
    """The reading of a script, with its further runs, and the contents of the files that it writes, by name."""

    reading: Reading
    virtual: Mapping[str, bytes]


def read_bash(
    text: Text,
    *,
    folder: Path | None = None,
    variables: Mapping[str, str] | None = None,
    extra: Sequence[str] = (),
) -> Bash:
    """Return the training command of a script, its options, further runs and files that it writes; executes nothing.

    folder: the script's, where sourced files are; None: no file is opened. variables: the environment. extra:
    arguments. What follows after too much work or nesting is noted as unread. Raises InputError without a training
    command, for too long a line, and for sourced files that cannot be read.
    """
    longest = max(map(len, text.data.split(b"\n")))
    if longest > LINE_BYTES:
        raise InputError(
            "has a line that is too long for a script",
            file=text.file,
            got=f"{longest:,} bytes",
            need=f"at most {LINE_BYTES:,}",
        )
    log = Log([text], folder)
    shell = Interpreter(_state(text, folder, variables or {}, extra), Budget(), log)
    path = folder / Path(text.file).name if folder is not None else None
    shell.sourcing = (str(path.resolve()),) if path is not None else ()
    try:
        shell.program(Source.of_file(text))
    except Leave:
        pass
    except (Exhausted, RecursionError) as error:
        place = (error.place if isinstance(error, Exhausted) else None) or text.place(0, 0)
        why = str(error) if isinstance(error, Exhausted) else "is nested too deeply"
        log.add(place, log.written(place) or text.file, f"{why}: what comes after it was not read")
    return _result(text, log, shell.state)


def _state(text: Text, folder: Path | None, variables: Mapping[str, str], extra: Sequence[str]) -> State:
    """Return the initial state: exported environment, arguments `extra`, and with a folder `$0` and the current folder.

    Slurm's variables of the script's directives are exported if the environment lacks them and the number is decimal.
    """
    nowhere = text.place(0, 0)
    given = {name: plain(value, place=nowhere) for name, value in variables.items()}
    state = State({**given}, set(given))
    state.arguments = tuple(Word((Piece(word),), Place(GIVEN, 0, 0, 1, index + 1)) for index, word in enumerate(extra))
    for option, word in _directives(text).items():
        for name in _SLURM.get(option, ()):
            value = word.pieces[0].text.rpartition(":")[2]
            if name not in state.variables and value.isdecimal():
                state.exported.add(name)
                place = word.place if value == word.text else None
                state.variables[name] = (Piece(value, place, written=word.place),)
    if folder is not None:
        state.folder = plain(str(folder), place=nowhere)
        name = Path(text.file).name  # of $0: the absolute path if the folder is absolute
        state.variables["0"] = plain(str(folder / name) if folder.is_absolute() else f"./{name}", place=nowhere)
    return state


def _result(text: Text, log: Log, state: State) -> Bash:
    """Return the reading of the command most like training, else of a line of options, with runs and written files.

    Its notes are those of the log, the command's surroundings, unknown words and files with unknown contents, each
    once. Raises InputError if there is no such command.
    """
    splits = [split for command in log.commands if (split := training.split(command)) is not None]
    bare = (split for command in log.commands if (split := training.bare(command)) is not None)
    if (best := training.chosen(splits) or training.chosen([*bare])) is None:
        raise InputError(_no_training(text, log))
    reading, files = _reading(text, log, best), {**state.files, **best.command.files}
    dark_files = (
        Unread(word.place, word.text, f"is a file that the script writes, and it {why}")
        for setting in reading.settings
        for word in setting.values
        if word.text in files and (why := unknown_of(files[word.text]))
    )
    unread = dict.fromkeys((*log.unread, *_notes(best, log, splits), *reading.unread, *dark_files))
    runs, others = _other_commands(best, splits, log)
    further = tuple(_reading(text, log, run) for run in runs)
    reading = replace(reading, unread=tuple(unread), others=others, stops=tuple(log.stops), runs=further)
    virtual = {name: text_of(parts).encode() for name, parts in files.items() if not unknown_of(parts)}
    return Bash(reading, virtual)


def _reading(text: Text, log: Log, split: Split) -> Reading:
    """Return the reading of one training command: options, launcher, environment, world, and notes on unknown words."""
    launcher = tuple(word.joined() for word in split.launcher)
    settings, unread, possible = arguments(split.arguments, log.written)
    environment = {name: Word(parts, split.command.place).joined() for name, parts in split.command.environment.items()}
    environment |= _launcher_environment(split.launcher)
    scheduler = _directives(text)
    return Reading(
        "bash",
        tuple(log.texts),
        tuple(settings),
        split.program.joined() if split.program is not None else None,
        launcher,
        environment=environment,
        world=world(launcher, scheduler, environment),
        unread=tuple(unread),
        scheduler=scheduler,
        possible=tuple(possible),
    )


def _launcher_environment(launcher: Sequence[Word]) -> dict[str, Word]:
    """Return the variables that `env NAME=value`, `mpirun -x NAME=value` and the like set in front of the program."""
    found = ((word, _VARIABLE.match(word.text)) for word in launcher)
    return {match[1]: word.cut(match.end()).joined() for word, match in found if match is not None}


def _other_commands(best: Split, splits: Sequence[Split], log: Log) -> tuple[list[Split], tuple[tuple[str, ...], ...]]:
    """Return (runs, others): runs of the same program with other words, and the words of all other commands.

    Runs beyond 16 count as others; words of `log.aside` come last. Equal words occur once, the chosen command's never.
    """

    def key(words: Sequence[Word]) -> tuple[str, ...]:
        return tuple(f"{word.text}\0{word.unknown}" if word.unknown else word.text for word in words)

    mine, runs, others = key(best.command.words), dict[tuple[str, ...], Split](), dict[tuple[str, ...], None]()
    parted = {id(each.command): each for each in splits}
    for command in log.commands:
        words, split = key(command.words), parted.get(id(command))
        same = split is not None and best.program is not None and split.program is not None and split.does == best.does
        if words == mine or words in runs:
            continue
        if same and split is not None and len(runs) < MOST_RUNS:
            runs[words] = split
        else:
            others[words] = None
    return list(runs.values()), (*others, *dict.fromkeys(key(words) for words in log.aside))


def _notes(best: Split, log: Log, splits: Sequence[Split]) -> list[Unread]:
    """Return notes on what surrounds the chosen command `best`.

    That is: unknown words of its launcher, the condition under which it runs, other programs and runs, and commands
    that begin with a dash, as if a line had been cut off.
    """
    unread = []
    for index, word in enumerate(best.launcher):
        value = index > 0 and best.launcher[index - 1].text.startswith("-")
        if word.several and (not value or may_be_options(word)):
            unread.append(unread_word(word, log.written))
    if best.command.maybe:
        why = best.command.maybe.replace("is set under", "runs under", 1).replace("is set in", "runs in", 1)
        unread.append(Unread(best.command.place, "the training command", why))
    for other in splits:
        if other is not best:
            name = other.program.text if other.program is not None else "a command"
            why = "is another program that the script starts"
            if other.does == best.does and (differs := _differing(best, other)):
                name, why = shortened(differs), OTHER_RUN
            unread.append(Unread(other.command.place, name, why, Hides.NOTHING))
    for command in log.commands:
        if command.words[0].text.startswith("-") and best.program is not None:
            what = shortened(" ".join(word.text for word in command.words))
            unread.append(Unread(command.place, what, f"{_CUT} after it"))
    return unread


def _differing(best: Split, other: Split) -> str:
    """Return the words of another run that differ from the chosen one's, each with its option; empty if none."""
    mine, words = ([word.text for word in each.arguments] for each in (best, other))
    differ = [at for at, word in enumerate(words) if mine[at : at + 1] != [word]]
    named = (words[at - 1 : at + 1] if at and words[at - 1].startswith("-") else words[at : at + 1] for at in differ)
    return " ".join(word for pair in named for word in pair)


def _no_training(text: Text, log: Log) -> Problem:
    """Return the problem that a script starts no training program, with its first five commands and first note."""
    names = list(dict.fromkeys(command.words[0].text for command in log.commands if command.words[0].text))
    shown = ", ".join(names[:_SHOWN]) + (f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else "")
    first = next((item for item in log.unread if item.matters), None)
    why = f"; {first.place}: {first.what} {first.why}" if first is not None else ""
    return Problem(
        f"starts no training program that can be recognised{why}",
        file=text.file,
        got=f"commands {shown}" if names else "no command that starts a program",
        need=COMMAND,
        hint="the script that holds the training command, or its arguments as one line",
    )


def _directives(text: Text) -> dict[str, Word]:
    """Return the last value of each option in #SBATCH comments, by name without dashes."""
    options: dict[str, Word] = {}
    for match in _DIRECTIVE.finditer(text.data):
        line = match.group(1).split(b" #")[0]
        pairs = re.finditer(rb"--?([A-Za-z][\w-]*)(?:[= \t]+([^\s-]\S*))?", line)
        for pair in pairs:
            if pair.group(2) is None:
                continue
            start = match.start(1) + pair.start(2)
            place = text.place(start, start + len(pair.group(2)))
            value = pair.group(2).decode("utf-8", "replace")
            options[pair.group(1).decode()] = Word.of(value, place, literal=True)
    return options
