"""Files that a command names and that say how it trains: DeepSpeed's JSON, Accelerate's, a model's, hydra's.

Files of hydra's kind (those of Megatron-Bridge, NeMo 2, verl and NeMo-RL) come with what they inherit.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from symconfig.descriptor.architectures.keys import words
from symconfig.errors import InputError
from symconfig.existing.launch.dialects import nemo_rl, openrlhf, slime, tuners, verl
from symconfig.existing.launch.dialects.override import (
    RECIPE,
    Entry,
    entries,
    entries_of,
    interpolated,
    key_of,
    overrides_apart,
)
from symconfig.existing.launch.dialects.translate import by_path, table_with
from symconfig.existing.launch.files import FileLookup, dialect_of, mapping_of, read_document, read_sections, tree_of
from symconfig.existing.launch.reading import Hides, Reading, Setting, Tree, Unread, Word, World
from symconfig.existing.launch.text import Text
from symconfig.existing.launch.trees import parse_yaml
from symconfig.existing.launch.world import SHELLS, hostfile_world, launcher_options

_DEEPSPEED = words(
    """
    --deepspeed-config --deepspeed --ds-config --deepspeed-config-file --ds-config-path --dist-config.config-file
    """
)
_MODEL = words(
    """
    --model-config --model-name-or-path --model-path --model --model-dir --config-name-or-path --base-model
    """
)
ARGUMENTS = ("--config",)  # of programs around Transformers and of NeMo-RL, whose options it says
_MOST_BASES = 8  # of configurations that inherit one another
_HYDRA_FOLDER, _HYDRA_NAME = ("--config-path", "--config-dir"), ("--config-name",)
_FILE = ("--config-file", "--yaml-file", "--yaml-config")
_RECIPE_RUNNERS = re.compile(r"(run_recipe|setup_experiment|run_script|run_performance)\w*\.py")
_NAMED_RECIPE = re.compile(r"(?:pretrain|finetune|sft)_(\w+)\.py")


def followed(reading: Reading, lookup: FileLookup) -> Reading:
    """Return the reading with the contents of the files that it names, and overrides as settings of their own.

    verl's and NeMo-RL's are merged by their rules; else hostfile, arguments, Accelerate's, FSDP's, DeepSpeed's, the
    model's and the overrides' file are read. Words without an option are dropped, and noted in `unread` if they name no
    file; so are files that cannot be read.
    """
    by_verl = verl.applies(reading)
    keyed = by_verl or nemo_rl.applies(reading)
    reading = replace(reading, settings=tuple(overrides_apart(reading.settings, any_section=keyed)))
    reading = tuners.with_command(reading)
    if by_verl:
        reading = of_verl(reading, lookup)
    elif nemo_rl.applies(reading):
        reading = of_nemo_rl(reading, lookup)
    else:
        for program in (slime, openrlhf):
            reading = program.started(reading) if program.applies(reading) else reading
        for step in (_hosts, _arguments, _accelerate, _fsdp, _deepspeed, _model, recipe, overrides):
            reading = step(reading, lookup)
    named = tuple(setting for setting in reading.settings if setting.name)
    loose = (word for setting in reading.settings if not setting.name for word in setting.values)
    files = {text.file for text in reading.texts}
    called = Path(reading.path).name in SHELLS
    why = "is a script that is not there" if called else "is an argument that belongs to no option"
    idle = (
        Unread(word.place, word.text, why, Hides.OPTIONS if called else Hides.NOTHING)
        for word in loose
        if not (word.unknown or any(file.endswith(word.text) for file in files))
    )
    return replace(reading, settings=named).noting(*idle)


def _hosts(reading: Reading, lookup: FileLookup) -> Reading:
    """Return the reading with the GPUs of the deepspeed launcher's hostfile as `world`; unchanged without --hostfile.

    A hostfile that cannot be read is noted in `unread`.
    """
    spoken = {each.key: each.value for each in launcher_options(reading.launcher) if each.launcher == "deepspeed"}
    word = spoken.get("hostfile", spoken.get("H"))
    if word is None:
        return reading
    try:
        text = None if word.unknown else lookup.text(word.text)
    except InputError:
        text = None
    listed = None if text is None else hostfile_world(text.data.decode("utf-8", "replace"), spoken)
    if text is None or listed is None:
        why = "names hosts that are not read, so that it does not say how many GPUs there are"
        return reading.noting(Unread(word.place, word.text, why, Hides.NOTHING))
    return reading.with_files(text, world=replace(listed, words=(word,)))


def _accelerate(reading: Reading, lookup: FileLookup) -> Reading:
    """Return the reading with the file of Accelerate's launcher (--config_file) or of a tuner's --accelerate-config.

    A preset's name stands for its contents. The file's counts of GPUs are used where the launcher gives no total. A
    file that cannot be read is noted. Without either option a tuner's program without a launcher gets its GPUs from the
    environment.
    """
    known = tuners.program(reading)
    stated = next((each.value for each in launcher_options(reading.launcher) if each.key == "config_file"), None)
    setting = None if stated is None else Setting("--config_file", "--config_file", (stated,), stated.place)
    if setting is None and known is not None:
        setting = reading.last(("--accelerate-config",))
    if setting is None:
        alone = known is not None and reading.world.gpus is None and not reading.launcher
        return replace(reading, world=tuners.started(reading)) if alone else reading
    tree = mapping_of(setting, lookup)
    preset = tuners.ACCELERATE_PRESETS.get(setting.values[-1].text)
    if isinstance(tree, Unread) and preset is not None:
        tree = parse_yaml(
            Text(f"the {setting.values[-1].text} of {known.tuner.name if known else ''}", preset.encode())
        )
    if isinstance(tree, Unread):
        why = "is a configuration of Accelerate, which decides processes, precision and ZeRO, and is not read"
        return reading.noting(Unread(setting.place, setting.spelled, why))
    counts = {name: n for name in ("num_processes", "num_machines") if type(n := tree.get(name)) is int}
    words = tuple(Word.of(str(n), tree.spans[(name,)].value, literal=True) for name, n in counts.items())
    gpus, nodes = (max(0, counts.get(name, 0)) or None for name in ("num_processes", "num_machines"))
    filed = World(gpus, nodes, gpus // nodes if gpus and nodes else None, words)
    world = filed.merged(reading.world) if reading.world.gpus is None else reading.world
    return reading.with_files(*(() if preset is not None else (tree.text,)), accelerate=tree, world=world)


def _arguments(reading: Reading, lookup: FileLookup) -> Reading:
    """Return the reading with the settings of the first YAML file among words without an option, and of --config.

    The file's settings come first, so that the command line's win. A file that cannot be read is noted.
    """
    loose = [word for setting in reading.settings if not setting.name for word in setting.values]
    named = reading.last(ARGUMENTS) if tuners.program(reading) is not None else None
    for word in (*loose, *(named.values[-1:] if named is not None else ())):
        if word.text.endswith((".yaml", ".yml")) and not word.unknown:
            tree = tree_of(Setting("", word.text, (word,), word.place), lookup)
            if isinstance(tree, Unread):
                return reading.noting(tree)
            filed = read_document(tree, lookup.variables)
            if filed is not None:
                return _with_named_file(reading, filed, (*filed.settings, *reading.settings))
    return reading


def _fsdp(reading: Reading, lookup: FileLookup) -> Reading:
    """Return the reading with the JSON file of --fsdp-config as `fsdp`; unchanged without one, or for inline JSON.

    A file that cannot be read is noted in `unread`.
    """
    setting = reading.last(("--fsdp-config",))
    if setting is None or setting.text.startswith("{"):
        return reading
    tree = mapping_of(setting, lookup)
    if isinstance(tree, Unread):
        return reading.noting(setting.unread("is no JSON of FSDP that can be read"))
    return reading.with_files(tree.text, fsdp=tree)


def _deepspeed(reading: Reading, lookup: FileLookup) -> Reading:
    """Return the reading with the DeepSpeed JSON that an option, or else Accelerate's file, names.

    A file that cannot be read is noted in `unread`, unless its name is a preset's.
    """
    setting, filed = reading.last(_DEEPSPEED), reading.accelerate
    path = ("deepspeed_config", "deepspeed_config_file")
    if setting is None and filed is not None and isinstance(name := filed.get(*path), str):
        place = filed.spans[path].value
        setting = Setting(path[1], path[1], (Word.of(name, place),), place)
    if setting is None or reading.deepspeed is not None:
        return reading
    tree = tree_of(setting, lookup)
    if isinstance(tree, Unread):
        own = setting.text in tuners.DEEPSPEED_PRESETS and tuners.program(reading) is not None
        return reading if own else reading.noting(tree)
    return reading.with_files(tree.text, deepspeed=tree)


def _model(reading: Reading, lookup: FileLookup) -> Reading:
    """Return the reading with `model_config`, the path of the model's .json file or its folder's config.json.

    Unchanged if no option names a model, or there is no such file.
    """
    setting = reading.last(_MODEL)
    if setting is None or setting.values[-1].unknown:
        return reading
    path = lookup.path(setting.values[-1].text)
    if path is not None and path.is_dir():
        path = path / "config.json"
    if path is None or not path.is_file() or path.suffix != ".json":
        return reading
    return replace(reading, model_config=str(path))


def _with_named_file(reading: Reading, filed: Reading, settings: Sequence[Setting]) -> Reading:
    """Return a command's reading with `settings`, and with format, tree, environment and GPUs of a file over its own.

    The file's texts and notes are appended.
    """
    return reading.with_files(
        *filed.texts,
        format=filed.format,
        settings=tuple(settings),
        tree=filed.tree or reading.tree,
        unread=(*reading.unread, *filed.unread),
        environment={**reading.environment, **filed.environment},
        world=reading.world.merged(filed.world),
    )


def recipe(reading: Reading, lookup: FileLookup) -> Reading:
    """Return the reading with `recipe`: the value of the option that names one, of recipe runners also --model.

    Unchanged without such an option.
    """
    setting = reading.last(RECIPE)
    if setting is None and _RECIPE_RUNNERS.fullmatch(Path(reading.path).name):
        setting = reading.last(("--model",))
    return reading if setting is None else replace(reading, recipe=setting.values[0])


def overrides(reading: Reading, lookup: FileLookup) -> Reading:
    """Return the reading combined with overrides such as model.x=1 and the YAML file that they change.

    Settings are those of file and overrides, then ordinary options; `recipe` is also set if the program's name contains
    one. Without file, overrides and recipe only notes on a file that cannot be read are added.
    """
    program = Path(reading.path)
    runner = reading.recipe is not None or bool(_RECIPE_RUNNERS.fullmatch(program.name))
    entries_given = list(entries_of(reading.settings, runner))
    tree, missing = _sections_file(reading, lookup)
    match = _NAMED_RECIPE.fullmatch(program.name)  # as pretrain_llama3_8b.py
    own = match is not None and match[1] not in ("gpt", "mamba", "vlm", "t5", "bert", "hybrid")
    named = reading.recipe or (reading.program if own else None)
    if tree is None and (tree := _own_sections(reading, lookup)) is not None:
        named = reading.program  # what sections leave open is said in its code
    alone = named is not None and not reading.settings  # a recipe that is started as it is
    if tree is None and not entries_given and not alone:
        return reading.noting(*missing)
    filed = read_sections(tree, lookup.variables, entries_given)
    rest = tuple(setting for setting in reading.settings if not key_of(setting, runner))
    return replace(_with_named_file(reading.noting(*missing), filed, (*filed.settings, *rest)), recipe=named)


def of_verl(reading: Reading, lookup: FileLookup) -> Reading:
    """Return the reading in verl's format: overrides merged over the user's configuration file, then ordinary options.

    A --config-name that verl ships, or none, is not read. `+` and `~` are removed from `possible` names, keys of
    `hydra` are left out, and `world` is replaced.
    """
    name = reading.last(_HYDRA_NAME)
    own = name is None or verl.own(name.values[-1].text)
    tree, missing = (None, ()) if own else _sections_file(reading, lookup)
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
    setting, usual = reading.last(ARGUMENTS), nemo_rl.usual(reading)
    if top is None and (setting is not None or usual is not None):
        below = str(Path(reading.path).parent)
        if setting is None:
            word = Word.of(str(Path(below, "configs", usual or "")), reading.start)
            setting = Setting("--config", "--config", (word,), reading.start)
        read = mapping_of(setting, lookup, below)
        top = read if isinstance(read, Tree) else None
        unread += [read] if isinstance(read, Unread) and not nemo_rl.comes_with_it(setting.text) else []
    trees = [] if top is None else [*_inherited(top, lookup, unread), top]
    found = (*nemo_rl.inherited(trees), *entries_of(reading.settings, False))
    made = _with_keys(reading, lookup, found, trees, unread)
    world = nemo_rl.world(made.settings)
    return replace(made, format=nemo_rl.FORMAT, world=world if world.words or world.dark else reading.world)


def _with_keys(
    reading: Reading, lookup: FileLookup, found: Iterable[Entry], trees: Sequence[Tree], unread: Iterable[Unread]
) -> Reading:
    """Return the reading with the entries, of which the last of a path counts, as its settings, references resolved.

    trees: the files that they come from, the named one last.
    """
    merged = interpolated(by_path(found), lookup.variables).values()
    return reading.with_files(
        *(tree.text for tree in reversed(trees)),
        settings=tuple(Setting(".".join(each.path), each.spelled, each.words, each.place) for each in merged),
        tree=trees[-1] if trees else None,
        unread=(*reading.unread, *unread),
    )


def _inherited(tree: Tree, lookup: FileLookup, unread: list[Unread], depth: int = 0) -> Iterator[Tree]:
    """Yield the files that a configuration names in `defaults`, each after those that it inherits itself.

    Files that cannot be read are appended to `unread`, except those whose name NeMo-RL ships.
    """
    here = replace(lookup, folder=Path(tree.text.file).parent)
    place = tree.place((nemo_rl.DEFAULTS,)) or tree.spans[()].value
    for name in nemo_rl.bases(tree.data) if depth < _MOST_BASES else ():
        read = mapping_of(Setting(nemo_rl.DEFAULTS, nemo_rl.DEFAULTS, (Word.of(name, place),), place), here)
        if isinstance(read, Tree):
            yield from _inherited(read, lookup, unread, depth + 1)
            yield read
        elif not nemo_rl.comes_with_it(name):
            unread.append(read)


def _sections_file(reading: Reading, lookup: FileLookup) -> tuple[Tree | None, tuple[Unread, ...]]:
    """Return (tree, notes) of the file of --config-path and --config-name, else of --config-file.

    (None, ()) if none is named; (None, (note,)) if it or its name cannot be read.
    `.yaml` is appended to a name without suffix. The file is looked for in the program's folder, too.
    """
    folder, name, file = (reading.last(names) for names in (_HYDRA_FOLDER, _HYDRA_NAME, _FILE))
    if name is not None and not name.values[-1].unknown and not (folder and folder.values[-1].unknown):
        base = Path(folder.values[-1].text) if folder is not None else Path()
        if lookup.folder is not None and base.is_relative_to(lookup.folder):  # `$(pwd)` may be a folder above it
            base = base.relative_to(lookup.folder)
        path = str(base / name.values[-1].text)
        spelled = path if path.endswith((".yaml", ".yml")) else path + ".yaml"
        word = Word.of(spelled, name.values[-1].place)
        file = replace(name, values=(word,))
    elif name is not None:
        return None, (name.unread("its folder or its name is not known"),)
    if file is None:
        return None, ()
    tree = mapping_of(file, lookup, str(Path(reading.path).parent))
    return (None, (tree,)) if isinstance(tree, Unread) else (tree, ())


def _own_sections(reading: Reading, lookup: FileLookup) -> Tree | None:
    """Return the file of --config if its dialect is "overrides" and `model` is Megatron-LM's; None otherwise."""
    setting = reading.last(ARGUMENTS) if tuners.program(reading) is None else None
    tree = None if setting is None else tree_of(setting, lookup, str(Path(reading.path).parent))
    if not isinstance(tree, Tree) or dialect_of(tree.data) != "overrides":
        return None
    return tree if _sets_megatron(tree.data.get("model")) else None


def _sets_megatron(section: Any) -> bool:
    """Return whether a section is a mapping with at least three keys that are options of Megatron-LM."""
    if not isinstance(section, dict):
        return False
    plain = (key for key, value in section.items() if not isinstance(value, dict))
    return sum(table_with(key) is not None for key in plain) > 2
