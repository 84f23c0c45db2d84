"""Files that a command names and that say how it trains: DeepSpeed's JSON, Megatron-LM's YAML, hydra's, a model's."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from symconfig.errors import InputError
from symconfig.existing.launch.detect import parse, syntax_of
from symconfig.existing.launch.dialects import nemo_rl, openrlhf, slime, tuners, verl
from symconfig.existing.launch.dialects.documents import read_document, read_sections
from symconfig.existing.launch.dialects.entry import entries
from symconfig.existing.launch.dialects.interpolation import interpolated
from symconfig.existing.launch.dialects.override import RECIPE, entries_of, group, is_key, parted, short
from symconfig.existing.launch.dialects.translate import by_path
from symconfig.existing.launch.files import open_text
from symconfig.existing.launch.origins import traced
from symconfig.existing.launch.reading import Hides, Piece, Reading, Setting, Tree, Unread, Word, World
from symconfig.existing.launch.text import Text
from symconfig.existing.launch.world import launcher_options
from symconfig.existing.launch.yaml_tree import parse_yaml

_DEEPSPEED = (
    "--deepspeed-config",
    "--deepspeed",
    "--ds-config",
    "--deepspeed-config-file",
    "--ds-config-path",
    "--dist-config.config-file",
)
_ARGUMENTS = ("--config",)  # of programs around Transformers, whose options it says
_MODEL = (
    "--model-config",
    "--model-name-or-path",
    "--model-path",
    "--model",
    "--model-dir",
    "--config-name-or-path",
    "--base-model",
)
_MOST_BASES = 8  # of configurations that inherit one another
_MOST_LEVELS = 4  # from a script up to the folder in which it is started
_MODEL_FILE = "config.json"
_HYDRA_FOLDER, _HYDRA_NAME = ("--config-path", "--config-dir"), ("--config-name",)
_FILE = ("--config-file", "--yaml-file", "--yaml-config")
_CONFIG_FILE = "--config_file"
ACCELERATE = "a configuration of Accelerate"
_SHELLS = ("bash", "sh", "zsh", "dash", "ksh")  # what they run is read with the script that starts it
_RECIPE_RUNNERS = re.compile(r"(run_recipe|setup_experiment|run_script|run_performance)\w*\.py")
_NAMED_RECIPE = re.compile(r"(?:pretrain|finetune|sft)_(\w+)\.py")


@dataclass(frozen=True, slots=True)
class Around:
    """The folders in which the files that a configuration names are looked for.

    virtual: those that a script itself writes; origins: the pieces of each, with the places in the script that they
    come from.
    """

    folder: Path | None
    variables: Mapping[str, str]
    virtual: Mapping[str, Text] = field(default_factory=dict)
    origins: Mapping[str, tuple[Piece, ...]] = field(default_factory=dict)

    def text(self, name: str, *below: str) -> Text | None:
        """Return the file of this name; None where there is none. Raises InputError where it may not be read."""
        if name in self.virtual:
            return self.virtual[name]
        base = self.base(name, *below)
        return None if base is None else open_text(base / name, root=base)

    def path(self, name: str) -> Path | None:
        """Return the path of this name that exists."""
        base = self.base(name)
        return None if base is None else base / name

    def base(self, name: str, *below: str) -> Path | None:
        """Return the folder from which the name leads to something: the script's, one of those below it, the current
        one; then those above the script, from which scripts/zero3.json is meant.
        """
        folder = self.folder
        bases = [Path()] if folder is None else [folder, *(folder / one for one in below), Path()]
        if folder is not None and len(Path(name).parts) > 1:
            bases += folder.resolve().parents[:_MOST_LEVELS]
        try:
            return next((base for base in bases if (base / name).exists()), None)
        except (OSError, ValueError):  # a name that no file system has
            return None


def followed(reading: Reading, around: Around) -> Reading:
    """Add what the files say that a reading names. A file that is missing or wrong is unread and matters."""
    of_verl = verl.applies(reading.settings)
    keyed = of_verl or nemo_rl.applies(reading)
    reading = replace(reading, settings=tuple(parted(reading.settings, any_section=keyed)))
    reading = tuners.with_command(reading)
    of_nemo = nemo_rl.applies(reading)
    steps = (_arguments, _accelerate, _deepspeed, _model, _megatron_yaml, _recipe, _overrides)
    for step in (_verl,) if of_verl else tuple(each.started for each in (slime, openrlhf) if each.applies(reading)):
        reading = step(reading, around)
    for step in (_nemo_rl,) if of_nemo else ():
        reading = step(reading, around)
    for step in () if of_verl or of_nemo else steps:
        reading = step(reading, around)
    named = tuple(setting for setting in reading.settings if setting.name)
    loose = (word for setting in reading.settings if not setting.name for word in setting.values)
    files = {text.file for text in reading.texts}
    called = reading.program is not None and Path(reading.program.text).name in _SHELLS
    why = "is a script that is not there" if called else "is an argument that belongs to no option"
    idle = (
        Unread(word.place, word.text, why, Hides.OPTIONS if called else Hides.NOTHING)
        for word in loose
        if not (word.unknown or any(file.endswith(word.text) for file in files))
    )
    return _unread(replace(reading, settings=named), *idle)


def _given(reading: Reading, names: Sequence[str]) -> Setting | None:
    """Return the last option of these names that has a value, dashes and underscores alike."""
    settings = [setting for setting in reading.settings if setting.name.replace("_", "-") in names and setting.values]
    return settings[-1] if settings else None


def _dark(setting: Setting, why: str) -> Unread:
    what = " ".join((setting.spelled, *(word.text for word in setting.values)))
    return Unread(setting.place, what, why)


def _tree(setting: Setting, around: Around, texts: Sequence[Text], *below: str) -> Tree | Unread:
    """Return the file that an option names."""
    word = setting.values[-1]
    if word.unknown and word.text not in around.virtual:  # a script's own file may have the job's number in its name
        return _dark(setting, f"its value {word.unknown}")
    try:
        text = around.text(word.text, *below)
        if text is None:
            preset = "names no file: it is a preset of the program itself, which is not known here"
            return _dark(setting, "names a file that is not there" if re.search(r"[./]", word.text) else preset)
        syntax = syntax_of(text)
        tree = parse(text, "yaml" if syntax == "bash" else syntax)
        return traced(tree, around.origins[word.text], texts) if word.text in around.virtual else tree
    except InputError as error:
        return _dark(setting, f"names a file that cannot be read: {error.problems[0]}".rstrip("."))


def _unread(reading: Reading, *items: Unread) -> Reading:
    return replace(reading, unread=(*reading.unread, *items))


def _accelerate(reading: Reading, around: Around) -> Reading:
    """Follow Accelerate's own file, which decides processes, precision and ZeRO stage, where it is given one; and what
    a program around Transformers reads of its environment."""
    known = tuners.program(reading)
    given = next((each.value for each in launcher_options(reading.launcher) if each.key == "config_file"), None)
    options = (word for word in reading.launcher if word.text.partition("=")[0] == _CONFIG_FILE)
    setting = None if given is None else Setting(_CONFIG_FILE, _CONFIG_FILE, (given,), next(options, given).place)
    if setting is None and known is not None:
        setting = _given(reading, ("--accelerate-config",))
    if setting is None:
        alone = known is not None and reading.world.gpus is None and not reading.launcher
        return replace(reading, world=tuners.started(reading)) if alone else reading
    tree = _tree(setting, around, reading.texts)
    preset = tuners.ACCELERATE_PRESETS.get(setting.values[-1].text)
    if isinstance(tree, Unread) and preset is not None:
        tree = parse_yaml(Text(f"the {setting.values[-1].text} of {known.trainer if known else ''}", preset.encode()))
    if isinstance(tree, Unread) or not isinstance(tree.data, dict):
        why = f"is {ACCELERATE}, which decides processes, precision and ZeRO, and is not read"
        return _unread(reading, Unread(setting.place, setting.spelled, why))
    gpus, nodes = (tree.get(name) for name in ("num_processes", "num_machines"))
    numbers = [value if type(value) is int and value > 0 else None for value in (gpus, nodes)]
    words = tuple(Word.of(str(value), tree.spans[(name,)].value, literal=True) for name, value in _counts(tree))
    each = numbers[0] // numbers[1] if numbers[0] and numbers[1] else None
    filed = World(numbers[0], numbers[1], each, words)
    world = _both(filed, reading.world) if reading.world.gpus is None else reading.world
    texts = reading.texts if preset is not None else _texts(reading, tree.text)
    return replace(reading, accelerate=tree, texts=texts, world=world)


def _counts(tree: Tree) -> Iterator[tuple[str, int]]:
    for name in ("num_processes", "num_machines"):
        if type(value := tree.get(name)) is int:
            yield name, value


def _arguments(reading: Reading, around: Around) -> Reading:
    """Follow YAML files that the program gets without an option, or by --config: `llamafactory-cli train job.yaml`."""
    loose = [word for setting in reading.settings if not setting.name for word in setting.values]
    given = _given(reading, _ARGUMENTS) if tuners.program(reading) is not None else None
    for word in (*loose, *(given.values[-1:] if given is not None else ())):
        if word.text.endswith((".yaml", ".yml")) and not word.unknown:
            tree = _tree(Setting("", word.text, (word,), word.place), around, reading.texts)
            if isinstance(tree, Unread):
                return _unread(reading, tree)
            filed = read_document(tree, around.variables)
            if filed is not None:
                return replace(
                    reading,
                    format=filed.format,
                    settings=(*filed.settings, *reading.settings),
                    tree=tree,
                    texts=_texts(reading, tree.text),
                    unread=(*reading.unread, *filed.unread),
                    environment={**reading.environment, **filed.environment},
                    world=_both(reading.world, filed.world),
                )
    return reading


def _deepspeed(reading: Reading, around: Around) -> Reading:
    setting = _given(reading, _DEEPSPEED) or _of_accelerate(reading)
    if setting is None or reading.deepspeed is not None:
        return reading
    tree = _tree(setting, around, reading.texts)
    if isinstance(tree, Unread):
        own = setting.text in tuners.DEEPSPEED_PRESETS and tuners.program(reading) is not None
        return reading if own else _unread(reading, tree)
    return replace(reading, deepspeed=tree, texts=_texts(reading, tree.text))


def _of_accelerate(reading: Reading) -> Setting | None:
    """Return the DeepSpeed JSON that Accelerate's file names, as an option."""
    tree, path = reading.accelerate, ("deepspeed_config", "deepspeed_config_file")
    if tree is None or not isinstance(tree.get(*path), str):
        return None
    place = tree.spans[path].value
    return Setting(path[1], path[1], (Word.of(tree.get(*path), place),), place)


