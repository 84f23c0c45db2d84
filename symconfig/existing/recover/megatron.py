"""Megatron-LM's options as a run of the planner's own kind: the way back from `formats.megatron_run`."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace
from typing import Any, get_args

from symconfig.descriptor.architectures.keys import words
from symconfig.descriptor.cluster import ClusterDescriptor
from symconfig.descriptor.model import ModelDescriptor
from symconfig.descriptor.training import Optimizer
from symconfig.errors import InputError, Problem
from symconfig.existing.recover import uncounted
from symconfig.existing.recover.layers import letters, spelled
from symconfig.existing.recover.model import described
from symconfig.existing.recover.namespace import Namespace
from symconfig.existing.recover.run import Assumed, Described, Impossible, Run, Supplied
from symconfig.formats.megatron import DEGREES
from symconfig.formats.megatron_run import BY_FIELD, offloaded_modules
from symconfig.frameworks.megatron import hybrid, options
from symconfig.frameworks.megatron.optimizer_constraints import MUON_SINCE
from symconfig.frameworks.megatron.options import optimizer
from symconfig.graph.scheme import CpComm
from symconfig.plans import pipeline_layout
from symconfig.plans.plan import Target
from symconfig.solve.prospect import Setup

# Each of them divides something, or counts what there is at least one of.
SIZES = words(
    f"""
    {" ".join(DEGREES.values())} num_layers_per_virtual_pipeline_stage num_virtual_stages_per_pipeline_rank
    micro_batch_size global_batch_size seq_length kv_channels ffn_hidden_size make_vocab_size_divisible_by
    """
)
_COUNTS = words(
    """
    num_distributed_optimizer_instances microbatch_group_size_per_vp_stage decoder_first_pipeline_num_layers
    decoder_last_pipeline_num_layers encoder_seq_length recompute_num_layers moe_ffn_hidden_size
    """
)
PER_CHUNK = "num_layers_per_virtual_pipeline_stage"
SHARDS = BY_FIELD["gtp"][0]
BOUNDS = {**dict.fromkeys(sorted(SIZES | _COUNTS), "1 or more"), "optimizer_offload_fraction": "0 to 1"}
LONGEST_MASKED = 16 * 1024  # tokens: masks of shorter sequences are too small to count


def run(names: Namespace, gpus: int, cluster: ClusterDescriptor, supplied: Supplied) -> Run:
    """Return the run of Megatron-LM's options on `gpus` GPUs in total.

    Raises InputError with all problems of the options and the model; if the value of an option that was looked up is
    unknown, with only the problems of such options.
    """
    problems, recovered = list(_problems(names, gpus, supplied)), None
    try:
        length = _seq_length(names, supplied)
        model = described(names, seq_length=length, vocab_size=supplied.vocab_size, named=supplied.model)
        recovered = _run(names, gpus, length, cluster, model) if not problems else None
    except InputError as error:
        problems += error.problems
    if names.missed:  # the rest is of defaults in their place
        raise InputError(list(names.missed.values()))
    if recovered is None:
        raise InputError(problems)
    return recovered


def _seq_length(names: Namespace, supplied: Supplied) -> int:
    return names.whole("seq_length", names.whole("encoder_seq_length", supplied.seq_length or 0))


def _problems(names: Namespace, gpus: int, supplied: Supplied) -> Iterator[Problem]:
    """Yield each problem that prevents a prediction, except problems of the model.

    Stops after numbers out of range, and after weight shards that are no multiple of tp, or GPUs that are no
    multiple of shards (or tp) x pp x cp: these are `Impossible`.
    """
    experts = bool(names["num_experts"]) or (supplied.model is not None and supplied.model.experts is not None)
    for dest, what in uncounted.refused(names, experts=experts):
        yield names.problem(f"{what} is not predicted", dest)
    if options.precision(names) is None:
        yield Problem("runs in fp32 are not predicted", field="--bf16", got="neither bf16 nor fp16", need="one")
    if (stepped := optimizer(names)) is None:
        what = "only the states of Adam, SGD and Muon are known"
        yield names.problem(what, "optimizer", got=str(names["optimizer"]), need="adam, sgd or muon")
    elif stepped.name == "muon" and not names.table.at_least(MUON_SINCE):
        what = f"Muon is predicted from {MUON_SINCE} on, whose ranks reduce and gather it otherwise than before"
        yield names.problem(what, "optimizer", got=names.table.version)
    if not _seq_length(names, supplied):
        yield Problem("the sequence length is not said", field="--seq-length", hint="--seq-length N")
    beyond = {dest for dest in BOUNDS if not _within(names, dest)}
    for dest in filter(beyond.__contains__, dict.fromkeys((*names.written, *BOUNDS))):
        yield names.problem("is a number that no run has", dest, got=names[dest], need=BOUNDS[dest])
    if beyond:
        return
    tp, pp, cp = (names.whole(DEGREES[name]) for name in ("tp", "pp", "cp"))
    shards = names.whole(SHARDS, tp)
    if shards < tp or shards % tp:
        problem = names.problem("the weight shards cannot be divided", SHARDS, got=shards)
        yield Impossible.of(problem, "weight-shards-over-tp")
        return
    if gpus % (shards * pp * cp):
        first = f"tp {tp}" if shards == tp else f"shards {shards}"
        got = f"{gpus} GPUs for {first} x pp {pp} x cp {cp}"
        problem = names.problem("these degrees do not divide the GPUs", DEGREES["tp"], got=got)
        yield Impossible.of(problem, "gpus-over-degrees")
        return
    wide = options.precision(names) == "bf16" and names["optimizer"] != "muon" and not options.graphs(names)
    if shards > tp and not (wide and options.zero_stage(names) < 2):
        what = "weight shards beside low precision, fp16, CUDA graphs, Megatron-FSDP or Muon are not predicted"
        yield names.problem(what, SHARDS)
    micro = names["micro_batch_size"]
    if not isinstance(micro, int) or micro < 1:
        yield names.problem("the micro-batch is not said", "micro_batch_size", need="a number")
    named = supplied.model.num_hidden_layers if supplied.model is not None else 0
    layers = names.whole("num_layers", names.whole("encoder_num_layers", named or len(spelled(names))))
    chunks = stages(names, layers, pp)[0] if layers else 1
    if chunks is None:
        what = "the layers do not divide over the chunks of these stages"
        yield names.problem(what, "num_layers", got=f"{layers} on pp {pp}")


def _run(names: Namespace, gpus: int, length: int, cluster: ClusterDescriptor, model: Described) -> Run:
    """Return the run of this model, with all assumptions about it; assumes that `_problems` found nothing.

    Options without effect at its degrees are off: sequence parallelism with tp 1, the kind of context parallelism
    with cp 1, the overlap of experts' all-to-all with ep 1, the microbatch group with vpp 1.
    """
    descriptor = model.model
    experts = descriptor.experts is not None
    tp, pp, cp = (names.whole(DEGREES[name]) for name in ("tp", "pp", "cp"))
    chunks, fields = stages(names, descriptor.num_hidden_layers, pp, descriptor)
    vpp, dp, zero = chunks or 1, gpus // (tp * pp * cp), options.zero_stage(names)
    micro, ep = names.whole("micro_batch_size"), names.whole("expert_model_parallel_size") if experts else 1
    recompute, parts = options.recomputed(names), hybrid.parts_of_layer(descriptor) or 1
    if "recompute_layers" in recompute and parts > 1:  # Megatron-LM counts the parts of a layer
        recompute["recompute_layers"] = -(-recompute["recompute_layers"] // parts)
    target, share = Target("megatron", names.table.version), names.number(1.0, "optimizer_offload_fraction")
    overlap: dict[str, Any] = options.overlap(names, zero, pp, vpp)
    dispatcher: Any = names["moe_token_dispatcher_type"] if experts else None
    exchange: Any = next(iter(names.words("cp_comm_type")), None)
    configuration = Setup(
        tp=tp,
        pp=pp,
        vpp=vpp,
        cp=cp,
        ep=ep,
        etp=names.whole("expert_tensor_parallel_size", tp) if experts else 1,
        dp=dp,
        gtp=options.weight_shards(names),
        micro=micro,
        global_batch=names.whole("global_batch_size", micro * dp),  # without it one microbatch, as in Megatron-LM
        seq_length=length,
        sequence_parallel=bool(names["sequence_parallel"]) and tp > 1,
        **recompute,
        zero_stage=zero,
        precision=options.precision(names) or "bf16",
        cp_comm=exchange if exchange in get_args(CpComm) and cp > 1 else "p2p",
        **overlap | {"overlap_moe_a2a": overlap["overlap_moe_a2a"] and ep > 1},
        optimizer_offload=share if names["optimizer_cpu_offload"] else 0.0,
        activation_offload=bool(names["fine_grained_activation_offloading"]),
        microbatch_group_size=names.whole("microbatch_group_size_per_vp_stage", pp) if vpp > 1 else None,
        moe_dispatcher=dispatcher,
        grad_bytes=options.gradient_bytes(names, zero),
        moe_flex_backend=options.flex_backend(names) if experts else None,
        cuda_graphs=options.graphed(names, experts) or "none",
        fp8_param_gather=bool(names["fp8_param_gather"]),
        fused_loss=options.fuses_loss(names),
        expert_capacity=options.expert_capacity(names) if experts else 0.0,
        paged_stash=experts and bool(names["moe_paged_stash"]),
        **fields,
        backend=target.backend,
        version=target.version,
    )
    latent = descriptor.latent is not None
    framework = options.behaviour(names, cluster.gpu.architecture, configuration, latent)
    return Run(
        target,
        model,
        replace(configuration, framework=framework),
        optimizer=optimizer(names) or Optimizer(),
        assumed=tuple(_assumed(names, descriptor, configuration)),
    )


def _assumed(names: Namespace, model: ModelDescriptor, chosen: Setup) -> Iterator[Assumed]:
    """Yield assumptions: about what Megatron-LM refuses, batch, graphs, ignored options, offloaded activations."""
    ends = {"embedding": chosen.account_for_embedding, "loss": chosen.account_for_loss}
    first, last, layers = chosen.first_stage_layers, chosen.last_stage_layers, model.num_hidden_layers
    dealt = pipeline_layout.dealt(layers, chosen.pp, chosen.vpp, first=first, last=last, **ends)
    if chosen.pipeline_layout is None and dealt is None:
        yield Assumed(
            "layers of the stages",
            "as near to equal as can be",
            "as they are said they hold others than the model's",
            names.place("decoder_first_pipeline_num_layers", "decoder_last_pipeline_num_layers", "num_layers"),
        )
    if names["bf16"] and names["fp16"]:
        yield Assumed("precision", "bf16", "two are given", names.place("fp16"))
    if not names.given("global_batch_size"):
        yield Assumed("global batch", str(chosen.global_batch), "one microbatch, as Megatron-LM without the option")
    if (place := names.place("rampup_batch_size")) is not None:
        yield Assumed("global batch", str(chosen.global_batch), "the batch at the end of its ramp", place)
    if options.graphs(names) and options.graphed(names, model.experts is not None) is None:
        parts = ", ".join(sorted(options.graphed_modules(names)))
        yield Assumed(
            "CUDA graphs",
            "none",
            f"graphs of {parts} alone are not predicted",
            names.place("cuda_graph_modules", "cuda_graph_scope_deprecated", "cuda_graph_scope"),
        )
    yield from uncounted.left_out(names)
    modules = names["offload_modules"]
    if chosen.activation_offload and isinstance(modules, tuple):
        usual = offloaded_modules(model, chosen.recompute_modules)
        if set(modules) != set(usual):
            yield Assumed(
                "offloaded activations",
                ", ".join(usual),
                "only these together are predicted",
                names.place("offload_modules"),
            )


def with_masks(run: Run, names: Namespace) -> Run:
    """Return the run with `mask_bytes` of the data loader's attention masks: micro-batch x length**2 bytes on each GPU.

    Unchanged without them, or for sequences below 16384 tokens (common_utils.py, get_batch_on_this_tp_rank).
    """
    length = run.configuration.seq_length
    if length < LONGEST_MASKED or not names["create_attention_mask_in_dataloader"]:
        return run
    framework = replace(run.configuration.framework, mask_bytes=float(run.configuration.micro * length**2))
    return replace(run, configuration=replace(run.configuration, framework=framework))


def _within(names: Namespace, dest: str) -> bool:
    """Return whether an argument is no known number, or one in the bounds of its destination; a nan is not."""
    value = names[dest] if dest not in names.dark else None
    least, most = (1, math.inf) if BOUNDS[dest] == "1 or more" else (0, 1)
    return not isinstance(value, int | float) or least <= value <= most


def stages(
    names: Namespace, layers: int, pp: int, model: ModelDescriptor | None = None
) -> tuple[int | None, dict[str, Any]]:
    """Return the chunks per pipeline stage (vpp), and the fields of a configuration on the stages' layers.

    By a hybrid pattern with stages or a layout (field `pipeline_layout`; none if a pattern's are equal), else by the
    options of end and virtual stages. Chunks are None where they do not divide; (1, {}) for a malformed pattern and,
    without a layout, for pp 1. layers: of the model. model: whose layers a pattern has; None if not known.
    """
    if (text := spelled(names)) and hybrid.STAGE in text:
        try:
            by_stage, predictions = letters(text, model)
        except ValueError:
            return 1, {}  # the model's fields are refused for it
        chunks = ["t" * len(stage) for stage in by_stage]
        equal = len(set(chunks)) == 1
        chunks[0], chunks[-1] = "E" + chunks[0], chunks[-1] + "m" * predictions + "L"
        return _divided(len(chunks), pp), {} if equal else {"pipeline_layout": pipeline_layout.compact(chunks)}
    if layout := names.word("pipeline_model_parallel_layout"):
        return _divided(len(pipeline_layout.expanded(layout)), pp), {"pipeline_layout": layout}
    if pp == 1:
        return 1, {}
    fields: dict[str, Any] = {}
    for field in ("first_stage_layers", "last_stage_layers", "account_for_embedding", "account_for_loss"):
        dest = BY_FIELD[field][0]
        fields[field] = names.integer(dest) if field.endswith("layers") else names.switch(dest)
    # The number of chunks, or the layers of each (arguments.py, validate_args).
    vpp, each = map(names.integer, ("num_virtual_stages_per_pipeline_rank", PER_CHUNK))
    if vpp is None and each is not None:
        held = _divided(layers + fields["account_for_embedding"] + fields["account_for_loss"], pp)
        return (None if held is None else _divided(held, each)), fields
    return vpp or 1, fields


def _divided(number: int, by: int) -> int | None:
    return None if number % by else number // by
