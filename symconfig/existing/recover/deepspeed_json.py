"""The "auto" values of a DeepSpeed JSON, as Transformers' Trainer fills them in, and the batch that its sizes give."""

from __future__ import annotations

from collections.abc import Iterator
from copy import deepcopy
from dataclasses import dataclass
from typing import Any

from symconfig.descriptor.document import KeyPath, shorten
from symconfig.errors import Problem
from symconfig.existing.launch.reading import Reading, Tree
from symconfig.existing.recover.arguments import DIGITS, Arguments
from symconfig.existing.recover.run import Assumed
from symconfig.formats.deepspeed import BY_PATH, KEYS, Key
from symconfig.frameworks.deepspeed.keys import ACCUMULATION, AUTO, MICRO, TRAIN, ZERO

Json = dict[str, Any]
# Set by Accelerate, under the Trainer, whatever the file says (accelerate/utils/dataclasses.py, DeepSpeedPlugin).
OVERWRITTEN: frozenset[KeyPath] = frozenset({("steps_per_print",)})
_OF_STEPS = frozenset({("scheduler", "params", "total_num_steps"), ("scheduler", "params", "warmup_num_steps")})


def autos(value: Any, path: KeyPath = ()) -> Iterator[KeyPath]:
    """Yield the path of every value "auto" in nested dictionaries."""
    if isinstance(value, dict):
        for key, item in value.items():
            yield from autos(item, (*path, key))
    elif value == AUTO:
        yield path


def fills(path: KeyPath, stage: int) -> bool:
    """Return whether the Trainer fills in an "auto" at this path; sizes of ZeRO-3's own keys only at stage 3."""
    key = BY_PATH.get(path)
    if key is not None and key.sized:
        return stage == 3 or key.stages != "3"
    return (key is not None and key.default is not None) or path in _OF_STEPS or path == (TRAIN,)


def uses_trainer(arguments: Arguments) -> bool:
    """Return whether the Trainer reads the JSON: unless DeepSpeed's own --deepspeed_config is given."""
    return not arguments.given("deepspeed_config")


def autofilled(config: Any, arguments: Arguments, hidden_size: int | None) -> Any:
    """Return a copy of the JSON with each "auto" replaced by the value of the Trainer's arguments or their defaults.

    An "auto" train_batch_size is removed, as DeepSpeed computes it. "auto" stays for what the Trainer does not fill,
    for all defaults if there are no arguments at all, and for sizes if `hidden_size` is None.
    """
    if not isinstance(config, dict):
        return config
    copy: Json = deepcopy(config)
    if copy.get(TRAIN) == AUTO:
        del copy[TRAIN]
    stage = at(copy, (ZERO, "stage"))
    for path in list(autos(copy)):
        key, section = BY_PATH.get(path), at(copy, path[:-1])
        if key is None or not fills(path, stage):
            continue
        if key.default is not None and arguments.settings:
            section[path[-1]] = _argued(key, arguments)
        elif key.sized and hidden_size is not None:
            section[path[-1]] = key.sized(hidden_size)
    return copy


def _argued(key: Key, arguments: Arguments) -> Any:
    """Return a key's value from the Trainer's arguments, in its default's type (a list for a tuple), else the default.

    A switch that is not given is False.
    """
    if isinstance(key.default, bool):
        return bool(arguments.switch(*key.arguments))
    if isinstance(key.default, int):
        return arguments.whole(*key.arguments) or key.default
    defaults = key.default if isinstance(key.default, tuple) else (key.default,)
    given = zip(map(arguments.number, key.arguments), defaults, strict=True)
    values = [default if value is None else value for value, default in given]
    return values if isinstance(key.default, tuple) else values[0]


def mismatches(config: Any, arguments: Arguments) -> Iterator[tuple[KeyPath, Any, Any]]:
    """Yield (path, JSON's value, arguments' value) where both are given and differ: the Trainer then stops."""
    for key in KEYS:
        have = at(config, key.path)
        if have in (None, AUTO) or not arguments.given(*key.arguments):
            continue
        if have != (wanted := _argued(key, arguments)):
            yield key.path, have, wanted


def at(config: Any, path: KeyPath) -> Any:
    """Return the value at a path of nested dictionaries; None if any key is absent."""
    for key in path:
        config = config.get(key) if isinstance(config, dict) else None
    return config


_SAID_BY = {key: BY_PATH[key,].arguments for key in (MICRO, ACCUMULATION)}
# Options of launchers that say, or may say, that there are more nodes than one.
_NODES = frozenset(("hostfile", "H", "num_nodes", "nnodes", "num_machines", "include", "i", "nodes", "N"))


@dataclass(frozen=True, slots=True)
class Sizes:
    """Resolved sizes: sequences per data rank and microbatch, microbatches per step, GPUs of the launch, degrees.

    tensor, sequence, experts: of AutoTP, whose ranks count as data ranks, Ulysses and AutoEP.
    """

    micro: int
    steps: int
    gpus: int
    tensor: int
    sequence: int
    experts: int

    @property
    def dp(self) -> int:
        return self.gpus // (self.tensor * self.sequence)


