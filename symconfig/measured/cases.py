"""A measured row as model, cluster and configuration; what it does not state comes from its source's assumption."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import product
from typing import Any

from symconfig.cost.framework import Framework
from symconfig.cost.machine import LOW_PRECISION
from symconfig.descriptor.cluster import ClusterDescriptor
from symconfig.descriptor.measurements import Row
from symconfig.descriptor.model import ModelDescriptor
from symconfig.errors import InputError
from symconfig.frameworks.behaviour import COMPILED, Switches, switched
from symconfig.frameworks.fsdp.behaviour import NARROW_REDUCTION
from symconfig.frameworks.kernels import options
from symconfig.frameworks.known import FRAMEWORKS
from symconfig.frameworks.megatron.behaviour import GRAPHED, MEGATRON
from symconfig.graph.block import LAYER
from symconfig.measured.assumptions import EXCHANGE, OF_FRAMEWORK, SIZES, assumptions
from symconfig.measured.flops import COUNTING, Counting
from symconfig.measured.row_model import model_of
from symconfig.measured.row_options import RowOptions, known_word
from symconfig.plans.degrees import Degrees
from symconfig.plans.pipeline_layout import expanded
from symconfig.solve.configuration import Configuration

# Words of a model's name -> what such a run holds beside what its arguments state.
_UNSTATED = {"distill": "a teacher"}
_SELECTIVE = frozenset({"core_attn"})


@dataclass(frozen=True, slots=True)
class Case:
    """A row's run as the cost model takes it. taken: what the row does not state, and changes the prediction, with the
    assumed value.

    documented: the same, where the source states it for all its rows, in its text, recipes or code.

    ignored: options that the row states and no prediction takes in, as `name: value`.

    others: configurations of which the source ran the best one without printing which. counting: how its FLOPs count.
    reason: of its source's assumptions.
    """

    model: ModelDescriptor
    cluster: ClusterDescriptor
    configuration: Configuration
    taken: tuple[tuple[str, str], ...]
    others: tuple[Configuration, ...] = ()
    counting: Counting = COUNTING
    reason: str = ""
    documented: tuple[tuple[str, str], ...] = ()
    ignored: tuple[str, ...] = ()

    @property
    def assumed(self) -> tuple[str, ...]:
        """Return the names of what was assumed; empty: the row states everything."""
        return tuple(name for name, _ in self.taken)


def case(source: str, row: Row, model: ModelDescriptor | None = None, cluster: ClusterDescriptor | None = None) -> Case:
    """Turn a row into a case; model, cluster: what ran, where the caller knows it better than the row says.

    Raises InputError when the row leaves out what no assumption gives.
    """
    for word, held in _UNSTATED.items():
        if word in row.model.name.split("_"):
            raise InputError(f"the run holds {held} that it does not state", field="model.name")
    assumption = assumptions().of(source, row.software, row.cluster.gpu).at(row)
    options = RowOptions(row, assumption, cluster)
    micro, seq_length = options.batch("micro"), options.batch("seq_length")
    model = model or model_of(row, options, seq_length)
    p = row.parallel
    tp, pp, cp = (p.get(degree, 1) for degree in ("tp", "pp", "cp"))
    ep = p.get("ep") or int(options.option("ep", 1, "ep" in assumption.options))
    dp = _data_parallel(row, options, tp * cp, pp, micro)
    layout = str(options.option("layout", "", "layout" in assumption.options))
    cut = max(1, len(expanded(layout)) // pp) if layout else assumption.vpp
    chunks = p.get("vpp") or (1 if pp == 1 or row.options.megatron_args else cut)
    unstated = "vpp" not in p and pp > 1 and not row.options.megatron_args
    parts = [n for n in assumption.tuned.vpp if unstated and not layout and model.num_hidden_layers % (pp * n) == 0]
    options.tuned("vpp", chunks, parts, unstated)
    options.guess("lora", assumption.lora, row.task == "lora" and row.model.lora is None)
    packing = None if options.stated.get("packed_single_sample") or row.task == "pretrain" else assumption.packing
    options.guess("packing", packing, True)
    first, last = options.option("ends_as_layers", (0, 0), pp > 1 and "ends_as_layers" in assumption.options)
    configuration = Configuration(
        degrees=Degrees(tp=tp, pp=pp, vpp=chunks, cp=cp, ep=ep, etp=_expert_tensor_parallel(row, options), dp=dp),
        micro=micro,
        global_batch=row.batch.global_ or micro * dp * (row.batch.grad_accum or 1),
        seq_length=seq_length,
        precision=options.option("precision", "bf16"),
        sequence_parallel=bool(options.option("sequence_parallel", False, tp > 1) and tp > 1),
        cp_comm=options.option("cp_comm", "p2p", cp > 1 and "cp_comm" in assumption.options),
        modules=_recompute(options),
        block_layers=_repeated_layers(options, model, pp),
        zero=options.zero(dp * cp > 1),
        framework=_in_groups(options, framework_of(options, model, (tp, pp, dp * cp)), dp * cp),
        ends_as_layers=(int(first), int(last)),
        packing=packing,
        layout=layout,
        activation_offload=bool(options.stated.get("activation_offload")),
        first_layers=options.stated.get("first_layers"),
        last_layers=options.stated.get("last_layers"),
        natural_routing=options.stated.get("moe_routing") == "natural",
    )
    taken, documented = tuple(options.taken.items()), tuple(options.documented.items())
    return Case(
        model=model,
        cluster=options.cluster,
        configuration=configuration,
        taken=taken,
        others=_others(configuration, row, (micro, *assumption.tuned.micro), (chunks, *parts)),
        counting=assumption.flops,
        reason=assumption.reason,
        documented=documented,
        ignored=options.ignored,
    )


def _others(c: Configuration, row: Row, sizes: Sequence[int], chunks: Sequence[int]) -> tuple[Configuration, ...]:
    """Return the configuration with every other micro-batch and number of chunks that may have run."""
    combinations = product(sizes if row.batch.micro is None else sizes[:1], chunks)
    each = (replace(c, micro=size, degrees=replace(c.degrees, vpp=n)) for size, n in combinations)
    return tuple(one for one in each if one != c and _runs(one))


def _runs(c: Configuration) -> bool:
    """Tell whether microbatches are whole, and so many that Megatron-LM's schedule can interleave them."""
    microbatches, left = divmod(c.global_batch, c.degrees.dp * c.micro)
    return not left and (c.degrees.vpp == 1 or microbatches % c.degrees.pp == 0)


