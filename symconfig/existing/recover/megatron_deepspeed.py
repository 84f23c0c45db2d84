"""Megatron-DeepSpeed: model and degrees from Megatron-LM's options, ZeRO from DeepSpeed's JSON.

The fork has options of its own for some of Megatron-LM's (github.com/deepspeedai/Megatron-DeepSpeed,
megatron/arguments.py); they are read as those.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from symconfig.descriptor.cluster import ClusterDescriptor
from symconfig.errors import InputError, Problem
from symconfig.existing.launch.reading import Reading, Setting, Tree, Word
from symconfig.existing.recover import megatron
from symconfig.existing.recover.arguments import Arguments
from symconfig.existing.recover.deepspeed_batch import of_one_node
from symconfig.existing.recover.namespace import Namespace
from symconfig.existing.recover.run import Run
from symconfig.existing.recover.supplied import Supplied
from symconfig.frameworks.behaviour import switched
from symconfig.frameworks.deepspeed.keys import MICRO, TRAIN
from symconfig.frameworks.deepspeed.zero import gradient_bytes_of, precision_of, switches, zero_of
from symconfig.frameworks.megatron.flags import flags, versions
from symconfig.graph.scheme import CpComm

_RENAMED: Mapping[str, str] = {
    "--num-key-value-heads": "--num-query-groups",
    "--rotary-position-embeddings-theta": "--rotary-base",
    "--layernorm-epsilon": "--norm-epsilon",
    "--topk": "--moe-router-topk",
    "--moe-expert-parallel-size": "--expert-model-parallel-size",
    "--moe-loss-coeff": "--moe-aux-loss-coeff",
    "--ds-sequence-parallel-size": "--context-parallel-size",
    "--use-flash-attn-v1": "--use-flash-attn",
    "--use-flash-attn-v2": "--use-flash-attn",
    "--use-flash-attn-triton": "--use-flash-attn",
    "--use-flash-attn-builder": "--use-flash-attn",
}
_NORMS = {"layernorm": "LayerNorm", "rmsnorm": "RMSNorm"}
_MODEL = ("num_layers", "hidden_size", "num_attention_heads")
_SIZES = {MICRO: "--micro-batch-size", TRAIN: "--global-batch-size"}


def applies(reading: Reading) -> bool:
    """Tell whether a DeepSpeed JSON stands beside options that describe a model as Megatron-LM's do."""
    return reading.deepspeed is not None and all(Arguments(reading.settings).given(name) for name in _MODEL)


def run(reading: Reading, tree: Tree, cluster: ClusterDescriptor, supplied: Supplied) -> Run:
    """Recover a run. Raises InputError with everything that is missing or wrong."""
    problems = list(_problems(reading, tree, supplied))
    gpus = supplied.gpus or reading.world.gpus or of_one_node(reading)
    if gpus is None:
        problems.append(Problem("the number of GPUs is not said", file=reading.file, hint="--gpus N"))
    names = Namespace(settings(reading, tree), flags(versions()[0]))
    try:
        recovered = megatron.run(names, gpus or 1, cluster, supplied)
    except InputError as error:
        # Degrees cannot divide GPUs that are not known.
        raise InputError([*problems, *(error.problems if gpus else names.problems)]) from None
    if problems:
        raise InputError(problems)
    return _with_json(recovered, tree.data, cluster)


def settings(reading: Reading, tree: Tree) -> tuple[Setting, ...]:
    """Return the options as Megatron-LM has them; what only the JSON says is before them, in its own place."""
    translated = [item for setting in reading.options for item in _translated(setting)]
    given = {setting.name for setting in translated}
    layers = () if "--transformer-impl" in given else (reading.settings[0].like("--transformer-impl", "local"),)
    return (*layers, *(item for item in _of_json(tree) if item.name not in given), *translated)


def _translated(setting: Setting) -> Iterator[Setting]:
    name = _RENAMED.get(setting.name, setting.name)
    texts = setting.texts
    if setting.name == "--num-key-value-heads":
        yield setting.like("--group-query-attention")
    if setting.name == "--normalization" and len(texts) == 1:
        yield setting.like(name, _NORMS.get(texts[0].lower(), texts[0]))
    elif not (setting.name == "--num-experts" and set(texts) == {"1"}):  # how the fork says that there are none
        yield replace(setting, name=name)


def _of_json(tree: Tree) -> Iterator[Setting]:
    for key, option in _SIZES.items():
        value, span = tree.get(key), tree.spans.get((key,))
        if isinstance(value, int) and not isinstance(value, bool) and span is not None:
            yield Setting(option, key, (Word.of(str(value), span.value, literal=True),), span.value)
    precision = precision_of(tree.data)
    span = tree.spans.get((precision,)) if precision else None
    if span is not None:
        yield Setting(f"--{precision}", str(precision), (), span.value)


def _problems(reading: Reading, tree: Tree, supplied: Supplied) -> Iterator[Problem]:
    arguments = Arguments(reading.options)
    experts = arguments.words("num_experts")
    if len(set(experts)) > 1:
        yield arguments.problem(
            arguments.find("num_experts"),
            "layers with different numbers of experts are not predicted",
            got=" ".join(experts),
            need="one number",
        )
    for key, option in _SIZES.items():
        given, value = arguments.whole(option.removeprefix("--").replace("-", "_")), tree.get(key)
        if given is not None and isinstance(value, int) and value != given:
            yield tree.problem((key,), f"is not what {option} says", got=str(value), need=str(given))
    yield from arguments.problems


def _with_json(recovered: Run, config: Any, cluster: ClusterDescriptor) -> Run:
    c, zero, width = recovered.configuration, zero_of(config), gradient_bytes_of(config)
    ulysses: CpComm | None = "a2a" if c.degrees.cp > 1 else None
    configuration = replace(
        c,
        zero=zero.stage,
        offload=zero.offload,
        cp_comm=ulysses or c.cp_comm,
        framework=switched(c.framework, cluster.gpu.architecture, switches(zero, width, c.degrees.dp * c.degrees.cp)),
    )
    replicated = c.degrees.dp * c.degrees.cp > 1
    overlap = replace(
        recovered.options.overlap,
        grad_reduce=replicated and zero.overlap,
        param_gather=replicated and zero.stage == 3 and zero.prefetch,
    )
    options = replace(
        recovered.options,
        zero_stage=zero.stage,
        optimizer_offload=zero.offload.optimizer,
        param_offload=zero.offload.weights,
        grad_bytes=width,
        cp_comm=ulysses,
        overlap=overlap,
    )
    return replace(recovered, configuration=configuration, options=options)
