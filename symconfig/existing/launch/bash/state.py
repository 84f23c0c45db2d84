"""The state of a shell while a script is read, what several states have in common, and what is found on the way."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Self, TypeAlias

from tree_sitter import Node

from symconfig.existing.launch.bash.source import Source
from symconfig.existing.launch.reading import Hides, Piece, Pieces, Unread, Word, text_of
from symconfig.existing.launch.text import Place, Text, cover
from symconfig.existing.launch.world import slurm_variables
from symconfig.frameworks.megatron.flags import is_option

_OVERRIDE = re.compile(r"(\+\+|\+)?[A-Za-z_]\w*(\.[\w\-/@]+)+=")
# A name that says that the variable holds options, and not the value of one.
_OPTIONS = re.compile(r"ARG|OPT|FLAG|EXTRA|CMD|PARAM|CONFIG$", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Array:
    """An indexed array, or an associative one if `keyed`: fields by index or key, in order."""

    items: Mapping[int | str, Word]
    keyed: bool = False

    @property
    def end(self) -> int:
        """Return the index behind the last one; 0 without any."""
        return max((key for key in self.items if isinstance(key, int)), default=-1) + 1


# None: known to be unset. A name that is nowhere in a state's variables may be set by the environment.
Value: TypeAlias = Pieces | Array | None


def plain(text: str, *variables: str, place: Place | None = None) -> Pieces:
    """Return a known text that stands literally in no file."""
    return (Piece(text, None, variables, written=place),)


def unknown_part(
    why: str, place: Place | None, *variables: str, loose: bool = False, brings: tuple[str, ...] | None = None
) -> Piece:
    return Piece("", None, variables, unknown=why, loose=loose, written=place, brings=brings)


def options_of(words: Iterable[Word]) -> tuple[str, ...] | None:
    """Return the names of the options among words, and of those that unknown words may hold (`brings`), each once.

    None if an unknown word may hold any.
    """
    options: dict[str, None] = {}
    for word in words:
        if word.several and word.brings is None:
            return None
        options |= dict.fromkeys(
            word.brings or () if word.several else ((word.text.partition("=")[0],) if opens(word.text) else ())
        )
    return tuple(options)


def opens(word: str) -> bool:
    """Return whether a word is an option or an override `a.b=c`."""
    return is_option(word) or _OVERRIDE.match(word) is not None


def holds_options(name: str) -> bool:
    """Return whether a variable's name suggests that it holds options, as ARGS or FLAGS do."""
    return _OPTIONS.search(name) is not None


def split_words(parts: Iterable[Piece | None], ifs: str) -> list[Pieces]:
    """Return the words, each a tuple of pieces; known unquoted (loose) pieces are split at the characters of `ifs`.

    None between pieces ends a word. Blanks in `ifs` only separate; between two other separators is an empty word.
    """
    made: list[list[Piece]] = []
    word: list[Piece] | None = None
    runs = re.compile(f"[^{re.escape(ifs)}]+|." if ifs else ".+", re.DOTALL)
    for part in parts:
        if part is None:
            made += [] if word is None else [word]
            word = None
        elif not part.loose or part.unknown:
            word = [*(word or ()), part]
        else:
            for run in runs.finditer(part.text):
                if not ifs or run[0][0] not in ifs:
                    word = [*(word or ()), part.cut(*run.span())]
                    continue
                if word is not None:
                    made.append(word)
                elif run[0] not in " \t\n":
                    made.append([Piece("", written=part.written)])
                word = None
    return [tuple(each) for each in (*made, *([] if word is None else [word]))]


GIVEN = "(arguments given to the script)"  # the file of words that `extra` adds
STEPS = 150_000  # of 30 microseconds; a script of 300 lines takes a few thousand
CHARACTERS = 512  # of a value, kept in a step
SHOWN = 80  # characters of the source in a message
MESSAGES = 200  # of one script


class Exhausted(Exception):
    """The script needs more work than the reading may take. place: where it was noticed."""

    place: Place | None = None


