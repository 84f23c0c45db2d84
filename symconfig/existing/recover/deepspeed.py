"""A DeepSpeed launch as a run: the way back from `render.deepspeed`."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from symconfig.descriptor.cluster import ClusterDescriptor
from symconfig.descriptor.model import ModelDescriptor
from symconfig.descriptor.training import Optimizer
from symconfig.errors import InputError, Problem
from symconfig.existing.launch.reading import Reading, Tree
from symconfig.existing.launch.text import Text
from symconfig.existing.recover.arguments import Arguments, accelerate_settings
from symconfig.existing.recover.deepspeed_json import autofilled, batch_sizes, uses_trainer
from symconfig.existing.recover.deepspeed_model import described
from symconfig.existing.recover.run import Assumed, Run, Supplied
from symconfig.formats.deepspeed import gradient_bytes_of, precision_of, section, switches, zero_of
from symconfig.formats.tuners import SEQUENCE
from symconfig.frameworks.behaviour import COMPILED, LIGER, stepping, switched
from symconfig.frameworks.deepspeed.behaviour import DEEPSPEED, DEEPSPEED_RELEASE
from symconfig.frameworks.deepspeed.keys import AUTO
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


def built_json(config: Mapping[str, Any]) -> Tree:
    """Return the JSON that a program builds for DeepSpeed as if it had been read, without places."""
    return Tree(Text(_WRITTEN, b""), config, {}, "json")


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
    kernels, zero, width = _kernels(arguments, model.model), zero_of(config), gradient_bytes_of(config)
    optimizer, taken = optimizer_of(config, arguments)
    behaviour = switches(zero, width, sizes.gpus // sizes.tensor, kernels)
    framework = stepping(switched(DEEPSPEED, cluster.gpu.architecture, behaviour), optimizer)
    replicated = sizes.dp * sizes.sequence > 1
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
        overlap_grad_reduce=replicated and (zero.overlap or zero.stage == 0),
        overlap_param_gather=replicated and zero.stage > 0 and (zero.prefetch or zero.stage < 3),
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
