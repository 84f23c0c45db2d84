"""A DeepSpeed launch as a run, the way back from `render.deepspeed`: its JSON, with the "auto" values that the Trainer
of Transformers fills in, the sizes of its batch, and the program's arguments.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from copy import deepcopy
from dataclasses import dataclass, replace
from typing import Any

from symconfig.descriptor.cluster import ClusterDescriptor
from symconfig.descriptor.document import KeyPath, shorten
from symconfig.descriptor.model import ModelDescriptor
from symconfig.descriptor.training import Optimizer
from symconfig.errors import InputError, Problem
from symconfig.existing.launch.reading import Reading, Tree
from symconfig.existing.launch.text import Text
from symconfig.existing.recover.arguments import DIGITS, Arguments, accelerate_settings
from symconfig.existing.recover.deepspeed_model import described
from symconfig.existing.recover.run import Assumed, Run, Supplied
from symconfig.formats.deepspeed import (
    BY_PATH,
    KEYS,
    Key,
    gradient_bytes_of,
    precision_of,
    section,
    zero_of,
)
from symconfig.formats.tuners import SEQUENCE
from symconfig.frameworks.behaviour import COMPILED, LIGER, Switches, stepping, switched
from symconfig.frameworks.deepspeed.behaviour import DEEPSPEED, DEEPSPEED_RELEASE
from symconfig.frameworks.deepspeed.keys import ACCUMULATION, AUTO, MICRO, TRAIN, ZERO
from symconfig.frameworks.known import built
from symconfig.plans.configuration import Precision
from symconfig.plans.plan import Target
from symconfig.solve.pieces import WHOLE
from symconfig.solve.prospect import Setup, recomputing

Json = dict[str, Any]
RECOMPUTE = ("gradient_checkpointing", "use_gradient_checkpointing")
_KERNELS = ("attn_implementation", "attention_implementation")
_WRITTEN = "the program's own JSON"  # the file that findings about it would name

# Transformers' names (training_args.py, OptimizerNames) of what keeps other states than AdamW in fp32. The paged ones
# keep as much, on the GPU as long as there is room.
_TRAINER: Mapping[str, str] = {
    "adamw_bnb_8bit": "adam8bit",
    "adamw_8bit": "adam8bit",
    "paged_adamw_8bit": "adam8bit",
    "adafactor": "adafactor",
    "sgd": "sgd",
}
_ADAM = ("", "adam", "adamw", "onebitadam", "zerooneadam")  # DeepSpeed's, and none
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


def built_json(config: Any, file: str = _WRITTEN) -> Tree:
    """Return data, such as the JSON that a program builds for DeepSpeed, as if it had been read, without places."""
    return Tree(Text(file, b""), config, {}, "json")


def run(reading: Reading, cluster: ClusterDescriptor, supplied: Supplied) -> Run:
    """Return the run by the DeepSpeed JSON, else by that which Accelerate builds, and by the program's arguments.

    AutoTP is tp, Ulysses is cp, and enabled AutoEP ep. The user's GPUs and sequence length take precedence. "auto"
    values are filled in as the Trainer does, unless the program takes --deepspeed_config. Raises InputError with all
    problems, among them a missing model, batch, number of GPUs or length.
    """
    tree = reading.deepspeed
    if tree is None and (config := accelerate_settings(reading).config) is not None:
        tree = built_json(config)
    if tree is None:
        raise InputError("names no DeepSpeed JSON that could be read", file=reading.file)
    if not isinstance(tree.data, dict):
        raise InputError(tree.problem((), "is not a JSON object"))
    arguments, problems = Arguments(reading.options), list[Problem]()
    model = described(reading, arguments, supplied, problems)
    sizes, assumed = batch_sizes(reading, tree, arguments, supplied.gpus or reading.world.gpus, problems)
    length = supplied.seq_length or arguments.whole(*SEQUENCE)
    if length is None:
        problems.append(Problem("the length of the sequences is not said", reading.file, hint="--seq-length N"))
    config = tree.data
    if uses_trainer(arguments):
        config = autofilled(config, arguments, model.model.hidden_size if model else None)
    precision, guessed = _precision(config, tree, arguments, cluster, problems)
    recompute = _recompute(arguments)
    problems += arguments.problems
    if problems or model is None or sizes is None or length is None:
        raise InputError(list(dict.fromkeys(problems)))
    model = replace(model, model=built(model.model, "deepspeed"))
    zero, width, replicated = zero_of(config), gradient_bytes_of(config), sizes.dp * sizes.sequence > 1
    reduces, gathers = not zero.stage or zero.overlap, zero.stage != 3 or zero.prefetch
    optimizer, taken = optimizer_of(config, arguments)
    behaviour = Switches(
        implementation=_kernels(arguments, model.model),
        bytes={"gradient": float(width)},
        framework={"all_reduced_gradients": not zero.scatters},
        reduces_beside=reduces or not replicated,
        gathers_ahead=gathers or not replicated,
    )
    framework = stepping(switched(DEEPSPEED, cluster.gpu.architecture, behaviour), optimizer)
    configuration = Setup(
        tp=sizes.tensor,
        cp=sizes.sequence,
        ep=sizes.experts,
        dp=sizes.dp,
        micro=sizes.micro,
        global_batch=sizes.micro * sizes.steps * sizes.dp,
        seq_length=length,
        **recompute,
        zero_stage=zero.stage,
        precision=precision,
        cp_comm="a2a" if sizes.sequence > 1 else "p2p",
        overlap_grad_reduce=replicated and reduces,
        overlap_param_gather=replicated and zero.stage > 0 and gathers,
        optimizer_offload=zero.offload.optimizer,
        param_offload=zero.offload.weights,
        moe_dispatcher="alltoall" if model.model.experts else None,
        grad_bytes=width,
        framework=framework,
        backend="deepspeed",
        version=DEEPSPEED_RELEASE,
    )
    target = Target("deepspeed", DEEPSPEED_RELEASE)
    return Run(target, model, configuration, (*assumed, *guessed, *taken), optimizer)


def _precision(
    config: Json, tree: Tree, arguments: Arguments, cluster: ClusterDescriptor, problems: list[Problem]
) -> tuple[Precision, tuple[Assumed, ...]]:
    """Return (the precision that `config` enables, assumptions); for "auto" without arguments the GPU's, assumed.

    That is bf16, else fp16. For fp32, and "auto" beside arguments, a problem is recorded and ("bf16", ()) returned.
    config: the JSON of `tree` with "auto" filled in.
    """
    if (given := precision_of(config)) is not None:
        return given, ()
    left = [key for key in ("bf16", "fp16") if section(tree.data, key).get("enabled") == AUTO]
    if left and not arguments.settings:
        name: Precision = "bf16" if cluster.gpu.peak_flops.bf16 else "fp16"
        why = f'{left[0]}.enabled is "auto", and the GPU has it'
        return name, (Assumed("precision", name, why, tree.place((left[0], "enabled"))),)
    what = "neither bf16 nor fp16 is on, and training in 32 bits cannot be predicted"
    hint = '"bf16": {"enabled": true}' + " or --bf16 True" * (bool(left) and uses_trainer(arguments))
    problems.append(tree.problem((left[0], "enabled") if left else (), what, hint=hint))
    return "bf16", ()


def _recompute(arguments: Arguments) -> dict[str, Any]:
    """Return the recompute fields; {} for none. `recompute_layers` N is a block of the first N layers, -1 all of them.

    If it is absent or 0, all layers if gradient checkpointing is on. A malformed one is all, too, with a problem.
    """
    whole = recomputing(WHOLE)
    layers = arguments.text("recompute_layers")
    if layers is not None and layers not in ("0", "-1"):
        return recomputing(WHOLE, count) if (count := arguments.whole("recompute_layers")) else whole
    return whole if layers == "-1" or arguments.switch(*RECOMPUTE) else {}


def liger_loss(arguments: Arguments) -> str:
    """Return Liger's loss: "linear", fused with the output layer, or "fused" if its config switches that off."""
    switch = "fused_linear_cross_entropy"
    stated = arguments.text(f"liger_kernel_config.{switch}") or arguments.text("liger_kernel_config") or ""
    return "fused" if re.search(rf"(^|{switch}\W+)false", stated, re.IGNORECASE) else "linear"