def _expert_tensor_parallel(row: Row, options: RowOptions) -> int:
    """Return the experts' tensor parallelism: Megatron's default is the rest's.

    Where only ep is stated, they are whole.
    """
    p = row.parallel
    if "etp" in p or not row.model.num_experts:
        return p.get("etp", 1)
    degree = options.option("etp", 1 if "ep" in p else p.get("tp", 1), "etp" in options.assumption.options)
    return int(degree)


def _data_parallel(row: Row, options: RowOptions, inner: int, pp: int, micro: int) -> int:
    """Return the data-parallel degree; inner: ranks of one replica of a stage.

    Experts need as many ranks as their degrees say.
    """
    p, whole = row.parallel, row.batch.global_
    ranks = p.get("ep", 1) * _expert_tensor_parallel(row, options)
    stated, gpus = p.get("dp"), row.cluster.gpus
    if stated and gpus and stated * inner * pp != gpus:
        raise InputError(
            "its degrees are not of the GPUs that it states",
            field="parallel",
            got=str(stated * inner * pp),
            need=str(gpus),
        )
    replicas = stated or (gpus or 0) // (inner * pp)
    dp = max(1, replicas, -(-ranks // inner))
    options.guess("dp", dp, ("dp" not in p and row.cluster.gpus is None) or dp != replicas)
    if whole and whole < micro * dp:  # these GPUs cannot have run this batch
        dp = max(1, whole // micro)
        options.guess("dp", dp, True)
    return dp


def _in_groups(options: RowOptions, framework: Framework, replicas: int) -> Framework:
    """Set as many instances of the optimizer's state as there are groups of replicas that share one (-1: all do)."""
    inside = {"hsdp": options.row.cluster.gpus_per_node}.get(str(options.stated.get("fsdp")))
    groups = (options.stated.get("zero1_group"), options.stated.get("fsdp_degree"), inside)
    size = next((size for size in groups if size), -1)
    return framework if size < 0 else replace(framework, optimizer_instances=max(1, replicas // size))


def _recompute(options: RowOptions) -> frozenset[str]:
    word = str(options.option("recompute", "none"))
    if word == "full":
        return frozenset({LAYER})
    if word == "selective" and "recompute_modules" in options.stated:
        return frozenset(options.stated["recompute_modules"])
    if not word.startswith("selective"):
        return frozenset()
    if "selective_modules" in options.assumption.options:
        options.guess("selective_modules", options.assumption.options["selective_modules"], True)
    return frozenset(options.assumption.options.get("selective_modules", _SELECTIVE))


def _repeated_layers(options: RowOptions, model: ModelDescriptor, pp: int) -> int:
    """Count a stage's layers that run again whole, where only the first ones do, or every n-th.

    The latter is a framework's selective recompute.
    """
    if options.stated.get("recompute") == "full" and options.stated.get("recompute_method") == "block":
        return int(options.stated["recompute_layers"])
    every = int(options.assumption.options.get("selective_every", 0))
    if not every or not str(options.option("recompute", "none")).startswith("selective"):
        return 0
    options.guess("selective_every", every, True)
    return -(-model.num_hidden_layers // (pp * every))


# Spellings of attention kernels in the sources -> (implementation, rate over the newest flash kernel's). Version 2 has
# half of version 3's rate on Hopper (arXiv 2407.08608, section 1: 35 and 75 % of the peak), and is the newest before
# it; version 1 has 0.56 of version 2's (arXiv 2307.08691, section 1: 25-40 and 50-73 %), its Triton form 1/1.3 to 1/2.5
# (section 4.1; the upper end is taken, chosen after seeing residuals). flash-2024 is what Transformer Engine took on
# Hopper in 2024, between version 2 and the newest: fitted to the sequences of 16k and more of nemo_2407.
_ATTENTION: dict[str, tuple[str, float]] = {
    "flash": ("flash", 1.0),
    "flash2": ("flash", 0.5),
    "flash1": ("flash", 0.28),
    "triton": ("flash", 0.38),
    "flash-2024": ("flash", 0.75),
    # Transformer Engine's (dot_product_attention/utils.py): cuDNN's on Hopper, elsewhere version 2 of flash attention.
    "deterministic": ("flash", 1.0),
    "fused-softmax": ("fused_softmax", 1.0),
    "unfused": ("fused_softmax", 1.0),
    "not flash": ("fused_softmax", 1.0),
    "torch-unfused": ("torch", 1.0),
    "masked": ("masked", 1.0),
}
_BEFORE_HOPPER_RATE = {"flash2": 1.0, "flash1": 0.56, "triton": 0.77}
_RATE_ON = {  # where it is another than Hopper's
    "volta": _BEFORE_HOPPER_RATE,
    "ampere": _BEFORE_HOPPER_RATE,
    "ada": _BEFORE_HOPPER_RATE,
    "blackwell": {"flash-2024": 1.0, "deterministic": 0.5},  # which came with kernels of its own
}
_IMPLEMENTATION = tuple(name for name in options(MEGATRON.implementation) if name != "attention")


def attention_of(name: str, architecture: str) -> tuple[str, float]:
    """Return a kernel's implementation by its spelling, and its rate on this GPU over the newest flash kernel's.

    Raises InputError for a spelling that is not known.
    """
    spelling = known_word(name, _ATTENTION)
    if spelling is None:
        need = ", ".join(_ATTENTION)
        raise InputError("is not understood", field="options.attention_kernel", got=name, need=need)
    name, (kernel, rate) = spelling, _ATTENTION[spelling]
    return kernel, _RATE_ON.get(architecture, {}).get(name, rate)


def framework_of(options: RowOptions, model: ModelDescriptor, degrees: tuple[int, int, int]) -> Framework:
    """Return the source's framework with the row's kernels and overlaps. degrees: tp, pp and data-parallel ranks."""
    name = str(options.option("attention_kernel", "flash"))
    if name == "flash" and options.assumption.flash:
        name = options.assumption.flash
        options.guess("flash", name, True)
    switches = options.assumption.habits.model_dump(exclude_none=True)
    framework = _with_habits(options, name, switches)
    for habit, value in switches.items():
        without = _with_habits(options, name, {key: switches[key] for key in switches if key != habit})
        precise = habit == "quantised_weights" and options.stated.get("precision") not in LOW_PRECISION
        matters = framework != without and _matters(habit, model.vocab_size, framework, without, degrees)
        options.guess(habit, value, matters and not precise)
    return framework


def _matters(
    habit: str, vocab_size: int, framework: Framework, without: Framework, degrees: tuple[int, int, int]
) -> bool:
    """Tell whether a habit can change the prediction at these degrees."""
    tp, pp, replicas = degrees
    if habit == "vocab_multiple":
        one, other = (
            -(-vocab_size // multiple) * multiple
            for multiple in (framework.vocab_multiple * tp, without.vocab_multiple * tp)
        )
        return one != other
    if habit in ("hide_tp_forward", "hide_tp_backward", "gathered_logits"):
        return tp > 1
    if habit == "handover_s":
        return pp > 1
    if habit in ("hide_data", "hide_sharded_weights", "reduced_bytes", "all_reduced_gradients", *EXCHANGE):
        return replicas > 1
    return tp > 1 and pp > 1 if habit == "scattered_sends" else True


def _with_habits(options: RowOptions, attention: str, switches: dict[str, Any]) -> Framework:
    base, architecture = FRAMEWORKS[options.assumption.framework], options.cluster.gpu.architecture
    names = (*_IMPLEMENTATION, *OF_FRAMEWORK, *(f"{name}_bytes" for name in SIZES))
    switches = switches | {name: options.stated[name] for name in names if name in options.stated}
    kernel, rate = attention_of(attention, architecture)
    how: dict[str, Any] = {"attention": kernel} | {name: switches[name] for name in _IMPLEMENTATION if name in switches}
    if options.stated.get("torch_compile"):
        how |= COMPILED
    if options.stated.get("fused_rmsnorm") is not None:
        how["fused_norm"] = options.stated["fused_rmsnorm"]
    if options.stated.get("cross_entropy_fusion"):
        how["loss"] = "fused"
    own = {"attention_rate": rate} | {name: switches[name] for name in OF_FRAMEWORK if name in switches}
    if "graphed" in own:
        own["graphed"] = GRAPHED[own["graphed"]]
    p = options.row.parallel
    overlap = options.overlap(max(p.get("tp", 1), p.get("pp", 1)) > 1)
    implementation = Switches(
        implementation=how,
        bytes={name: switches[f"{name}_bytes"] for name in SIZES if f"{name}_bytes" in switches},
        hide={name.removeprefix("hide_"): value for name, value in switches.items() if name.startswith("hide_")},
        framework=own,
        reduces_beside=overlap.get("grad_reduce") is not False,
        sends_beside=overlap.get("pp_p2p") is not False,
        # PyTorch cuts a product in pieces likewise.
        cuts_products=bool(overlap.get("tp_comm") or options.stated.get("async_tp")),
        pairs_microbatches=bool(overlap.get("moe_a2a") or options.stated.get("moe_a2a")),
    )
    if options.stated.get("fsdp_mixed_precision") == "PURE":
        implementation = replace(implementation, framework={**implementation.framework, **NARROW_REDUCTION})
    stages = p.get("pp", 1) > 1 and p.get("vpp", 1) == 1
    reduces = implementation.hides().get("data", base.hide.data) > 0
    demanded = stages and reduces and overlap.get("param_gather") is not False
    return switched(replace(base, demanded_gathers=demanded), architecture, implementation)