def _texts(reading: Reading, *more: Text) -> tuple[Text, ...]:
    known = {text.file for text in reading.texts}
    return (*reading.texts, *(text for text in more if text.file not in known))


def _model(reading: Reading, around: Around) -> Reading:
    """Follow a model's config.json, where the option names it or its folder. A name of the hub is no path, and
    stays.
    """
    setting = _given(reading, _MODEL)
    if setting is None or setting.values[-1].unknown:
        return reading
    path = around.path(setting.values[-1].text)
    if path is not None and path.is_dir():
        path = path / _MODEL_FILE
    if path is None or not path.is_file() or path.suffix != ".json":
        return reading
    return replace(reading, model_config=str(path))


def _megatron_yaml(reading: Reading, around: Around) -> Reading:
    """Follow --yaml-cfg: Megatron-LM takes everything from the file, and nothing from the command line beside it."""
    setting = _given(reading, ("--yaml-cfg",))
    if setting is None:
        return reading
    tree = _tree(setting, around, reading.texts)
    if isinstance(tree, Unread):
        return _unread(reading, tree)
    filed = read_document(tree, around.variables)
    if filed is None:
        return _unread(reading, _dark(setting, "names a file without anything of Megatron-LM's"))
    why = "does nothing beside --yaml-cfg, which replaces it"
    ignored = tuple(
        Unread(other.place, other.spelled, why, Hides.NOTHING)
        for other in reading.settings
        if other is not setting and other.name
    )
    return replace(
        reading,
        format="megatron yaml",
        settings=(*filed.settings, setting),
        tree=tree,
        texts=_texts(reading, tree.text),
        unread=(*reading.unread, *filed.unread, *ignored),
    )