def batch_sizes(
    reading: Reading, tree: Tree, arguments: Arguments, gpus: int | None, problems: list[Problem]
) -> tuple[Sizes | None, tuple[Assumed, ...]]:
    """Return the batch sizes and the assumptions made; (None, ()) with what is missing or wrong appended to `problems`.

    gpus: of the launch; if None they follow from the sizes (runtime/config.py, _set_batch_related_parameters, 0.19.8),
    else are one node's, both as assumptions. One microbatch per step is assumed if neither steps nor train batch are
    given. AutoEP's degree counts only if it is enabled.
    """
    tensor = _degree(tree, problems, "tensor_parallel", "autotp_size")
    sequence = _degree(tree, problems, "sequence_parallel_size")
    enabled = tree.get("expert_parallel", "enabled") is True
    experts = _degree(tree, problems, "expert_parallel", "autoep_size") if enabled else 1
    before, assumed = len(problems), list[Assumed]()
    micro, steps, train = (_size(tree, arguments, key, problems) for key in (MICRO, ACCUMULATION, TRAIN))
    dark = uses_trainer(arguments) and arguments.given(*_SAID_BY[MICRO])  # its value is what is wrong then
    if train is None and micro is None and len(problems) == before and not dark:
        hint = _hint(f"{MICRO} in it", MICRO, arguments)
        problems.append(tree.problem((), f"has neither {TRAIN} nor {MICRO}", hint=hint))
    if gpus is None and train and micro and steps and train % (micro * steps) == 0:
        gpus = train // (micro * steps) * sequence
        why = f"{TRAIN} over micro-batch and accumulation"
        assumed.append(Assumed("GPUs", str(gpus), why, tree.place((TRAIN,))))
    options = {word.text.lstrip("-").partition("=")[0] for word in reading.launcher}
    alone = not (options & _NODES or any(word.unknown for word in reading.launcher))
    if gpus is None and alone and (gpus := reading.world.gpus_per_node):
        assumed.append(Assumed("nodes", "1", "the launcher says how many GPUs a node has, and of no other node"))
    if gpus is None:
        problems.append(Problem("the number of GPUs is not said", file=tree.text.file, hint="--gpus N"))
    elif len(problems) == before and gpus % (tensor * sequence):
        what = f"{gpus} GPUs do not divide by AutoTP {tensor} x Ulysses {sequence}"
        problems.append(Problem(what, file=tree.text.file))
    if gpus is None or len(problems) > before:
        return None, ()
    if steps is None and train is None:
        assumed.append(Assumed("microbatches of a step", "1", "neither the JSON nor the arguments say how many"))
    ranks = gpus // sequence
    if train is not None:
        micro = micro or train // (ranks * (steps or 1))
        steps = steps or (train // (ranks * micro) if micro else 0)
        if micro * steps * ranks != train:
            what = f"is not micro-batch {micro or '?'} x accumulation {steps or '?'} x {ranks} data ranks"
            need = str(micro * steps * ranks) if micro * steps else f"a multiple of {ranks}"
            hint = f"leave {TRAIN} out, and DeepSpeed multiplies it out"
            problems.append(tree.problem((TRAIN,), what, got=str(train), need=need, hint=hint))
            return None, ()
    return Sizes(micro or 1, steps or 1, gpus, tensor, sequence, experts), tuple(assumed)


def _degree(tree: Tree, problems: list[Problem], *path: str) -> int:
    """Return the degree at a path of the JSON; 1 if absent, 0, "auto" or, recorded in `problems`, malformed."""
    stated = tree.get(*path) not in (None, 0, AUTO)
    return (_positive(tree, problems, "is no degree", *path) if stated else None) or 1


def _positive(tree: Tree, problems: list[Problem], what: str, *path: str) -> int | None:
    """Return the positive integer at a path of the JSON; None, with the problem `what`, for any other value."""
    value = tree.get(*path)
    if isinstance(value, int) and not isinstance(value, bool) and 0 < value < 10**DIGITS:
        return value
    got, need = shorten(repr(value)), "a whole number above zero"
    problems.append(tree.problem(path, what, got=got, need=need))
    return None


def _size(tree: Tree, arguments: Arguments, key: str, problems: list[Problem]) -> int | None:
    """Return a size from the JSON, or from the Trainer's arguments if it is absent or "auto" there; None for neither.

    None with a problem appended to `problems` if it is malformed, or an "auto" that nothing fills in.
    """
    value, names, trainer = tree.get(key), _SAID_BY.get(key, ()), uses_trainer(arguments)
    if value in (None, AUTO):
        if trainer and arguments.given(*names):
            return arguments.whole(*names)
        if value == AUTO and names and not (trainer and key == ACCUMULATION and arguments.settings):
            what = 'is "auto", and no argument says it' if trainer else 'is "auto", which only the Trainer fills in'
            problems.append(tree.problem((key,), what, hint=_hint("a number", key, arguments)))
        return None
    return _positive(tree, problems, "is no size of a batch", key)


def _hint(in_json: str, key: str, arguments: Arguments) -> str:
    """Return a hint that says where to set a size: in the JSON, and by an argument if the Trainer reads any."""
    read = uses_trainer(arguments) and arguments.settings
    return f"{in_json}, or --{_SAID_BY[key][0]} N beside it" if read else in_json