class Budget:
    """The work (steps) that one reading may use."""

    def __init__(self) -> None:
        self._steps: float = STEPS

    def spend(self, steps: float = 1) -> None:
        """Subtract the steps from the budget. Raises Exhausted if none are left."""
        self._steps -= steps
        if self._steps < 0:
            raise Exhausted("is too much work to follow")

    def kept(self, value: Value) -> Value:
        """Return the value unchanged, and spend steps by its size. Raises Exhausted."""
        if isinstance(value, Array):
            self.spend(len(value.items) // 4)
        elif value:
            self.spend(len(value) + sum(len(part.text) for part in value) / CHARACTERS)
        return value


class Leave(Exception):
    """Control flow of `break`, `continue`, `return` or `exit` (`kind`).

    bad: whether the status is an error; None if it is not known.
    """

    def __init__(self, kind: str, bad: bool | None = False) -> None:
        super().__init__(kind)
        self.kind = kind
        self.bad = bad


@dataclass(frozen=True, slots=True)
class Command:
    """A program that the script starts: the expanded words of its launcher, the program and its arguments.

    outer: number of first words that belong to what starts a nested shell: 3 of `docker exec box bash -c '...'`.
    environment: exported variables. files: contents of files written by the script, by name. maybe: the unknown
    condition under which it runs; None if it runs in any case.
    """

    words: tuple[Word, ...]
    outer: int
    environment: dict[str, Pieces]
    files: dict[str, Pieces]
    place: Place
    maybe: str | None


@dataclass
class Log:
    """What the reading records: files (`texts`), commands, what was not understood (`unread`).

    folder: below which files may be read; None: no files. aside: words of programs that prepare files, or are run in a
    command substitution. stops: places of checks that would end the script.
    """

    texts: list[Text]
    folder: Path | None
    commands: list[Command] = field(default_factory=list)
    unread: list[Unread] = field(default_factory=list)
    aside: list[tuple[Word, ...]] = field(default_factory=list)
    stops: list[Place] = field(default_factory=list)

    def written(self, place: Place) -> str:
        """Return the source text at a place; an empty string if its file was not read."""
        return next((text.at(place) for text in self.texts if text.file == place.file), "")

    def add(self, place: Place, what: str, why: str, hides: Hides = Hides.OPTIONS) -> None:
        """Add a note to `unread`, with `what` shortened; none that is there, and none beyond 200."""
        item = Unread(place, shortened(what), why, hides)
        if item not in self.unread and len(self.unread) < MESSAGES:
            self.unread.append(item)


def shortened(what: str) -> str:
    """Return code in one line without continuations; beyond 80 characters it is cut and ends in "..."."""
    line = " ".join(what.replace("\\\n", " ").split())
    return line if len(line) <= SHOWN else line[: SHOWN - 3] + "..."


@dataclass
class State:
    """The shell's state; a copy is independent, as all values are immutable.

    functions: by name, the source and the node of the body. folder: current directory; None if not known.
    """

    variables: dict[str, Value] = field(default_factory=dict)
    exported: set[str] = field(default_factory=set)
    functions: dict[str, tuple[Source, Node]] = field(default_factory=dict)
    arguments: tuple[Word, ...] = ()
    folder: Pieces | None = None
    files: dict[str, Pieces] = field(default_factory=dict)

    @classmethod
    def initial(cls, text: Text, folder: Path | None, variables: Mapping[str, str], extra: Sequence[str]) -> Self:
        """Return the state before a script: arguments `extra`, exported `variables`, and Slurm's of its directives.

        Those given have precedence over Slurm's. With a folder `$0` and the current folder are known.
        """
        nowhere = text.place(0, 0)
        known: dict[str, Value] = {name: plain(value, place=nowhere) for name, value in variables.items()}
        for name, (number, word) in slurm_variables(text).items():
            place = word.place if number == word.text else None
            known.setdefault(name, (Piece(number, place, written=word.place),))
        words = (Word((Piece(word),), Place(GIVEN, 0, 0, 1, at)) for at, word in enumerate(extra, 1))
        state = cls(known, set(known), arguments=tuple(words))
        if folder is not None:
            state.folder = plain(str(folder), place=nowhere)
            name = Path(text.file).name  # of $0: the absolute path if the folder is absolute
            state.variables["0"] = plain(str(folder / name) if folder.is_absolute() else f"./{name}", place=nowhere)
        return state

    @property
    def ifs(self) -> str:
        value = self.variables.get("IFS")
        return text_of(value) if isinstance(value, tuple) else " \t\n" if "IFS" not in self.variables else ""

    def copy(self) -> State:
        """Return a copy with its own variables, exports, functions and files."""
        return replace(
            self,
            variables=dict(self.variables),
            exported=set(self.exported),
            functions=dict(self.functions),
            files=dict(self.files),
        )

    def restore(self, saved: Mapping[str, tuple[bool, Value]]) -> None:
        """Set variables to saved pairs of whether they were in the state, and their value; remove the others."""
        for name, (known, value) in saved.items():
            if known:
                self.variables[name] = value
            else:
                self.variables.pop(name, None)

    def environment(self) -> dict[str, Pieces]:
        """Return the exported variables by name, without arrays and unset ones."""
        values = ((name, self.variables.get(name)) for name in sorted(self.exported))
        return {name: value for name, value in values if isinstance(value, tuple)}

    def missing(self, name: str) -> str:
        """Return why a name that the script does not set is unknown: an argument, a variable, or another parameter."""
        if name.isdigit():
            return f"depends on the script's argument ${name}, which is not given"
        known = name.isidentifier() and name != "_"
        return f"depends on ${name}, which is not set in the script" if known else f"depends on ${name}"

    def items(self, name: str, place: Place) -> dict[int | str, Word]:
        """Return a copy of an array's items; {} if it is unset, and a scalar as one item with key 0."""
        value = self.variables.get(name)
        if isinstance(value, Array):
            return dict(value.items)
        return {} if value is None else {0: Word(value, place)}


def merged_states(
    budget: Budget, outcomes: Sequence[tuple[State, Pieces]], why: str, place: Place
) -> tuple[State, Pieces]:
    """Return (state, output) merged from alternatives; what differs becomes unknown, with the reason `why`.

    Compared are variables, files, arguments and outputs. A common beginning of a variable or output is kept. A variable
    that a state lacks differs from any value, a file does not. Exports and functions are united, earlier functions
    first. Raises Exhausted.
    """
    if len(outcomes) == 1:
        return outcomes[0]
    states, outputs = [state for state, _ in outcomes], [output for _, output in outcomes]
    first = states[0].copy()
    names = dict.fromkeys(name for state in states for name in state.variables)
    budget.spend(len(names) * len(states) / 8)
    for name in names:
        # A name that a state does not have stands for what the environment has: a text that no value equals.
        values = [state.variables.get(name, f"${name}") for state in states]
        if not _alike(values):
            first.variables[name] = _merged_value(name, values, why, place)
    for state in states[1:]:
        first.exported |= state.exported
        first.functions = {**state.functions, **first.functions}
        for name, content in state.files.items():
            known = first.files.get(name)
            first.files[name] = content if known is None or _alike((known, content)) else (unknown_part(why, place),)
        if [item.text for item in state.arguments] != [item.text for item in first.arguments]:
            first.arguments = (Word((unknown_part(why, place, loose=True),), place),)
    return first, outputs[0] if _alike(outputs) else _merged_parts(outputs, why, place)


def _alike(values: Sequence[Value | str]) -> bool:
    """Return whether all values have equal texts and reasons of unknown parts; of arrays also equal keys in order."""
    return all(value is values[0] or _meaning(value) == _meaning(values[0]) for value in values[1:])


def _meaning(value: Value | str) -> object:
    """Return what tells a value from others: of parts text, reason, text, ... with adjacent known texts joined.

    Of an array pairs of key and this; a string or None itself.
    """
    if isinstance(value, Array):
        return [(key, _meaning(word.pieces)) for key, word in value.items.items()]
    if not isinstance(value, tuple):
        return value
    texts = [""]
    for part in value:
        if part.unknown:
            texts += [part.unknown, ""]
        else:
            texts[-1] += part.text
    return texts


def _merged_value(name: str, values: list[Value | str], why: str, place: Place) -> Value:
    """Return a variable's value merged over states in which it differs: the common beginning, then an unknown part.

    An array with one unknown item if only some are arrays, or one is associative. If a state lacks the variable ("$X"
    instead of a value) all is unknown, and `brings` lists the options of the others.
    """
    arrays = [value for value in values if isinstance(value, Array)]
    if len(arrays) == len(values) and not any(value.keyed for value in arrays):
        return Array(dict(enumerate(_merged_words([list(value.items.values()) for value in arrays], why, place))))
    texts = [value for value in values if isinstance(value, tuple)]
    if len(texts) == len(values):
        return _merged_parts(texts, why, place)
    if arrays:
        return Array({0: Word((unknown_part(why, place, loose=True),), place)})
    # What the environment has instead is a value, unless the name says that it is options.
    brings = None if holds_options(name) else options_of(word for text in texts for word in _words(text, place))
    return (unknown_part(why, place, brings=brings),)


def _merged_words(lists: list[list[Word]], why: str, place: Place) -> list[Word]:
    """Return the words with which all lists begin, and always one unknown word, which `brings` the options in the
    rests.

    An option whose values differ is in the rests with its name.
    """
    meanings = [[_meaning(word.pieces) for word in words] for words in lists]
    count = 0
    while all(len(each) > count and each[count] == meanings[0][count] for each in meanings):
        count += 1
    while count and any(len(words) > count and not opens(words[count].text) for words in lists):
        count -= 1  # an option's name stays with its value
        if opens(lists[0][count].text):
            break
    rests = [word for words in lists for word in words[count:]]
    there = rests[0].place if rests else place
    return [*lists[0][:count], Word((unknown_part(why, there, loose=True, brings=options_of(rests)),), there)]


def _merged_parts(values: Sequence[Pieces], why: str, place: Place) -> Pieces:
    """Return the value of texts that differ: their common words, a blank between two, and an unknown part."""
    words = _merged_words([_words(value, place) for value in values], why, place)
    return tuple(part for word in words for part in (Piece(" "), *word.pieces))[1:]


def _words(value: Pieces, place: Place) -> list[Word]:
    """Return the words of a value as if it were expanded without quotes."""
    loose = (part if part.unknown else replace(part, loose=True) for part in value)
    places = [(parts, cover(part.written or part.place for part in parts)) for parts in split_words(loose, " \t\n")]
    return [Word(parts, there or place) for parts, there in places]
