"""From a script, or a line of arguments, to a Reading: which of its commands trains, and that command's words."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from posixpath import basename

from symconfig.descriptor.architectures.keys import words
from symconfig.errors import InputError, Problem
from symconfig.existing.launch.bash.interpret import Interpreter
from symconfig.existing.launch.bash.source import Source
from symconfig.existing.launch.bash.state import Budget, Command, Exhausted, Leave, Log, State, holds_options, shortened
from symconfig.existing.launch.reading import OTHER_RUN, Hides, Reading, Setting, Unread, Word, text_of, unknown_of
from symconfig.existing.launch.text import Place, Text, cover
from symconfig.existing.launch.world import directives, world
from symconfig.frameworks.launchers import LAUNCHERS
from symconfig.frameworks.megatron.flags import is_option

COMMAND = "a command such as torchrun ... pretrain_gpt.py --num-layers 32 ..."  # that is needed
LINE_BYTES = 1 << 16  # of one line: columns are counted from its start
_SHOWN = 5  # commands that a message names
MOST_RUNS = 16  # of one program that are read as runs of their own
_CUT = "is a command of its own for bash: the one above it ends before, at a comment, a blank line or a \\ with a blank"
_VARIABLE = re.compile(r"([A-Z_][A-Z0-9_]*)=")
_BRANCHES = re.compile(r"is set (under a condition|in a loop)")
_OPTION = re.compile(r"-|[\w.+~]+=")  # how a line of options and overrides begins, which has no program
_TRAINING_LAUNCHERS = LAUNCHERS.keys() - {"sbatch"} | {"ray"}  # sbatch starts scripts
# Programs of their own, that are no file ending in .py.
_PROGRAMS = ("nemo", "swift", "megatron", "trl", "llamafactory-cli", "litgpt", "xtuner", "axolotl", "torchtitan")
_MODULE_LAUNCHERS = ("torch.distributed", "deepspeed.launcher", "accelerate.commands")
# What is started with options of its own, and trains nothing itself.
_TOOLS = ("pytest", "py.test", "unittest", "pip", "venv", "ruff", "mypy")
# Launcher options that take no value; of torchrun, deepspeed and accelerate.
_SWITCHES = words(
    """
    --standalone --no-python --no_python --use-env --use_env --run-path --run_path --no_local_rank --force_multi
    --multi_gpu --use_deepspeed --use_fsdp --no_ssh --module --elastic_training --save_pid --mixed -u -m
    """
)
_OTHER_WORK = re.compile(
    r"preprocess|convert|checkpoint|download|setup|evaluat|eval_|_eval|infer|generat|serve|server"
    r"|tokeniz|merge|benchmark_data|tools/|ckpt|export",
    re.IGNORECASE,
)
_TRAINS = re.compile(r"train|tune|sft|gpt|bert|llama|t5|rlhf|dpo", re.IGNORECASE)


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
    shell = Interpreter(State.initial(text, folder, variables or {}, extra), Budget(), log)
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


def _result(text: Text, log: Log, state: State) -> Bash:
    """Return the reading of the command most like training, else of a line of options, with runs and written files.

    Its notes are those of the log, the command's surroundings, unknown words and files with unknown contents, each
    once. Raises InputError if there is no such command.
    """
    splits = [split for command in log.commands if (split := _split(command)) is not None]
    lines = [Split(each, (), None, each.words) for each in log.commands if _OPTION.match(each.words[0].text)]
    if (best := max(splits or lines, key=lambda each: each.trains, default=None)) is None:
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
    settings, unread, possible = _arguments(split.arguments, log.written)
    environment = {name: Word(parts, split.command.place).joined() for name, parts in split.command.environment.items()}
    environment |= _launcher_environment(split.launcher)
    scheduler = directives(text)
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
        if word.several and (not value or _may_be_options(word)):
            unread.append(_unread_word(word, log.written))
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


# ---- a command's words: the launcher's, the program, the program's arguments


@dataclass(frozen=True, slots=True)
class Split:
    """A command's words in three parts; `program` is None for a bare line of options."""

    command: Command
    launcher: tuple[Word, ...]
    program: Word | None
    arguments: tuple[Word, ...]

    @property
    def does(self) -> tuple[str, ...]:
        """Return the program's path, with its subcommand if it is a known command with subcommands."""
        path = self.program.text if self.program is not None else ""
        return (path, *(word.text for word in self.arguments[:1] if basename(path) in _PROGRAMS))

    @property
    def trains(self) -> tuple[bool, bool, int]:
        """Return the key by which a script's training command is chosen, the greatest.

        That is (no other work such as evaluation, started by a launcher or named like training, number of options).
        """
        path = self.program.text if self.program is not None else ""
        name = "/".join(path.split("/")[-2:])  # the folder, too: tools/run.py
        named = basename(name) in _PROGRAMS or bool(_TRAINS.search(basename(name)))
        options = sum(word.text.startswith("-") or "=" in word.text for word in self.arguments)
        return not _OTHER_WORK.search(name), named or any(map(_starts, self.launcher)), options


def _split(command: Command) -> Split | None:
    """Return the command split at its program; None if it starts none, or a tool such as pip or pytest."""
    words = command.words
    at = _program_index(words, command.outer)
    if at is None or any(basename(word.text) in _TOOLS for word in words[: at + 1]):
        return None
    return Split(command, tuple(words[:at]), words[at], tuple(words[at + 1 :]))