def _kernels(arguments: Arguments, model: ModelDescriptor) -> dict[str, Any]:
    """Return the implementation's fields for eager attention, Liger and torch.compile, as chosen; {} for none of them.

    Eager is passed over for models that always run in it: with attention sinks or soft-capped scores.
    """
    kernels: dict[str, Any] = {}
    only = model.attention_sinks or model.attn_logit_softcapping is not None
    if arguments.text(*_KERNELS) == "eager" and not only:
        kernels["attention"] = "torch"
    if arguments.switch("use_liger_kernel", "enable_liger_kernel"):
        kernels |= {**LIGER, "loss": liger_loss(arguments)}
    if arguments.switch("torch_compile"):
        kernels |= COMPILED
    return kernels


def optimizer_of(config: Any, arguments: Arguments) -> tuple[Optimizer, tuple[Assumed, ...]]:
    """Return the optimizer by the JSON, else by the Trainer's `optim`; plain AdamW if neither names one.

    The assumption, if any, is that AdamW stands in for a named one that is not priced; variants of Adam count as AdamW.
    """
    kind = str(section(config, "optimizer").get("type", "")).lower()
    if kind == "sgd":
        return Optimizer(name="sgd"), ()
    if kind not in _ADAM:
        why = f"of {kind} nothing is predicted, and few keep more than AdamW does"
        return Optimizer(), (Assumed("optimizer", "adam", why),)
    if kind:
        return Optimizer(), ()
    word = arguments.text("optim") or ""
    name: Any = _TRAINER.get(word, "adam")
    if name == "adam" and word and not word.startswith("adamw_"):
        return Optimizer(), (Assumed("optimizer", "adam", f"of {word} nothing is predicted", arguments.place("optim")),)
    return Optimizer(name=name), ()
