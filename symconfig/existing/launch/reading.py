"""What was read of an existing configuration, whatever its format: options with their places, and what stayed dark."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import Any, Final, Literal, Self, TypeAlias

from symconfig.descriptor.document import KeyPath, dotted
from symconfig.errors import Problem
from symconfig.existing.launch.text import Place, Text, problem_at
from symconfig.frameworks.megatron.flags import is_option

# bash: a script, or a line of arguments; overrides: model.x=1 of Megatron-Bridge and NeMo 2, on a command line or as
# YAML; deepspeed: its JSON by itself; verl: overrides of its trainer, nemo-rl: its YAML, each under their own keys.
Format = Literal["bash", "overrides", "deepspeed", "verl", "nemo-rl"]
OTHER_RUN: Final = "is another run of the program, which is not audited"
JSON_ALONE: Final = "deepspeed"  # the format of a DeepSpeed JSON


@dataclass(frozen=True, slots=True)
class Piece:
    """A run of characters of a word; if `unknown` is set, one of unknown characters.

    place: where exactly these characters stand literally (for `'a b'` without the quotes); None: they come from outside
    (the environment, an option of the audit, a command's known output), or stand there in another spelling (escapes).
    variables: names that they came through, the outermost first: `--tp $TP` with TP=${SIZE:-8} has (TP, SIZE). unknown:
    why they are not known, worded to follow "its value". In a shell also: loose: whether it results from an unquoted
    expansion, so that it is split into words where it is used. written: where it stands as source (`$TP` or `8`), in
    the innermost text that holds it as a word. brings: options that an unknown piece may contain as words; None: any.
    """

    text: str
    place: Place | None = None
    variables: tuple[str, ...] = ()
    unknown: str | None = None
    loose: bool = False
    written: Place | None = None
    brings: tuple[str, ...] | None = None

    def cut(self, start: int, end: int) -> Piece:
        """Return the characters [start, end) as a piece, its place (and `written`, if that is the same) cut alike."""
        if (start, end) == (0, len(self.text)):
            return self
        place = None if self.place is None else self.place.inner(self.text, start, end)
        written = place if self.place is not None and self.written == self.place else self.written
        return replace(self, text=self.text[start:end], place=place, written=written)


Pieces: TypeAlias = tuple[Piece, ...]


def text_of(pieces: Iterable[Piece]) -> str:
    return "".join(piece.text for piece in pieces)


def unknown_of(pieces: Iterable[Piece]) -> str | None:
    return next((piece.unknown for piece in pieces if piece.unknown), None)


def cut(pieces: Sequence[Piece], start: int, end: int | None = None) -> Pieces:
    """Return the characters [start, end) of a value, with their places; unknown pieces have no length and are kept."""
    kept, done = [], 0
    end = sum(len(piece.text) for piece in pieces) if end is None else end
    for piece in pieces:
        first, last = max(start - done, 0), min(end - done, len(piece.text))
        if (piece.unknown and start <= done <= end) or first < last:
            kept.append(piece.cut(first, last) if not piece.unknown else piece)
        done += len(piece.text)
    return tuple(kept)


@dataclass(frozen=True, slots=True)
class Word:
    """One word as the program gets it, in pieces by their origin; `place` is that of the whole, with its quotes."""

    pieces: Pieces
    place: Place

    @property
    def text(self) -> str:
        return text_of(self.pieces)

    @property
    def unknown(self) -> str | None:
        """Return why the text is not known; None if it is what the program gets."""
        return unknown_of(self.pieces)

    @property
    def several(self) -> bool:
        """Return whether the word is unknown and unquoted as a whole, so that it may be any number of words."""
        return bool(self.pieces) and all(piece.unknown and piece.loose for piece in self.pieces)

    @property
    def brings(self) -> tuple[str, ...] | None:
        """Return the options that unknown pieces may contain as words, each once; None if they may be any."""
        known = [piece.brings for piece in self.pieces if piece.unknown]
        if any(each is None for each in known):
            return None
        return tuple(dict.fromkeys(name for each in known for name in each or ()))

    @classmethod
    def of(cls, text: str, place: Place, *, literal: bool = False) -> Self:
        """Return a word of known text. literal: whether the text stands at `place` exactly so."""
        return cls((Piece(text, place if literal else None),), place)

    @classmethod
    def dark(cls, why: str, place: Place) -> Self:
        """Return a word of unknown text."""
        return cls((Piece("", unknown=why),), place)

    def cut(self, start: int, end: int | None = None) -> Word:
        return Word(cut(self.pieces, start, end), self.place)

    def after(self, count: int) -> Word:
        """Return the word without its first `count` characters, and with its place cut, too, where it is literal."""
        rest, place = cut(self.pieces, count), self.place
        first = next((piece.place for piece in rest if not piece.unknown), None)
        if first is not None and place.file == first.file and place.start <= first.start < place.end:
            place = replace(first, end=place.end)
        return Word(rest, place)

    def joined(self) -> Word:
        """Return the word without empty pieces; those that adjoin in a file and came through the same are joined."""
        made: list[Piece] = []
        for piece in (piece for piece in self.pieces if piece.text or piece.unknown):
            last, there = made[-1] if made else Piece(""), piece.place
            ends = last.place and (last.place.file, last.place.end, last.variables)
            if last.place and there and ends == (there.file, there.start, piece.variables):
                made[-1] = replace(last, text=last.text + piece.text, place=replace(last.place, end=there.end))
            else:
                made.append(piece)
        return Word(tuple(made), self.place)


@dataclass(frozen=True, slots=True)
class Setting:
    """One option of the training program, in Megatron-LM's spelling whatever the file's format.

    name: "--tensor-model-parallel-size"; for programs other than Megatron-LM as it is written. spelled: the name in the
    file ("model.tensor_model_parallel_size"). values: its words; empty for a switch. place: from the name to the last
    value. joined: whether the name and its only value are one word, `--x=1`.
    """

    name: str
    spelled: str
    values: tuple[Word, ...]
    place: Place
    joined: bool = False

    @property
    def key(self) -> str:
        """Return the name without leading dashes and with `_` for `-`."""
        return self.name.lstrip("-").replace("-", "_")

    @property
    def texts(self) -> tuple[str, ...]:
        return tuple(word.text for word in self.values)

    @property
    def text(self) -> str:
        """Return the values joined by blanks."""
        return " ".join(self.texts)

    @property
    def unknown(self) -> str | None:
        """Return why a value is not known; None if all are."""
        return next((word.unknown for word in self.values if word.unknown), None)

    def problem(self, what: str, **words: str | None) -> Problem:
        """Return a problem about this option with its place. words: got, need and hint."""
        return self.place.problem(what, field=self.spelled, **words)

    def unread(self, why: str) -> Unread:
        """Return the note that this option was not understood, which may hide any option."""
        return Unread(self.place, " ".join((self.spelled, *self.texts)), why)


class Hides(Enum):
    """What something that was not understood may affect.

    NOTHING of the training, VARIABLES that the script does not set afterwards, NAMED options, or any OPTIONS.
    """

    NOTHING = "nothing"
    VARIABLES = "variables"
    NAMED = "named options"
    OPTIONS = "options"


@dataclass(frozen=True, slots=True)
class Unread:
    """Something in a configuration that was not understood.

    what: the source text, shortened. why: the reason as a clause, "depends on the output of curl". hides: what it may
    affect. options: whether it is among the program's words and may be any number of its options. assumed: whether it
    is assumed to be none.
    """

    place: Place
    what: str
    why: str
    hides: Hides = Hides.OPTIONS
    options: bool = False
    assumed: bool = False

    @property
    def matters(self) -> bool:
        """Return whether an argument, the environment or the number of GPUs may depend on it."""
        return self.hides is not Hides.NOTHING


@dataclass(frozen=True, slots=True)
class Span:
    """Places of a key, with its quotes, and of its value; the key's is None for an item of a list."""

    key: Place | None
    value: Place


@dataclass(frozen=True, slots=True)
class Tree:
    """Data of a JSON or YAML file with the place of each key and value.

    spans: places by path; () is the whole file. Values that an alias inserts have the alias's place. unread: unknown
    tags of YAML.
    """

    text: Text
    data: Any
    spans: Mapping[KeyPath, Span]
    syntax: Literal["json", "yaml"]
    unread: tuple[Unread, ...] = ()

    def get(self, *path: str | int) -> Any:
        """Return the value at a path of keys and list indices; None if a part is absent or no mapping or list."""
        value = self.data
        for key in path:
            listed = isinstance(value, list) and isinstance(key, int) and key < len(value)
            value = value[key] if listed else value.get(key) if isinstance(value, dict) else None
        return value

    def place(self, path: KeyPath, *, of_key: bool = False) -> Place | None:
        """Return the place of the value at a path, or of its key; of the nearest enclosing key if it is absent.

        None if the tree has no places.
        """
        for length in range(len(path), -1, -1):
            if (span := self.spans.get(path[:length])) is not None:
                return span.key if span.key is not None and (of_key or length < len(path)) else span.value
        return None

    def problem(self, path: KeyPath, what: str, *, of_key: bool = False, **words: str | None) -> Problem:
        """Return a problem about a path with its place. words: got, need and hint."""
        return problem_at(self.place(path, of_key=of_key), what, self.text.file, field=dotted(path) or None, **words)


@dataclass(frozen=True, slots=True)
class World:
    """The GPUs that a launcher starts, as far as the file says; None for a number that it does not give.

    gpus: in total. words: those that the numbers come from. dark: those that would give one and are not known.
    """

    gpus: int | None = None
    nodes: int | None = None
    gpus_per_node: int | None = None
    words: tuple[Word, ...] = ()
    dark: tuple[Word, ...] = ()

    def merged(self, trainer: World) -> World:
        """Return the GPUs by this launcher and a trainer together; the trainer's numbers take precedence.

        The total is the trainer's, else nodes times GPUs per node, else the launcher's.
        """
        nodes, each = trainer.nodes or self.nodes, trainer.gpus_per_node or self.gpus_per_node
        gpus = trainer.gpus or (nodes * each if nodes and each else self.gpus)
        return World(gpus, nodes, each, (*self.words, *trainer.words), (*self.dark, *trainer.dark))


@dataclass(frozen=True, slots=True)
class Reading:
    """An existing configuration, as it was read.

    Args:
        format: kind of file.
        texts: the files that were read, the named one first.
        settings: the program's options in order.
        program: what is started ("pretrain_gpt.py"); None if unknown, as for a bare line of arguments.
        launcher: the words before it ("torchrun", "--nproc_per_node", "8").
        tree: the YAML that the settings stand in.
        deepspeed: the JSON given to --deepspeed(_config), or the file itself.
        accelerate: Accelerate's file, which its launcher is given.
        fsdp: the JSON given to the Trainer's --fsdp_config.
        environment: variables that the program inherits from the script.
        world: GPUs that are started.
        unread: what was not understood.
        model_config: path of the model's config.json, if the program is given one that exists.
        recipe: of Megatron-Bridge or NeMo 2, "llama3_8b_pretrain_config". scheduler: `#SBATCH` options by bare name.
        runs: further runs of the same program in the script, with other words.
        others: words of the other programs that the script starts.
        stops: places of checks that would end the script with an error. written: files of known text that it writes.
        possible: options that the program may get under an unknown condition; their values are not known.
    """

    format: Format
    texts: tuple[Text, ...]
    settings: tuple[Setting, ...]
    program: Word | None = None
    launcher: tuple[Word, ...] = ()
    tree: Tree | None = None
    deepspeed: Tree | None = None
    accelerate: Tree | None = None
    fsdp: Tree | None = None
    environment: Mapping[str, Word] = field(default_factory=dict)
    world: World = World()
    unread: tuple[Unread, ...] = ()
    model_config: str | None = None
    recipe: Word | None = None
    scheduler: Mapping[str, Word] = field(default_factory=dict)
    runs: tuple[Reading, ...] = ()
    others: tuple[tuple[str, ...], ...] = ()
    stops: tuple[Place, ...] = ()
    possible: tuple[Setting, ...] = ()
    written: tuple[Text, ...] = ()

    @property
    def file(self) -> str:
        return self.texts[0].file

    @property
    def path(self) -> str:
        """Return the program's path as the command has it; "" if it is not known."""
        return self.program.text if self.program is not None else ""

    @property
    def start(self) -> Place:
        """Return where the program is started; the top of the file if it is not known."""
        return self.program.place if self.program is not None else self.texts[0].place(0, 0)

    @property
    def options(self) -> tuple[Setting, ...]:
        """Return all options, followed by those that may be given (`possible`)."""
        return (*self.settings, *self.possible)

    def last(self, names: Collection[str]) -> Setting | None:
        """Return the last setting with one of these names that has a value; None without one. `_` counts as `-`."""
        own = (each for each in reversed(self.settings) if each.name.replace("_", "-") in names and each.values)
        return next(own, None)

    def noting(self, *items: Unread) -> Reading:
        """Return the reading with further notes in `unread`."""
        return replace(self, unread=(*self.unread, *items))

    def with_files(self, *texts: Text, **fields: Any) -> Reading:
        """Return the reading with these fields, and with further files in `texts`, each once."""
        more = (text for text in texts if text.file not in {each.file for each in self.texts})
        return replace(self, texts=(*self.texts, *more), **fields)

    @property
    def json_alone(self) -> bool:
        """Return whether the configuration is a DeepSpeed JSON without the program that loads it."""
        return self.format == JSON_ALONE

    @property
    def complete(self) -> bool:
        """Return whether nothing unread may hide options; their values may still be unknown."""
        return not any(item.hides is Hides.OPTIONS for item in self.unread)

    @property
    def dark(self) -> bool:
        """Return whether the training may depend on something in `unread`."""
        return any(item.matters for item in self.unread)

    @property
    def assumptions(self) -> tuple[Unread, ...]:
        """Return the notes in `unread` that are assumed to have no effect on the options or variables."""
        return tuple(item for item in self.unread if item.assumed or item.hides in (Hides.VARIABLES, Hides.NAMED))

    @property
    def environment_known(self) -> bool:
        """Return whether a variable that is not in `environment` is certainly not set by the files."""
        return self.complete and not any(item.hides is Hides.VARIABLES for item in self.unread)


def settings(words: Sequence[str], file: str) -> tuple[Setting, ...]:
    """Return the words grouped into options as by argparse: an option's values are the words up to the next option.

    Words before the first option are dropped. Places have only the file, with line and column 0.
    """
    place = Place(file, 0, 0, 0, 0)
    grouped: list[Setting] = []
    for word in words:
        if is_option(word):
            name, joined, value = word.partition("=")
            grouped.append(Setting(name, name, (Word.of(value, place),) if joined else (), place, bool(joined)))
        elif grouped:
            grouped[-1] = replace(grouped[-1], values=(*grouped[-1].values, Word.of(word, place)))
    return tuple(grouped)
