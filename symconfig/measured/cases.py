"""A measured row as model, cluster and configuration; what it does not state comes from its source's assumption."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product
from typing import Any

from symconfig.cost.machine import LOW_PRECISION
from symconfig.descriptor.cluster import ClusterDescriptor
from symconfig.descriptor.job import Backend
from symconfig.descriptor.measurements import Row
from symconfig.descriptor.model import ModelDescriptor
from symconfig.errors import InputError
from symconfig.existing.recover import megatron
from symconfig.existing.recover.namespace import printed_namespace, version_of
from symconfig.existing.recover.run import Run, Supplied
from symconfig.formats.megatron import DEGREES
from symconfig.frameworks.behaviour import COMPILED, Switches, options, switched
from symconfig.frameworks.extras import gradient_bytes
from symconfig.frameworks.fsdp.behaviour import NARROW_REDUCTION
from symconfig.frameworks.known import FRAMEWORKS, OWN_LAYERS
from symconfig.frameworks.megatron.behaviour import GRAPHED, MEGATRON
from symconfig.frameworks.megatron.flags import FlagTable, flags
from symconfig.frameworks.megatron.options import by_destination
from symconfig.frameworks.megatron.releases import megatron_release
from symconfig.measured.assumptions import COUNTING, OF_FRAMEWORK, SIZES, Counting, Program, assumptions
from symconfig.measured.row_arguments import (
    check_model,
    mark_repeated,
    of_model,
    of_options,
    unread,
    with_switches,
)
from symconfig.measured.row_model import adapted, model_of, public_vocabulary
from symconfig.measured.row_options import RowOptions, attention_of
from symconfig.plans.pipeline_layout import expanded
from symconfig.schedule.timeline import Start
from symconfig.solve.prospect import Setup

# Words of a model's name -> what such a run holds beside what its arguments state.
_UNSTATED = {"distill": "a teacher"}
_SELECTIVE = frozenset({"core_attn"})


@dataclass(frozen=True, slots=True)
class Case:
    """A row's run as the cost model takes it.

    taken: what the row does not state, and changes the prediction, with the assumed value. documented: the same, where
    the source states it for all its rows, in its text, recipes or code. ignored: options that the row states and no
    prediction takes in, as `name: value`. others: configurations of which the source ran the best one without printing
    which. counting: how its FLOPs count. unmeasured: a sentence, where no run of the software is known.
    """

    model: ModelDescriptor
    cluster: ClusterDescriptor
    configuration: Setup
    taken: tuple[tuple[str, str], ...]
    others: tuple[Setup, ...] = ()
    counting: Counting = COUNTING
    documented: tuple[tuple[str, str], ...] = ()
    ignored: tuple[str, ...] = ()
    unmeasured: str | None = None

    @property
    def assumed(self) -> tuple[str, ...]:
        """Return the names of what was assumed for the row; empty if it states everything."""
        return tuple(name for name, _ in self.taken)


def case(source: str, row: Row, model: ModelDescriptor | None = None, cluster: ClusterDescriptor | None = None) -> Case:
    """Return a row as model, cluster and configuration, completed by its source's assumptions, which are recorded; one
    with Megatron-LM's arguments as an audit reads these.

    model, cluster: replace those of the row. Raises InputError if neither the row nor an assumption gives a needed
    field, its degrees contradict its GPUs or batch, an option is not understood, or the model's name says that the run
    holds what rows cannot state (a distillation teacher).
    """
    for word, held in _UNSTATED.items():
        if word in row.model.name.split("_"):
            raise InputError(f"the run holds {held} that it does not state", field="model.name")
    known = assumptions()
    assumption, program = known.of(source, row), known.program(row)
    options = RowOptions(row, assumption, cluster)
    if row.options.megatron_args:
        return _of_arguments(row, options, model)
    nearest = _nearest(program, options)
    options.guess("software", nearest, program is None and row.software is not None)
    micro, seq_length = options.batch("micro"), options.batch("seq_length")
    model = model or model_of(row, options, seq_length)
    p = row.parallel
    tp, pp, cp = (p.get(degree, 1) for degree in ("tp", "pp", "cp"))
    ep = p.get("ep") or int(options.get("ep", 1))
    dp = _data_parallel(row, options, tp * cp, pp, micro)
    layout = str(options.get("layout", ""))
    cut = max(1, len(expanded(layout)) // pp) if layout else assumption.vpp
    chunks = p.get("vpp") or (1 if pp == 1 else cut)
    unstated = "vpp" not in p and pp > 1
    parts = [n for n in assumption.tuned.vpp if unstated and not layout and model.num_hidden_layers % (pp * n) == 0]
    options.tuned("vpp", chunks, parts, unstated)
    options.guess("lora", assumption.lora, row.task == "lora" and row.model.lora is None)
    packing = _packing(options)
    first, last = map(int, options.get("ends_as_layers", (0, 0), pp > 1))
    configuration = Setup(
        tp=tp,
        pp=pp,
        vpp=chunks,
        cp=cp,
        ep=ep,
        etp=_expert_tensor_parallel(row, options),
        dp=dp,
        micro=micro,
        global_batch=row.batch.global_ or micro * dp * (row.batch.grad_accum or 1),
        seq_length=seq_length,
        precision=options.option("precision", "bf16"),
        sequence_parallel=bool(options.option("sequence_parallel", False, tp > 1) and tp > 1),
        cp_comm=options.get("cp_comm", "p2p", cp > 1),
        **_recompute(options, model, pp),
        zero_stage=options.zero(dp * cp > 1),
        **behaviour_of(options, nearest, dp * cp),
        # Places that they take: a loss behind a norm of its own has two (aleph-alpha).
        account_for_embedding=first,  # type: ignore[arg-type]
        account_for_loss=last,  # type: ignore[arg-type]
        packing=packing,
        pipeline_layout=layout or None,
        activation_offload=bool(options.get("activation_offload")),
        optimizer_offload=float(options.get("optimizer_offload", False)),
        param_offload=bool(options.get("param_offload")),
        backend=nearest,
        first_stage_layers=options.get("first_layers"),
        last_stage_layers=options.get("last_layers"),
        natural_routing=options.get("moe_routing") == "natural",
    )
    unmeasured = None
    if row.software is not None and not (program and program.measured):
        what = "its code alone is known" if program else "it is not known here"
        unmeasured = f"no run of {row.software.name} was measured, and {what}; predicted as {nearest}"
    return Case(
        model=model,
        cluster=options.cluster,
        configuration=configuration,
        taken=tuple(options.taken.items()),
        others=_others(configuration, row, (micro, *assumption.tuned.micro), (chunks, *parts)),
        counting=assumption.flops,
        documented=tuple(options.documented.items()),
        ignored=options.ignored,
        unmeasured=unmeasured,
    )


_SHAPE = ("num_layers", "hidden_size", "num_attention_heads")
_CHUNKS = ("num_virtual_stages_per_pipeline_rank", "num_layers_per_virtual_pipeline_stage")
_OF_ALL_CHUNKS = "virtual_pipeline_model_parallel_size"  # Megatron-LM computes it from one of them


def recovered(
    names: Mapping[str, Any], gpus: int, cluster: ClusterDescriptor, supplied: Supplied, table: FlagTable | None = None
) -> Run:
    """Return the run of Megatron-LM's arguments by destination, as an audit reads it. table: as of `printed_namespace`.
    Raises InputError.
    """
    chunks = {} if any(map(names.get, _CHUNKS)) else {_CHUNKS[0]: names.get(_OF_ALL_CHUNKS)}
    return megatron.run(printed_namespace({**names, **chunks}, table), gpus, cluster, supplied)


def of_run(run: Run, cluster: ClusterDescriptor, options: RowOptions | None = None) -> Case:
    """Return the case of a recovered run; its assumptions are `taken`, behind those of the row's options."""
    assumed = ((each.what, each.value) for each in (*run.described.assumed, *run.assumed))
    taken = {} if options is None else options.taken
    return Case(
        model=run.described.model, cluster=cluster, configuration=run.configuration, taken=(*taken.items(), *assumed)
    )


