"""A plan of which nothing was weighed: all GPUs over data, no figures. Enough to ask what can be said of its job."""

from __future__ import annotations

from symconfig.descriptor.cluster import ClusterDescriptor
from symconfig.descriptor.job import Job
from symconfig.descriptor.model import ModelDescriptor
from symconfig.install import VERSION
from symconfig.plans.choices import Precision
from symconfig.plans.degrees import Degrees
from symconfig.plans.plan import Batch, Candidate, Options, Overlap, Plan, Predicted, Recompute, Search, Stage, Target


def sketch(model: ModelDescriptor, cluster: ClusterDescriptor, job: Job, release: str) -> Plan:
    """Return a plan without search and figures: all GPUs are data-parallel, at micro-batch 1, in one stage.

    release: of the framework. gpus `auto` becomes one node, also in the plan's job; precision `auto` or None becomes
    bf16; the job must have a sequence length (AssertionError). Predictions are 0.
    """
    gpus = cluster.gpus_per_node if job.gpus == "auto" else job.gpus
    assert job.seq_length is not None, "the job has no defaults yet"
    precision: Precision = "bf16" if job.precision is None or job.precision == "auto" else job.precision
    ends = *["mtp"] * model.num_nextn_predict_layers, "head"
    kinds = (*model.encoder_kinds, "embedding", *model.layer_kinds, *ends)
    best = Candidate(
        target=Target(job.backend, release),
        parallel=Degrees(tp=1, pp=1, vpp=1, cp=1, ep=1, etp=1, dp=gpus),
        batch=Batch(1, job.global_batch_size, max(1, job.global_batch_size // gpus), job.seq_length),
        options=plain_options(precision, experts=model.experts is not None),
        stages=(Stage((kinds,), "none", 0.0),),
        predicted=Predicted(0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, {}, {}, {}),
    )
    known = job.model_copy(update={"gpus": gpus})
    return Plan(model, cluster, known, best, (), Search(0, 0, 0.0, False), "nothing was weighed", VERSION)


def plain_options(precision: Precision, *, experts: bool) -> Options:
    """Return options with everything off except ZeRO-1 and fp32 gradients; with experts, the dispatcher is alltoall."""
    return Options(
        sequence_parallel=False,
        recompute=Recompute("none"),
        zero_stage=1,
        precision=precision,
        cp_comm=None,
        overlap=Overlap(False, False, False, False),
        optimizer_offload=0.0,
        activation_offload=False,
        param_offload=False,
        pipeline_layout=None,
        account_for_embedding=False,
        account_for_loss=False,
        microbatch_group_size=None,
        moe_dispatcher="alltoall" if experts else None,
        grad_bytes=4,
        schedule="none",
    )