def _recipe(reading: Reading, around: Around) -> Reading:
    """Return the recipe that Megatron-Bridge or NeMo starts from: named by an option, or by the script that is
    started.
    """
    setting = _given(reading, RECIPE)
    program = Path(reading.program.text).name if reading.program is not None else ""
    if setting is None and _RECIPE_RUNNERS.fullmatch(program):
        setting = _given(reading, ("--model",))
    if setting is None:  # NeMo-Framework-Launcher's: training=llama/llama3_8b
        setting = next((one for one in reading.settings if group(one)), None)
    return reading if setting is None else replace(reading, recipe=setting.values[0])


def _overrides(reading: Reading, around: Around) -> Reading:
    """Follow model.x=1 among the words, and the YAML file that they change."""
    program = Path(reading.program.text) if reading.program is not None else Path()
    runner = reading.recipe is not None or bool(_RECIPE_RUNNERS.fullmatch(program.name))
    overrides = list(entries_of(reading.settings, runner))
    tree, dark = _sections_file(reading, around, str(program.parent))
    named = reading.recipe or _recipe_of_program(reading)
    alone = named is not None and not reading.settings  # a recipe that is started as it is
    if tree is None and not overrides and not alone:
        return _unread(reading, *dark)
    filed = read_sections(tree, around.variables, overrides)
    rest = tuple(setting for setting in reading.settings if not (is_key(setting) or (runner and short(setting))))
    return replace(
        reading,
        format="overrides",
        settings=(*filed.settings, *rest),
        tree=tree or reading.tree,
        texts=_texts(reading, *filed.texts),
        unread=(*reading.unread, *dark, *filed.unread),
        world=_both(reading.world, filed.world),
        recipe=named,
        environment={**reading.environment, **filed.environment},
    )