def _of_arguments(row: Row, options: RowOptions, model: ModelDescriptor | None) -> Case:
    """Return the case of a row with Megatron-LM's arguments; its degrees, batch and length replace theirs.

    Its other options and fields of its model hold where they state none; options that they contradict are `ignored`.
    The source's arguments replace its own. model: None: that of the arguments, if they state its shape, else the
    row's; of a LoRA row with its adapter, as in Megatron-Bridge. Raises InputError for arguments that are not
    predicted, and for a model's field that they contradict.
    """
    assumption, p, arguments = options.assumption, row.parallel, row.options.megatron_args or {}
    if isinstance(assumed := assumption.options.get("megatron_args"), dict):
        arguments = arguments | assumed
    names, table = by_destination(arguments), flags(version_of([f"--{name}" for name in arguments]))
    micro, seq_length = options.batch("micro"), options.batch("seq_length")
    tp, pp, cp = (p.get(degree, 1) for degree in ("tp", "pp", "cp"))
    dp = _data_parallel(row, options, tp * cp, pp, micro)
    whole = row.batch.global_ or micro * dp * (row.batch.grad_accum or 1)
    names |= {dest: p[degree] for degree, dest in DEGREES.items() if degree in p} | {_OF_ALL_CHUNKS: p.get("vpp")}
    names |= {"micro_batch_size": micro, "global_batch_size": whole, "seq_length": seq_length}
    names |= of_options(names, options)
    vocabulary = row.model.vocab_size or assumption.model.get("vocab_size")
    options.guess("vocab_size", vocabulary, row.model.vocab_size is None)
    whole_shape, lora = all(map(names.get, _SHAPE)), row.task == "lora"
    if model is None and whole_shape:
        names |= of_model(names, row.model)
    named = model or (None if whole_shape else model_of(row, options, seq_length))
    supplied = Supplied(
        model=named and named.model_copy(update={"adapter": None}), vocab_size=vocabulary or public_vocabulary(row)
    )
    run = recovered(names, tp * pp * cp * dp, options.cluster, supplied, table)
    configuration = replace(with_switches(options, names, run.configuration), packing=_packing(options))
    run = replace(run, configuration=configuration)
    found = of_run(run, options.cluster, options)
    if model is None:
        check_model(row.model, found.model)
    if lora:
        options.guess("lora", assumption.lora, row.model.lora is None)
        found = replace(found, model=adapted(found.model, row, assumption))
    mark_repeated(options, names, configuration)
    return replace(
        found,
        counting=assumption.flops,
        documented=tuple(options.documented.items()),
        ignored=(*options.ignored, *unread(row, found.model)),
    )


