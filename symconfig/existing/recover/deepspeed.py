"""A DeepSpeed launch as a run: the way back from `render.deepspeed`."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from symconfig.descriptor.cluster import ClusterDescriptor
from symconfig.descriptor.document import shorten
from symconfig.descriptor.model import ModelDescriptor
from symconfig.descriptor.training import Optimizer
from symconfig.errors import InputError, Problem
from symconfig.existing.launch.reading import Reading, Tree, settings
from symconfig.existing.launch.text import Text
from symconfig.existing.recover.arguments import Arguments, accelerate_settings
from symconfig.existing.recover.deepspeed_json import autofilled, batch_sizes, uses_trainer
from symconfig.existing.recover.deepspeed_model import described
from symconfig.existing.recover.run import Assumed, Described, Run, Supplied
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


def run_of_json(
    config: Json,
    words: Sequence[str],
    model: Described,
    reading: Reading,
    cluster: ClusterDescriptor,
    supplied: Supplied,
) -> Run:
    """Return the run of a model by a DeepSpeed JSON (`config`) that a program builds. Raises InputError.

    words: the program's options as arguments of Transformers' Trainer, in place of `reading`'s; its GPUs and launcher
    stay.
    """
    own = replace(
        reading,
        deepspeed=_tree(config),
        settings=settings(words, reading.file),
        possible=(),
    )
    made = run(own, cluster, replace(supplied, model=model.model))
    return replace(made, described=replace(model, model=made.described.model))


def _tree(config: Mapping[str, Any]) -> Tree:
    return Tree(Text(_WRITTEN, b""), config, {}, "json")


def run(reading: Reading, cluster: ClusterDescriptor, supplied: Supplied) -> Run:
    """Return the run by the DeepSpeed JSON, else by that which Accelerate builds, and arguments. Raises InputError."""
    tree = reading.deepspeed
    if tree is None and (config := accelerate_settings(reading).config) is not None:
        tree = _tree(config)
    if tree is None:
        raise InputError("names no DeepSpeed JSON that could be read", file=reading.file)
    if not isinstance(tree.data, dict):
        raise InputError(tree.problem((), "is not a JSON object"))
    return _Reader(reading, tree, cluster, supplied, Arguments(reading.options)).run()


@dataclass(slots=True)
class _Reader:
    """Reader of one DeepSpeed JSON and a program's arguments; collects problems."""

    reading: Reading
    tree: Tree
    cluster: ClusterDescriptor
    supplied: Supplied
    arguments: Arguments
    problems: list[Problem] = field(default_factory=list)

    def run(self) -> Run:
        """Return the run; raises InputError with all problems, among them a missing model, batch, GPUs or length.

        AutoTP is tp, Ulysses is cp, and enabled AutoEP ep. The user's GPUs and sequence length take precedence. "auto"
        values are filled in as the Trainer does, unless the program takes --deepspeed_config.
        """
        arguments, supplied, problems = self.arguments, self.supplied, self.problems
        model = described(self.reading, arguments, supplied, problems)
        tensor, sequence = self._degree("tensor_parallel", "autotp_size"), self._degree("sequence_parallel_size")
        experts = (
            self._degree("expert_parallel", "autoep_size")
            if section(self.tree.data, "expert_parallel").get("enabled") is True
            else 1
        )
        batch, assumed = batch_sizes(
            self.reading,
            self.tree,
            arguments,
            problems,
            tensor=tensor,
            sequence=sequence,
            gpus=supplied.gpus or self.reading.world.gpus,
        )
        length = supplied.seq_length or arguments.whole(*SEQUENCE)
        if length is None:
            problems.append(
                Problem("the length of the sequences is not said", file=self.reading.file, hint="--seq-length N")
            )
        trainer = uses_trainer(arguments)
        config = (
            autofilled(self.tree.data, arguments, model.model.hidden_size if model else None)
            if trainer
            else self.tree.data
        )
        precision, guessed = self._precision(config)
        recompute = _recompute(arguments)
        problems += arguments.problems
        if problems or model is None or batch is None or length is None:
            raise InputError(list(dict.fromkeys(problems)))
        model = replace(model, model=built(model.model, "deepspeed"))
        switched_on = switches(
            zero_of(config),
            gradient_bytes_of(config),
            batch.gpus // tensor,
            _kernels(arguments, model.model),
        )
        optimizer, taken = optimizer_of(config, arguments)
        framework = stepping(switched(DEEPSPEED, self.cluster.gpu.architecture, switched_on), optimizer)
        dp = batch.gpus // (tensor * sequence)
        zero, replicated = zero_of(config), dp * sequence > 1
        configuration = Setup(
            tp=tensor,
            cp=sequence,
            ep=experts,
            dp=dp,
            micro=batch.micro,
            global_batch=batch.micro * batch.steps * dp,
            seq_length=length,
            **recompute,
            zero_stage=zero.stage,
            precision=precision,
            cp_comm="a2a" if sequence > 1 else "p2p",
            overlap_grad_reduce=replicated and (zero.overlap or zero.stage == 0),
            overlap_param_gather=replicated and zero.stage > 0 and (zero.prefetch or zero.stage < 3),
            optimizer_offload=zero.offload.optimizer,
            param_offload=zero.offload.weights,
            moe_dispatcher="alltoall" if model.model.experts else None,
            grad_bytes=gradient_bytes_of(config),
            framework=framework,
            backend="deepspeed",
            version=DEEPSPEED_RELEASE,
        )
        target = Target("deepspeed", DEEPSPEED_RELEASE)
        return Run(target, model, configuration, (*assumed, *guessed, *taken), optimizer)

    def _precision(self, config: Json) -> tuple[Precision, tuple[Assumed, ...]]:
        """Return (the precision that `config` enables, assumptions); for "auto" without arguments the GPU's, assumed.

        That is bf16, else fp16. For fp32, and "auto" beside arguments, a problem is recorded and ("bf16", ()) returned.
        """
        if (given := precision_of(config)) is not None:
            return given, ()
        left = [key for key in ("bf16", "fp16") if section(self.tree.data, key).get("enabled") == AUTO]
        if left and not self.arguments.settings:
            name: Precision = "bf16" if self.cluster.gpu.peak_flops.bf16 else "fp16"
            why = f'{left[0]}.enabled is "auto", and the GPU has it'
            return name, (Assumed("precision", name, why, self.tree.place((left[0], "enabled"))),)
        what = "neither bf16 nor fp16 is on, and training in 32 bits cannot be predicted"
        hint = '"bf16": {"enabled": true}' + (
            " or --bf16 True" if left and uses_trainer(self.arguments) and self.arguments.settings else ""
        )
        self.problems.append(self.tree.problem((left[0], "enabled") if left else (), what, hint=hint))
        return "bf16", ()

    def _degree(self, *path: str) -> int:
        """Return the degree at a path of the JSON; 1 if absent, 0, "auto" or, recorded in `problems`, malformed."""
        value = self.tree.get(*path)
        if value in (None, 0, AUTO):
            return 1
        if isinstance(value, int) and not isinstance(value, bool) and value > 0:
            return value
        got, need = shorten(repr(value)), "a whole number above zero"
        self.problems.append(self.tree.problem(path, "is no degree", got=got, need=need))
        return 1


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
