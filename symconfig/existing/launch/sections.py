"""Files that a configuration names: where they are looked for, what is in them, and files of hydra's kind (those of
Megatron-Bridge, NeMo 2, verl and NeMo-RL) with what they inherit.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from symconfig.errors import InputError
from symconfig.existing.launch.detect import dialect_of, parse, read_sections, sets_megatron, syntax_of
from symconfig.existing.launch.dialects import nemo_rl, tuners, verl
from symconfig.existing.launch.dialects.override import (
    RECIPE,
    Entry,
    as_settings,
    entries,
    entries_of,
    interpolated,
    key_of,
)
from symconfig.existing.launch.dialects.translate import by_path
from symconfig.existing.launch.reading import Reading, Setting, Tree, Unread, Word, World
from symconfig.existing.launch.text import Text, open_text
from symconfig.resources import may_read

_MOST_LEVELS = 4  # from a script up to the folder in which it is started


@dataclass(frozen=True, slots=True)
class FileLookup:
    """Where the files that a configuration names are looked for.

    folder: of the configuration; None for a line of arguments. variables: the environment. virtual: files that a script
    itself writes.
    """

    folder: Path | None
    variables: Mapping[str, str]
    virtual: Mapping[str, Text] = field(default_factory=dict)

    def text(self, name: str, *below: str) -> Text | None:
        """Return the file of this name, from `virtual` or the folder of `base`; None if it is in neither."""
        if name in self.virtual:
            return self.virtual[name]
        base = self.base(name, *below)
        return None if base is None else open_text(base / name, root=base)

    def path(self, name: str) -> Path | None:
        """Return the existing path of this name; None if there is none."""
        base = self.base(name)
        return None if base is None else base / name

    def base(self, name: str, *below: str) -> Path | None:
        """Return the first folder in which the name exists and may be read; None if in none.

        Order: the configuration's folder, those `below` it, the current one, for a name with a folder also four parents
        of the first; without a configuration's folder only the current one.
        """
        folder = self.folder
        bases = [Path()] if folder is None else [folder, *(folder / one for one in below), Path()]
        if folder is not None and len(Path(name).parts) > 1:
            bases += folder.resolve().parents[:_MOST_LEVELS]
        try:
            return next((base for base in bases if may_read(base / name) and (base / name).exists()), None)
        except (OSError, ValueError):  # a name that no file system has
            return None


def last_given(reading: Reading, names: Collection[str]) -> Setting | None:
    """Return the last setting with one of these names that has a value; None if there is none. `_` counts as `-`."""
    settings = [setting for setting in reading.settings if setting.name.replace("_", "-") in names and setting.values]
    return settings[-1] if settings else None


def unread_setting(setting: Setting, why: str) -> Unread:
    what = " ".join((setting.spelled, *(word.text for word in setting.values)))
    return Unread(setting.place, what, why)


def tree_of(setting: Setting, lookup: FileLookup, *below: str) -> Tree | Unread:
    """Return the data of the file that the setting's last value names.

    An Unread, which is recorded nowhere yet, if the value is unknown, or the file is absent or cannot be read. below:
    further folders to look in.
    """
    word = setting.values[-1]
    if word.unknown and word.text not in lookup.virtual:  # a script's own file may have the job's number in its name
        return unread_setting(setting, f"its value {word.unknown}")
    try:
        text = lookup.text(word.text, *below)
        if text is None:
            preset = "names no file: it is a preset of the program itself, which is not known here"
            return unread_setting(
                setting, "names a file that is not there" if re.search(r"[./]", word.text) else preset
            )
        syntax = syntax_of(text)
        return parse(text, "yaml" if syntax == "bash" else syntax)
    except InputError as error:
        return unread_setting(setting, f"names a file that cannot be read: {error.problems[0]}".rstrip("."))


def with_unread(reading: Reading, *items: Unread) -> Reading:
    return replace(reading, unread=(*reading.unread, *items))


def with_texts(reading: Reading, *more: Text) -> tuple[Text, ...]:
    known = {text.file for text in reading.texts}
    return (*reading.texts, *(text for text in more if text.file not in known))


def merged_world(launcher: World, trainer: World) -> World:
    """Return the GPUs by trainer and launcher together; the trainer's numbers take precedence.

    The total is the trainer's, else nodes times GPUs per node, else the launcher's.
    """
    nodes, each = trainer.nodes or launcher.nodes, trainer.gpus_per_node or launcher.gpus_per_node
    gpus = trainer.gpus or (nodes * each if nodes and each else launcher.gpus)
    return World(gpus, nodes, each, (*launcher.words, *trainer.words), (*launcher.dark, *trainer.dark))


def with_named_file(reading: Reading, filed: Reading, settings: Sequence[Setting]) -> Reading:
    """Return a command's reading with `settings`, and with format, tree, environment and GPUs of a file over its own.

    The file's texts and notes are appended.
    """
    return replace(
        reading,
        format=filed.format,
        settings=tuple(settings),
        tree=filed.tree or reading.tree,
        texts=with_texts(reading, *filed.texts),
        unread=(*reading.unread, *filed.unread),
        environment={**reading.environment, **filed.environment},
        world=merged_world(reading.world, filed.world),
    )


ARGUMENTS = ("--config",)  # of programs around Transformers and of NeMo-RL, whose options it says
_MOST_BASES = 8  # of configurations that inherit one another
_HYDRA_FOLDER, _HYDRA_NAME = ("--config-path", "--config-dir"), ("--config-name",)
_FILE = ("--config-file", "--yaml-file", "--yaml-config")
_RECIPE_RUNNERS = re.compile(r"(run_recipe|setup_experiment|run_script|run_performance)\w*\.py")
_NAMED_RECIPE = re.compile(r"(?:pretrain|finetune|sft)_(\w+)\.py")


def recipe(reading: Reading, lookup: FileLookup) -> Reading:
    """Return the reading with `recipe`: the value of the option that names one, of recipe runners also --model.

    Unchanged without such an option.
    """
    setting = last_given(reading, RECIPE)
    program = Path(reading.program.text).name if reading.program is not None else ""
    if setting is None and _RECIPE_RUNNERS.fullmatch(program):
        setting = last_given(reading, ("--model",))
    return reading if setting is None else replace(reading, recipe=setting.values[0])


def overrides(reading: Reading, lookup: FileLookup) -> Reading:
    """Return the reading combined with overrides such as model.x=1 and the YAML file that they change.

    Settings are those of file and overrides, then ordinary options; `recipe` is also set if the program's name contains
    one. Without file, overrides and recipe only notes on a file that cannot be read are added.
    """
    program = Path(reading.program.text) if reading.program is not None else Path()
    runner = reading.recipe is not None or bool(_RECIPE_RUNNERS.fullmatch(program.name))
    entries_given = list(entries_of(reading.settings, runner))
    tree, missing = _sections_file(reading, lookup, str(program.parent))
    match = _NAMED_RECIPE.fullmatch(program.name)  # as pretrain_llama3_8b.py
    own = match is not None and match[1] not in ("gpt", "mamba", "vlm", "t5", "bert", "hybrid")
    named = reading.recipe or (reading.program if own else None)
    if tree is None and (tree := _own_sections(reading, lookup, str(program.parent))) is not None:
        named = reading.program  # what sections leave open is said in its code
    alone = named is not None and not reading.settings  # a recipe that is started as it is
    if tree is None and not entries_given and not alone:
        return with_unread(reading, *missing)
    filed = read_sections(tree, lookup.variables, entries_given)
    rest = tuple(setting for setting in reading.settings if not key_of(setting, runner))
    return replace(with_named_file(with_unread(reading, *missing), filed, (*filed.settings, *rest)), recipe=named)


def of_verl(reading: Reading, lookup: FileLookup) -> Reading:
    """Return the reading in verl's format: overrides merged over the user's configuration file, then ordinary options.

    A --config-name that verl ships, or none, is not read. `+` and `~` are removed from `possible` names, keys of
    `hydra` are left out, and `world` is replaced.
    """
    name = last_given(reading, _HYDRA_NAME)
    own = name is None or verl.own(name.values[-1].text)
    program = str(Path(reading.program.text).parent) if reading.program is not None else ""
    tree, missing = (None, ()) if own else _sections_file(reading, lookup, program)
    filed = () if tree is None else (entry for entry in entries(tree) if entry.path[0] != "hydra")
    found = (*filed, *entries_of(reading.settings, False))
    made = _with_keys(reading, lookup, found, () if tree is None else (tree,), missing)
    rest = (setting for setting in reading.settings if not key_of(setting))
    possible = tuple(replace(one, name=one.name.lstrip("+~")) for one in reading.possible)
    settings = (*made.settings, *rest)
    return replace(made, format=verl.FORMAT, settings=settings, possible=possible, world=verl.world(settings))


def of_nemo_rl(reading: Reading, lookup: FileLookup) -> Reading:
    """Return the reading with only the settings of NeMo-RL's file over those it inherits, and overrides.

    The file is the reading's tree, else that of --config, else the program's default. A file that cannot be read is
    noted unless NeMo-RL ships one of this name. `world` is replaced if `cluster` gives a number.
    """
    top, unread = reading.tree, list[Unread]()
    setting, usual = last_given(reading, ARGUMENTS), nemo_rl.usual(reading)
    if top is None and (setting is not None or usual is not None):
        below = str(Path(reading.program.text).parent) if reading.program is not None else ""
        if setting is None:
            word = Word.of(str(Path(below, "configs", usual or "")), reading.start)
            setting = Setting("--config", "--config", (word,), reading.start)
        read = tree_of(setting, lookup, below)
        top = read if isinstance(read, Tree) else None
        unread += [read] if isinstance(read, Unread) and not nemo_rl.comes_with_it(setting.text) else []
    trees = [] if top is None else [*_inherited(top, lookup, unread), top]
    found = nemo_rl.inherited(trees, list(entries_of(reading.settings, False)))
    made = _with_keys(reading, lookup, found, trees, unread)
    world = nemo_rl.world(made.settings)
    return replace(made, format=nemo_rl.FORMAT, world=world if world.words or world.dark else reading.world)


def _with_keys(
    reading: Reading, lookup: FileLookup, found: Iterable[Entry], trees: Sequence[Tree], unread: Iterable[Unread]
) -> Reading:
    """Return the reading with the entries, of which the last of a path counts, as its settings, references resolved.

    trees: the files that they come from, the named one last.
    """
    return replace(
        reading,
        settings=as_settings(interpolated(by_path(found), lookup.variables).values()),
        tree=trees[-1] if trees else None,
        texts=with_texts(reading, *(tree.text for tree in reversed(trees))),
        unread=(*reading.unread, *unread),
    )


def _inherited(tree: Tree, lookup: FileLookup, unread: list[Unread], depth: int = 0) -> Iterator[Tree]:
    """Yield the files that a configuration names in `defaults`, each after those that it inherits itself.

    Files that cannot be read are appended to `unread`, except those whose name NeMo-RL ships.
    """
    here = replace(lookup, folder=Path(tree.text.file).parent)
    place = tree.place((nemo_rl.DEFAULTS,)) or tree.spans[()].value
    for name in nemo_rl.bases(tree.data) if depth < _MOST_BASES else ():
        read = tree_of(Setting(nemo_rl.DEFAULTS, nemo_rl.DEFAULTS, (Word.of(name, place),), place), here)
        if isinstance(read, Tree):
            yield from _inherited(read, lookup, unread, depth + 1)
            yield read
        elif not nemo_rl.comes_with_it(name):
            unread.append(read)


def _sections_file(reading: Reading, lookup: FileLookup, program: str) -> tuple[Tree | None, tuple[Unread, ...]]:
    """Return (tree, notes) of the file of --config-path and --config-name, else of --config-file.

    (None, ()) if none is named; (None, (note,)) if it or its name cannot be read.
    `.yaml` is appended to a name without suffix. program: its folder, where the file is looked for as well.
    """
    folder, name, file = (last_given(reading, names) for names in (_HYDRA_FOLDER, _HYDRA_NAME, _FILE))
    if name is not None and not name.values[-1].unknown and not (folder and folder.values[-1].unknown):
        base = Path(folder.values[-1].text) if folder is not None else Path()
        if lookup.folder is not None and base.is_relative_to(lookup.folder):  # `$(pwd)` may be a folder above it
            base = base.relative_to(lookup.folder)
        path = str(base / name.values[-1].text)
        spelled = path if path.endswith((".yaml", ".yml")) else path + ".yaml"
        word = Word.of(spelled, name.values[-1].place)
        file = replace(name, values=(word,))
    elif name is not None:
        return None, (unread_setting(name, "its folder or its name is not known"),)
    if file is None:
        return None, ()
    tree = tree_of(file, lookup, program)
    return (None, (tree,)) if isinstance(tree, Unread) else (tree, ())


def _own_sections(reading: Reading, lookup: FileLookup, program: str) -> Tree | None:
    """Return the file of --config if its dialect is "overrides" and `model` is Megatron-LM's; None otherwise."""
    setting = last_given(reading, ARGUMENTS) if tuners.program(reading) is None else None
    tree = None if setting is None else tree_of(setting, lookup, program)
    if not isinstance(tree, Tree) or dialect_of(tree.data) != "overrides":
        return None
    return tree if sets_megatron(tree.data.get("model")) else None