def _packing(options: RowOptions) -> Any:
    """Return how the row's samples are packed: as its source does it, recorded; None in pretraining, or if each
    sequence is one sample.
    """
    plain = options.get("packed_single_sample") or options.row.task == "pretrain"
    options.guess("packing", None if plain else options.assumption.packing, True)
    return None if plain else options.assumption.packing


def _others(c: Setup, row: Row, sizes: Sequence[int], chunks: Sequence[int]) -> tuple[Setup, ...]:
    """Return the alternative configurations that can run, without `c` itself: pairs of `sizes` and `chunks`.

    sizes: micro-batches; only the first if the row states one. chunks: vpp. The batch must divide into whole
    microbatches, and with vpp > 1 these into groups of pp.
    """
    combinations = product(sizes if row.batch.micro is None else sizes[:1], chunks)
    whole = (one for one in combinations if c.global_batch % (c.dp * one[0]) == 0)
    each = (replace(c, micro=size, vpp=n) for size, n in whole if n == 1 or c.global_batch // (c.dp * size) % c.pp == 0)
    return tuple(one for one in each if one != c)


def _expert_tensor_parallel(row: Row, options: RowOptions) -> int:
    """Return the stated etp, or 1 for a dense model; else the source's, else Megatron's default: 1 if ep > 1 is stated
    and the software's version is 0.9 or later, else tp. An etp of the source is recorded.
    """
    p = row.parallel
    if "etp" in p or not row.model.num_experts:
        return p.get("etp", 1)
    version = (row.software and row.software.version) or ""
    apart = p.get("ep", 1) > 1 and megatron_release(version) >= (0, 9)
    return int(options.get("etp", 1 if apart else p.get("tp", 1)))


def _data_parallel(row: Row, options: RowOptions, inner: int, pp: int, micro: int) -> int:
    """Return the data-parallel degree: stated, else GPUs // (inner x pp), at least 1; raised so that dp x inner >= ep x
    etp, even if stated. inner: tp x cp.

    Reduced to whole // micro for a global batch smaller than micro x dp. Recorded as assumed if raised, reduced, or
    neither dp nor GPUs are stated. Raises InputError if stated degrees do not multiply to stated GPUs, or the
    micro-batch exceeds the global batch.
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
        if whole < micro:
            raise InputError("is more than the global batch", field="batch.micro", got=str(micro), need=f"<= {whole}")
        dp = whole // micro
        options.guess("dp", dp, True)
    return dp


def _recompute(options: RowOptions, model: ModelDescriptor, pp: int) -> dict[str, Any]:
    """Return the recompute fields of a configuration; {} for words other than "full" and "selective…".

    full: the whole layer, uniform, or block if the row's method is block; recompute_layers (default 1) if a method is
    stated. selective: the stated modules (default core attention; "none" if there are none), and method block with the
    layers of one stage over `selective_every`, if that is stated.
    """
    word = str(options.option("recompute", "none"))
    if word == "full":
        method = options.get("recompute_method")
        known = {"recompute_method": method, "recompute_layers": int(options.get("recompute_layers", 1))}
        return {"recompute": "full", "recompute_method": "uniform", **(known if method in ("block", "uniform") else {})}
    if not word.startswith("selective"):
        return {}
    modules = tuple(sorted(options.get("recompute_modules", _SELECTIVE)))
    every = int(options.get("selective_every", 0))
    layers = -(-model.num_hidden_layers // (pp * every)) if every else 0
    some = {"recompute_method": "block", "recompute_layers": layers} if layers else {}
    return {"recompute": "selective" if modules else "none", "recompute_modules": modules, **some}


# Of products whose operands have a scale for each row, over those with one scale (torchao_float8 and torchtitan: steps
# of Llama-3-8B on H100 take 1.13 to 1.4 times as long).
ROWWISE_RATE = 0.7
_IMPLEMENTATION = tuple(name for name in options(MEGATRON.implementation) if name != "attention")


def _nearest(program: Program | None, options: RowOptions) -> Backend:
    """Return the framework whose cost model predicts the row.

    Of a known program it is that program's. Else fsdp with torch.compile, deepspeed if `fsdp` or ZeRO 3 is stated, else
    megatron. deepspeed becomes fsdp if `fsdp` is set.
    """
    fsdp = options.get("fsdp")
    if program is None and options.get("torch_compile"):
        return "fsdp"
    shards = fsdp or options.stated.get("zero_stage") == 3
    name: Backend = program.framework if program else "deepspeed" if shards else "megatron"
    return "fsdp" if name == "deepspeed" and fsdp else name


def behaviour_of(options: RowOptions, name: str, replicas: int) -> dict[str, Any]:
    """Return the fields of a configuration that say how framework `name` behaves in the row.

    They are `framework`, adjusted to the habits of the row's software and source, its kernels and overlap; and what
    follows from it: overlap over tp and experts, DeepEP or HybridEP, CUDA graphs, fused loss, fp8 attention and
    weights, and the bytes of gradients.

    The row's options override habits. With transformer_impl local, the framework's variant with its own layers (if any)
    is the base. Gathers are demanded by each stage if pp > 1 without vpp, gradients are reduced beside the backward and
    the gather's overlap is not off. Records the meaning of "flash" and the habits that the row does not state. Raises
    InputError for an unknown attention kernel. replicas: ranks that share gradients.
    """
    attention = str(options.option("attention_kernel", "flash"))
    if attention == "flash" and options.assumption.flash:
        attention = options.assumption.flash
        options.guess("flash", attention, True)
    switches = options.assumption.habits.model_dump(exclude_none=True)
    for habit, value in switches.items():
        precise = habit == "quantised_weights" and options.stated.get("precision") not in LOW_PRECISION
        options.guess(habit, value, habit not in options.stated and not precise)
    local = options.get("transformer_impl") == "local"
    base = OWN_LAYERS.get(name, FRAMEWORKS[name]) if local else FRAMEWORKS[name]
    architecture = options.cluster.gpu.architecture
    names = (*_IMPLEMENTATION, *OF_FRAMEWORK, *(f"{name}_bytes" for name in SIZES))
    switches = switches | {name: options.get(name) for name in names if name in options.stated}
    kernel, rate = attention_of(attention, architecture)
    how: dict[str, Any] = {"attention": kernel} | {name: switches[name] for name in _IMPLEMENTATION if name in switches}
    if options.get("torch_compile"):
        how |= COMPILED
    own = {"attention_rate": rate} | {name: switches[name] for name in OF_FRAMEWORK if name in switches}
    if "rowwise" in str(options.get("fp8_recipe")):
        own["low_rate"] = ROWWISE_RATE
    graphed = own.get("graphed", "none")
    if "graphed" in own:
        own["graphed"] = GRAPHED[graphed]
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
        cuts_products=bool(overlap.get("tp_comm") or options.get("async_tp")),
        pairs_microbatches=bool(overlap.get("moe_a2a") or options.get("moe_a2a")),
    )
    if options.get("fsdp_mixed_precision") == "PURE":
        implementation = replace(implementation, framework={**implementation.framework, **NARROW_REDUCTION})
    stages = p.get("pp", 1) > 1 and p.get("vpp", 1) == 1
    reduces = implementation.hides().get("data", base.hide.data) > 0
    if stages and reduces and overlap.get("param_gather") is not False:
        base = replace(base, gathers=Start.ON_DEMAND)
    framework = switched(base, architecture, implementation)
    # Ranks that share a whole optimizer state: -1 for all of them.
    inside = {"hsdp": options.row.cluster.gpus_per_node}.get(str(options.get("fsdp")))
    size = options.get("zero1_group") or options.get("fsdp_degree") or inside or -1
    if size > 0:
        framework = replace(framework, optimizer_instances=max(1, replicas // size))
    dispatcher = how.get("dispatcher")
    return {
        "framework": framework,
        "overlap_tp_comm": implementation.cuts_products,
        "overlap_moe_a2a": implementation.pairs_microbatches,
        "moe_flex_backend": dispatcher if dispatcher in ("deepep", "hybridep") else None,
        "cuda_graphs": graphed,
        "fused_loss": how.get("loss") == "fused",
        "fp8_attention": bool(how.get("fp8_attention")),
        "fp8_param_gather": framework.quantised_weights,
        "grad_bytes": gradient_bytes(framework),
    }