def _verl(reading: Reading, around: Around) -> Reading:
    """Follow overrides of verl's trainer, over a configuration of one's own where they name one."""
    name = _given(reading, _HYDRA_NAME)
    own = name is None or verl.own(name.values[-1].text)
    program = str(Path(reading.program.text).parent) if reading.program is not None else ""
    tree, dark = (None, ()) if own else _sections_file(reading, around, program)
    filed = () if tree is None else (entry for entry in entries(tree) if entry.path[0] != "hydra")
    resolved = interpolated(by_path((*filed, *entries_of(reading.settings, False))), around.variables)
    rest = tuple(setting for setting in reading.settings if not is_key(setting))
    settings = (*verl.kept(resolved.values()), *rest)
    return replace(
        reading,
        format=verl.FORMAT,
        settings=settings,
        possible=tuple(replace(one, name=one.name.lstrip("+~")) for one in reading.possible),
        tree=tree,
        texts=_texts(reading, *(() if tree is None else (tree.text,))),
        unread=(*reading.unread, *dark),
        world=verl.world(settings),
    )


def _nemo_rl(reading: Reading, around: Around) -> Reading:
    """Follow NeMo-RL's file, by --config or by itself, with those that it inherits and the overrides over them."""
    top, unread = reading.tree, []
    setting = _given(reading, _ARGUMENTS)
    usual = nemo_rl.usual(reading)
    if top is None and (setting is not None or usual is not None):
        below = str(Path(reading.program.text).parent) if reading.program is not None else ""
        if setting is None:
            word = Word.of(str(Path(below, "configs", usual or "")), reading.start)
            setting = Setting("--config", "--config", (word,), reading.start)
        read = _tree(setting, around, reading.texts, below)
        top = read if isinstance(read, Tree) else None
        unread += [read] if isinstance(read, Unread) and not nemo_rl.comes_with_it(setting.text) else []
    trees = [] if top is None else [*_inherited(top, around, unread), top]
    made = nemo_rl.inherited(trees, list(entries_of(reading.settings, False)))
    settings = nemo_rl.kept(interpolated(by_path(made), around.variables).values())
    world = nemo_rl.world(settings)
    return replace(
        reading,
        format=nemo_rl.FORMAT,
        settings=settings,
        tree=top,
        texts=_texts(reading, *(tree.text for tree in reversed(trees))),
        unread=(*reading.unread, *unread),
        world=world if world.words or world.dark else reading.world,
    )


