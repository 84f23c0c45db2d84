"""Files that a configuration names: where they are looked for, and what is in them."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from symconfig.errors import InputError
from symconfig.existing.launch.detect import parse, syntax_of
from symconfig.existing.launch.files import open_text
from symconfig.existing.launch.reading import Reading, Setting, Tree, Unread, World
from symconfig.existing.launch.text import Text
from symconfig.resources import may_read

_MOST_LEVELS = 4  # from a script up to the folder in which it is started


@dataclass(frozen=True, slots=True)
class Around:
    """Where the files that a configuration names are looked for.

    Args:
        folder: of the configuration; None for a line of arguments.
        variables: the environment.
        virtual: files that a script itself writes.
    """

    folder: Path | None
    variables: Mapping[str, str]
    virtual: Mapping[str, Text] = field(default_factory=dict)

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


def tree_of(setting: Setting, around: Around, *below: str) -> Tree | Unread:
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
        return parse(text, "yaml" if syntax == "bash" else syntax)
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