def _program_index(words: Sequence[Word], outer: int) -> int | None:
    """Return the index of the program: a known command at index `outer`, else a .py file, or a module after the -m of
    python or a launcher. Modules of launchers are skipped. None for `python -c CODE` and `python -`; otherwise
    `_index_after_launcher`.
    """
    if basename(words[outer].text) in _PROGRAMS:  # whose options may name a script
        return outer
    python = False
    for index, word in enumerate(words):
        text = word.text
        name = basename(text)
        # A launcher that a variable holds is not known, and `-m` behind it names a module all the same.
        python |= _is_python(word) or name in _TRAINING_LAUNCHERS or word.unknown is not None
        if text in ("-c", "-") and index and words[index - 1].text.startswith("python"):
            return None
        if text.endswith(".py") and not text.startswith("-"):
            return index
        if text in ("-m", "--module") and python and index + 1 < len(words):
            module = words[index + 1].text
            if not module.startswith(_MODULE_LAUNCHERS) and not module.endswith(".py"):
                return index + 1
    return _index_after_launcher(words)


def _index_after_launcher(words: Sequence[Word]) -> int | None:
    """Return the index of the first word after launchers (or python), their options, launch, job, submit and `--`.

    None without a launcher, without a word from there on that begins with `--`, or if nothing follows. An option takes
    the next word unless it is a switch or has `=`; unknown words are skipped while options follow.
    """
    at = next((index for index, word in enumerate(words) if _starts(word) or _is_python(word)), len(words)) + 1
    if not any(word.text.startswith("--") for word in words[at - 1 :]):
        return None
    while at < len(words):
        text = words[at].text
        if text.startswith("-") and text != "--" and not words[at].several:
            at += 1 if "=" in text or text in _SWITCHES else 2
        elif words[at].several and any(_opens(word) for word in words[at + 1 :]) and not _opens(words[at + 1]):
            at += 1  # several options of the launcher in one word that is not known
        elif text in ("launch", "job", "submit", "--") or _starts(words[at]) or _is_python(words[at]):
            at += 1
        else:
            return at
    return None


def _is_python(word: Word) -> bool:
    return re.fullmatch(r"python[\d.]*", basename(word.text)) is not None


def _opens(word: Word) -> bool:
    return word.text.startswith("-") or word.several


def _starts(word: Word) -> bool:
    """Return whether a word is a launcher or a launcher's module."""
    return basename(word.text) in _TRAINING_LAUNCHERS or word.text.startswith(_MODULE_LAUNCHERS)


def _arguments(
    words: Sequence[Word], source: Callable[[Place], str]
) -> tuple[list[Setting], list[Unread], list[Setting]]:
    """Return (settings, unread, possible) of a program's arguments, grouped as by argparse.

    settings: its options; words before any option, and after a joined `--x=1`, are of a first one "". unread: notes on
    unknown words that may be options. possible: the options that these may be. source: the text at a place.
    """
    groups: list[tuple[Word | None, list[Word]]] = [(None, [])]
    unread, possible = list[Unread](), list[Setting]()
    for word in words:
        name, values = groups[-1]
        if word.several and (word.brings != () if name is None or values else _may_be_options(word)):
            unread.append(item := _unread_word(word, source))
            unknown = (Word.dark(item.why, word.place),)
            possible += [Setting(option, option, unknown, item.place) for option in word.brings or ()]
        elif is_option(word.text) and word.text != "--":
            groups += [(word, []), *([(None, list[Word]())] if "=" in word.text else [])]
        else:
            values.append(word)
    settings = [_setting(name, values) for name, values in groups if name is not None]
    if loose := [word for name, values in groups if name is None for word in values]:
        place = cover(word.place for word in loose) or loose[0].place
        settings.insert(0, Setting("", "", tuple(word.joined() for word in loose), place))
    return settings, unread, possible


def _setting(name: Word, values: Sequence[Word]) -> Setting:
    """Return an option with its values; a word `--x=1` has the one behind its `=`."""
    if "=" in name.text:
        spelled = name.text.partition("=")[0]
        return Setting(spelled, spelled, (name.after(len(spelled) + 1).joined(),), name.place, joined=True)
    last = values[-1].place if values else name.place
    whole = cover((name.place, last)) if name.place.start <= last.start else None
    return Setting(name.text, name.text, tuple(value.joined() for value in values), whole or name.place)


def _may_be_options(word: Word) -> bool:
    """Return whether an unknown word brings options; if not known, whether its variable or a branch suggests it."""
    if word.brings is not None:
        return bool(word.brings)
    names = [part.variables[-1] for part in word.pieces if part.variables]
    return any(map(holds_options, names)) or any(_BRANCHES.match(part.unknown or "") for part in word.pieces)


def _unread_word(word: Word, source: Callable[[Place], str]) -> Unread:
    """Return the note that a word is unknown and may be any number of options: those it brings, or any if unknown."""
    place = next((part.written for part in word.pieces if part.written is not None), word.place)
    hides = Hides.OPTIONS if word.brings is None else Hides.NAMED
    what = " ".join(source(place).split())[:80] or word.text
    return Unread(place, what, word.unknown or "is not known", hides, options=True)
