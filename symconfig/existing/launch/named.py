"""Files that a configuration names: where they are looked for, and what is in them."""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import accumulate
from pathlib import Path

from symconfig.errors import InputError
from symconfig.existing.launch.detect import parse, syntax_of
from symconfig.existing.launch.files import open_text
from symconfig.existing.launch.reading import Piece, Reading, Setting, Span, Tree, Unread, World
from symconfig.existing.launch.text import Place, Text
from symconfig.resources import may_read

_MOST_LEVELS = 4  # from a script up to the folder in which it is started


@dataclass(frozen=True, slots=True)
class Around:
    """Where the files that a configuration names are looked for.

    Args:
        folder: of the configuration; None for a line of arguments.
        variables: the environment.
        virtual: files that a script itself writes.
        origins: pieces of each virtual file with their places in the script.
    """

    folder: Path | None
    variables: Mapping[str, str]
    virtual: Mapping[str, Text] = field(default_factory=dict)
    origins: Mapping[str, tuple[Piece, ...]] = field(default_factory=dict)

    def text(self, name: str, *below: str) -> Text | None:
        """Return the file of this name; None if there is none. Raises InputError if it may not be read.

        below: further folders, relative to the configuration's, to look in.
        """
        if name in self.virtual:
            return self.virtual[name]
        base = self.base(name, *below)
        return None if base is None else open_text(base / name, root=base)

    def path(self, name: str) -> Path | None:
        """Return the existing path of this name; None if there is none."""
        base = self.base(name)
        return None if base is None else base / name

    def base(self, name: str, *below: str) -> Path | None:
        """Return the folder in which the name exists; None if in none of them.

        Order: the configuration's folder, those `below` it, the current one, then up to four parents for names with a
        folder.
        """
        folder = self.folder
        bases = [Path()] if folder is None else [folder, *(folder / one for one in below), Path()]
        if folder is not None and len(Path(name).parts) > 1:
            bases += folder.resolve().parents[:_MOST_LEVELS]
        try:
            return next((base for base in bases if may_read(base / name) and (base / name).exists()), None)
        except (OSError, ValueError):  # a name that no file system has
            return None


def given(reading: Reading, names: Sequence[str]) -> Setting | None:
    """Return the last setting with one of these names that has a value; None if there is none. `_` counts as `-`."""
    settings = [setting for setting in reading.settings if setting.name.replace("_", "-") in names and setting.values]
    return settings[-1] if settings else None


def dark(setting: Setting, why: str) -> Unread:
    what = " ".join((setting.spelled, *(word.text for word in setting.values)))
    return Unread(setting.place, what, why)


def tree_of(setting: Setting, around: Around, texts: Sequence[Text], *below: str) -> Tree | Unread:
    """Return the data of the file that a setting names; a note for `unread` if it is missing, unknown or malformed.

    below: further folders to look in.
    """
    word = setting.values[-1]
    if word.unknown and word.text not in around.virtual:  # a script's own file may have the job's number in its name
        return dark(setting, f"its value {word.unknown}")
    try:
        text = around.text(word.text, *below)
        if text is None:
            preset = "names no file: it is a preset of the program itself, which is not known here"
            return dark(setting, "names a file that is not there" if re.search(r"[./]", word.text) else preset)
        syntax = syntax_of(text)
        tree = parse(text, "yaml" if syntax == "bash" else syntax)
        return traced(tree, around.origins[word.text], texts) if word.text in around.virtual else tree
    except InputError as error:
        return dark(setting, f"names a file that cannot be read: {error.problems[0]}".rstrip("."))


def with_unread(reading: Reading, *items: Unread) -> Reading:
    return replace(reading, unread=(*reading.unread, *items))


def with_texts(reading: Reading, *more: Text) -> tuple[Text, ...]:
    known = {text.file for text in reading.texts}
    return (*reading.texts, *(text for text in more if text.file not in known))


def both(launcher: World, trainer: World) -> World:
    """Return the GPUs by trainer and launcher together; the trainer's numbers take precedence."""
    nodes, each = trainer.nodes or launcher.nodes, trainer.gpus_per_node or launcher.gpus_per_node
    gpus = trainer.gpus or (nodes * each if nodes and each else launcher.gpus)
    return World(gpus, nodes, each, (*launcher.words, *trainer.words), (*launcher.dark, *trainer.dark))


def joined(reading: Reading, filed: Reading, settings: Sequence[Setting]) -> Reading:
    """Return a command's reading combined with that of a file it names, which takes precedence. settings: of both."""
    return replace(
        reading,
        format=filed.format,
        settings=tuple(settings),
        tree=filed.tree or reading.tree,
        texts=with_texts(reading, *filed.texts),
        unread=(*reading.unread, *filed.unread),
        environment={**reading.environment, **filed.environment},
        world=both(reading.world, filed.world),
    )


def traced(tree: Tree, pieces: Sequence[Piece], texts: Sequence[Text]) -> Tree:
    """Return the tree of a file that a script writes, with places in the script, or where a variable got its value.

    Unchanged if any of its characters does not stand literally in a file, or if they come from several files.
    """
    by_file = {text.file: text for text in texts}
    literal = [_literal(piece, by_file) for piece in pieces]
    starts = [0, *accumulate(len(piece.text.encode()) for piece in pieces)]

    def moved(place: Place | None) -> Place | None:
        """Return the place in the script that a place in the written file comes from.

        None if it is empty or has no origin.
        """
        if place is None or place.start >= place.end:
            return None
        first, last = (bisect_right(starts, offset) - 1 for offset in (place.start, place.end - 1))
        head, tail = literal[first], literal[last]
        if head is None or tail is None or head.file != tail.file:
            return None
        start, end = head.start + place.start - starts[first], tail.start + place.end - starts[last]
        return by_file[head.file].place(start, end) if start < end else None

    spans = {}
    for path, span in tree.spans.items():
        key, value = moved(span.key), moved(span.value)
        if value is None or (key is None) != (span.key is None):
            return tree
        spans[path] = Span(key, value)
    files = {span.value.file for span in spans.values()}
    return Tree(by_file[files.pop()], tree.data, spans, tree.syntax, tree.unread) if len(files) == 1 else tree


def _literal(piece: Piece, texts: dict[str, Text]) -> Place | None:
    """Return the piece's place if exactly its characters stand there; None otherwise."""
    place = piece.place
    if place is None or place.file not in texts or texts[place.file].at(place) != piece.text:
        return None
    return place
