"""Which of a script's commands trains, and its words: the launcher's, the program, the program's arguments as argparse
would part them."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from posixpath import basename

from symconfig.descriptor.architectures.keys import words
from symconfig.existing.launch.bash.state import Command, holds_options
from symconfig.existing.launch.reading import Hides, Setting, Unread, Word
from symconfig.existing.launch.text import Place, cover
from symconfig.frameworks.megatron.flags import is_option

_BRANCHES = re.compile(r"is set (under a condition|in a loop)")


def arguments(
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
        if word.several and (word.brings != () if name is None or values else may_be_options(word)):
            unread.append(item := unread_word(word, source))
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


def may_be_options(word: Word) -> bool:
    """Return whether an unknown word brings options; if not known, whether its variable or a branch suggests it."""
    if word.brings is not None:
        return bool(word.brings)
    names = [part.variables[-1] for part in word.pieces if part.variables]
    return any(map(holds_options, names)) or any(_BRANCHES.match(part.unknown or "") for part in word.pieces)


def unread_word(word: Word, source: Callable[[Place], str]) -> Unread:
    """Return the note that a word is unknown and may be any number of options: those it brings, or any if unknown."""
    place = next((part.written for part in word.pieces if part.written is not None), word.place)
    hides = Hides.OPTIONS if word.brings is None else Hides.NAMED
    what = " ".join(source(place).split())[:80] or word.text
    return Unread(place, what, word.unknown or "is not known", hides, options=True)


LAUNCHERS = ("torchrun", "deepspeed", "accelerate", "srun", "mpirun", "mpiexec", "horovodrun", "ray", "msrun")
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
    def options(self) -> int:
        return sum(word.text.startswith("-") or "=" in word.text for word in self.arguments)

    @property
    def trains(self) -> tuple[bool, bool, int]:
        """Return the key by which a script's training command is chosen, the greatest.

        That is (no other work such as evaluation, started by a launcher or named like training, number of options).
        """
        path = self.program.text if self.program is not None else ""
        name = "/".join(path.split("/")[-2:])  # the folder, too: tools/run.py
        named = basename(name) in _PROGRAMS or bool(_TRAINS.search(basename(name)))
        return not _OTHER_WORK.search(name), named or any(map(_starts, self.launcher)), self.options


def split(command: Command) -> Split | None:
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
        python |= _is_python(word) or name in LAUNCHERS or word.unknown is not None
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
    return basename(word.text) in LAUNCHERS or word.text.startswith(_MODULE_LAUNCHERS)


def bare(command: Command) -> Split | None:
    """Return a line that begins with an option or an override as a split without a program; None for other commands."""
    if command.words[0].text.startswith("-") or re.match(r"[\w.+~]+=", command.words[0].text):
        return Split(command, (), None, command.words)
    return None


def chosen(splits: Sequence[Split]) -> Split | None:
    """Return the command that looks most like training, the first of equals; None without any."""
    return max(splits, key=lambda each: each.trains, default=None)