def _inherited(tree: Tree, around: Around, unread: list[Unread], depth: int = 0) -> Iterator[Tree]:
    """Yield the files that one inherits, the farthest first; one that is not there and does not come with NeMo-RL is
    unread."""
    here = replace(around, folder=Path(tree.text.file).parent)
    place = tree.place((nemo_rl.DEFAULTS,)) or tree.spans[()].value
    for name in nemo_rl.bases(tree.data) if depth < _MOST_BASES else ():
        read = _tree(Setting(nemo_rl.DEFAULTS, nemo_rl.DEFAULTS, (Word.of(name, place),), place), here, ())
        if isinstance(read, Tree):
            yield from _inherited(read, around, unread, depth + 1)
            yield read
        elif not nemo_rl.comes_with_it(name):
            unread.append(read)


def _recipe_of_program(reading: Reading) -> Word | None:
    """Return the recipe that `pretrain_llama3_8b.py` names."""
    program = reading.program
    match = _NAMED_RECIPE.fullmatch(Path(program.text).name) if program is not None else None
    return program if match and match[1] not in ("gpt", "mamba", "vlm", "t5", "bert", "hybrid") else None


def _sections_file(reading: Reading, around: Around, program: str) -> tuple[Tree | None, tuple[Unread, ...]]:
    """Return the file of hydra's --config-path and --config-name, or Megatron-Bridge's --config-file."""
    folder, name, file = (_given(reading, names) for names in (_HYDRA_FOLDER, _HYDRA_NAME, _FILE))
    if name is not None and not name.values[-1].unknown and not (folder and folder.values[-1].unknown):
        base = Path(folder.values[-1].text) if folder is not None else Path()
        if around.folder is not None and base.is_relative_to(around.folder):  # `$(pwd)` may be a folder above it
            base = base.relative_to(around.folder)
        path = str(base / name.values[-1].text)
        spelled = path if path.endswith((".yaml", ".yml")) else path + ".yaml"
        word = Word.of(spelled, name.values[-1].place)
        file = replace(name, values=(word,))
    elif name is not None:
        return None, (_dark(name, "its folder or its name is not known"),)
    if file is None:
        return _group_file(reading, around, program), ()
    tree = _tree(file, around, reading.texts, program)
    return (None, (tree,)) if isinstance(tree, Unread) else (tree, ())


def _group_file(reading: Reading, around: Around, program: str) -> Tree | None:
    """Return conf/training/llama/llama3_8b.yaml beside the program; where it is not at hand, the recipe's name
    is all.
    """
    setting = next((one for one in reading.settings if group(one)), None)
    if setting is None or setting.values[0].unknown:
        return None
    below = Path("conf", setting.name, setting.values[0].text + ".yaml")
    for name in (str(Path(program, below)), str(Path(Path(program).name, below))):
        tree = _tree(replace(setting, values=(Word.of(name, setting.place),)), around, reading.texts)
        if isinstance(tree, Tree):
            return tree
    return None


def _both(launcher: World, trainer: World) -> World:
    """Join the worlds: what the training program is told goes before what its launcher starts."""
    nodes, each = trainer.nodes or launcher.nodes, trainer.gpus_per_node or launcher.gpus_per_node
    gpus = trainer.gpus or (nodes * each if nodes and each else launcher.gpus)
    return World(gpus, nodes, each, (*launcher.words, *trainer.words), (*launcher.dark, *trainer.dark))
