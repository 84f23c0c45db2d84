"""What torchtitan 0.3 cannot be told of a plan, and which of its models a descriptor is.

Sources: torchtitan 0.3.0, `config/configs.py`, `trainer.py`, `distributed/`, `models/*/__init__.py`; torch 2.13,
`distributed/pipelining/schedules.py` (ScheduleInterleaved1F1B).
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from symconfig.descriptor.config_writer import unsaid
from symconfig.descriptor.model import ModelDescriptor
from symconfig.errors import InfeasibleError, Problem
from symconfig.frameworks.around_transformers import WITHOUT_PREDICTION
from symconfig.frameworks.constraint import other
from symconfig.plans.plan import Plan
from symconfig.render.refused import of_fsdp
from symconfig.render.weights import unread

DATA = Path(__file__).parent / "data" / "torchtitan_flavors.json"
_CHECKPOINT = re.compile(r"(/|\w+://).*step-\d+/?")  # checkpointer/base.py: neither is taken relative
_OF_EXPERTS = ("num_experts", "num_experts_per_tok", "moe_intermediate_size")


@dataclass(frozen=True, slots=True)
class Flavor:
    """A model of torchtitan. fields: those of the descriptor that must be so for it to be the same model."""

    module: str
    name: str
    fields: dict[str, Any]


@cache
def flavors() -> tuple[Flavor, ...]:
    """Return torchtitan's models; of its small ones for debugging that of Llama alone."""
    rows = json.loads(DATA.read_text(encoding="utf-8"))
    return tuple(Flavor(row.pop("module"), row.pop("flavor"), row) for row in rows)


def flavor_of(model: ModelDescriptor) -> Flavor | None:
    """Return the flavour that the descriptor describes, if there is one."""
    return next(
        (flavor for flavor in flavors() if all(_field(model, name) == value for name, value in flavor.fields.items())),
        None,
    )


def _field(model: ModelDescriptor, name: str) -> Any:
    if name == "rope_scaling":
        scaling = model.rope_scaling
        return None if scaling is None else [scaling.rope_type, scaling.factor]
    if name in _OF_EXPERTS:
        return getattr(model.experts, name, None)
    return getattr(model, name)


def refuse(plan: Plan) -> Flavor:
    """Return the plan's model in torchtitan. Raises InfeasibleError with everything that torchtitan cannot be told."""
    flavor = flavor_of(plan.model)
    problems = [
        *_model(plan),
        *_axes(plan),
        *_pipeline(plan),
        *_options(plan),
        *_run(plan),
        *unread(plan, "torchtitan"),
    ]
    if problems or flavor is None:
        raise InfeasibleError(problems)
    return flavor


def _model(plan: Plan) -> Iterator[Problem]:
    model = plan.model
    if flavor_of(model) is None:
        likely = [flavor.name for flavor in flavors() if flavor.fields["model_type"] == model.model_type]
        have = (
            f"of {model.model_type} it has {', '.join(likely)}, with other numbers"
            if likely
            else (f"it has none of {model.model_type}")
        )
        yield Problem(f"torchtitan has no such model: {have}", field="model", got=model.name)
    else:  # its classes compute what Transformers' do
        yield from unsaid(model)
    if model.num_nextn_predict_layers:
        yield Problem(
            "torchtitan's multi-token prediction goes with a loss of its own and with no pipeline",
            field="num_nextn_predict_layers",
            got=str(model.num_nextn_predict_layers),
            hint=WITHOUT_PREDICTION,
        )
    if model.adapter is not None:
        yield Problem("torchtitan's adapters are on its own fused layers, which are other matrices", field="adapter")


def _axes(plan: Plan) -> Iterator[Problem]:
    parallel, options, batch = plan.best.parallel, plan.best.options, plan.best.batch
    if parallel.etp > 1:
        yield Problem(
            "torchtitan splits no expert over tensor ranks", field="etp", got=str(parallel.etp), pins=("etp=1",)
        )
    if parallel.cp > 1 and options.cp_comm == "a2a":
        yield Problem(
            "torchtitan's context parallelism gathers keys and values, heads stay where they are",
            field="cp_comm",
            got="a2a",
            pins=("cp_comm=p2p", "cp=1"),
        )
    shards = parallel.cp * parallel.tp * (1 if options.zero_stage == 0 else parallel.dp)
    if shards % parallel.ep:
        yield Problem(
            "torchtitan takes expert ranks from those that shard the weights",
            field="ep",
            got=str(parallel.ep),
            need=f"a divisor of {shards}",
            pins=("zero=1..", *other("ep", parallel.ep)),
        )
    divisor = (parallel.tp if options.sequence_parallel else 1) * (2 * parallel.cp if parallel.cp > 1 else 1)
    if batch.seq_length % divisor:
        yield Problem(
            "torchtitan cuts a sequence into equal parts",
            field="seq_length",
            got=str(batch.seq_length),
            need=f"a multiple of {divisor}",
            pins=(*other("tp", parallel.tp), *other("cp", parallel.cp)),
        )


def _pipeline(plan: Plan) -> Iterator[Problem]:
    parallel, group = plan.best.parallel, plan.best.options.microbatch_group_size
    if parallel.vpp == 1:
        return
    microbatches = plan.best.batch.num_microbatches
    # The number of micro-batches follows from these.
    elsewhere = ("vpp=1", *other("pp", parallel.pp), *other("mbs", plan.best.batch.micro), *other("dp", parallel.dp))
    rounds = max(1, microbatches // parallel.pp)
    if microbatches % rounds:
        yield Problem(
            "torch's interleaved schedule goes in equal rounds",
            field="num_microbatches",
            got=str(microbatches),
            need=f"a multiple of {rounds}",
            pins=elsewhere,
        )
    elif group is not None and group != microbatches // rounds:
        yield Problem(
            "torch's interleaved schedule takes its rounds from the number of micro-batches",
            field="microbatch_group_size",
            got=str(group),
            need=str(microbatches // rounds),
            pins=elsewhere,
        )


def narrow_moments(plan: Plan) -> bool:
    """Return whether AdamW keeps both moments in bf16, and its weights in fp32."""
    optimizer = plan.job.optimizer
    return (optimizer.name, optimizer.main_params, optimizer.exp_avg, optimizer.exp_avg_sq) == (
        "adam",
        "fp32",
        "bf16",
        "bf16",
    )


def _options(plan: Plan) -> Iterator[Problem]:
    options, recompute = plan.best.options, plan.best.options.recompute
    if not (plan.job.optimizer.usual or narrow_moments(plan)):
        yield Problem(
            "torchtitan's AdamW has its moments in fp32 or both in bf16, and its Muon shares matrices otherwise",
            field="optimizer",
            got=plan.job.optimizer.name,
            need="adam, in fp32 or with exp_avg and exp_avg_sq in bf16",
        )
    if options.precision != "bf16":
        yield Problem(
            "torchtitan's training is in bf16 here; its low precisions scale in ways of their own",
            field="precision",
            got=options.precision,
            pins=("precision=bf16",),
        )
    whole = recompute.granularity == "full" and recompute.method == "uniform" and (recompute.num_layers or 1) == 1
    if recompute.granularity != "none" and not whole:
        yield Problem(
            "torchtitan recomputes every layer whole, or by operators of its own choice",
            field="recompute",
            got=" ".join((recompute.granularity, recompute.method or ",".join(recompute.modules))),
            pins=("recompute=none", "recompute=full"),
        )
    if (options.optimizer_offload, options.param_offload) not in ((0.0, False), (1.0, True)):
        yield Problem(
            "torchtitan moves weights, gradients and optimizer to the host together",
            field="optimizer_offload",
            got=f"{options.optimizer_offload:g} of the optimizer, weights {'too' if options.param_offload else 'not'}",
            pins=("optimizer_offload=0",),
        )
    if options.activation_offload:
        yield Problem(
            "torchtitan keeps activations on the GPU", field="activation_offload", pins=("activation_offload=0",)
        )
    if options.moe_dispatcher not in (None, "alltoall"):
        yield Problem(
            "only torchtitan's standard dispatch, an all-to-all, is written",
            field="moe_dispatcher",
            got=options.moe_dispatcher,
            pins=("dispatcher=alltoall",),
        )
    if options.overlap.moe_a2a:
        yield Problem("torchtitan waits for the experts' all-to-all", field="moe_overlap", pins=("moe_overlap=off",))
    yield from _kernels(plan)


def _kernels(plan: Plan) -> Iterator[Problem]:
    """Yield what of Megatron-LM's kernels and number formats torchtitan has not, or has in a way of its own."""
    options = plan.best.options
    for field, used, got, why, pin in (
        (
            "grad_bytes",
            options.grad_bytes != 4 and not of_fsdp(plan),
            f"{options.grad_bytes} bytes",
            "torchtitan adds and reduces gradients in fp32",
            "grad_dtype=fp32",
        ),
        (
            "cuda_graphs",
            options.cuda_graphs != "none",
            options.cuda_graphs,
            "torchtitan's CUDA graphs go with neither a pipeline nor experts over ranks, and are left off",
            "cuda_graphs=none",
        ),
        (
            "fp8_param_gather",
            options.fp8_param_gather,
            None,
            "torchtitan gathers weights in bf16",
            "fp8_param_gather=off",
        ),
        (
            "fused_loss",
            options.fused_loss,
            None,
            "torchtitan's loss is PyTorch's",
            "fused_loss=off",
        ),
    ):
        if used:
            yield Problem(why, field=field, got=got, pins=(pin,))


def _run(plan: Plan) -> Iterator[Problem]:
    training = plan.training
    if training.lr_decay_style == "inverse-square-root":
        yield Problem(
            "torchtitan has no such schedule",
            field="training.lr_decay_style",
            got=training.lr_decay_style,
            need="constant, linear, cosine or WSD",
        )
    elif training.lr_decay_style != "constant" and (training.lr_decay_iters or training.train_iters) < (
        training.train_iters
    ):
        yield Problem(
            "torchtitan's schedules go on falling after their end",
            field="training.lr_decay_iters",
            got=str(training.lr_decay_iters),
            need=f"at least {training.train_iters}",
        )
    if training.load and not training.loads_its_own and not _CHECKPOINT.fullmatch(training.load):
        yield Problem(
            "torchtitan goes on from one checkpoint, or from the last that the run itself saved",
            field="training.load",
            got=training.load,
            need="an absolute path to FOLDER/checkpoint/step-N, or what training.save says",
        )
