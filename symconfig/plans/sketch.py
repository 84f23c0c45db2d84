"""A plan of which nothing was weighed: all GPUs over data, no figures. Enough to ask what can be said of its job."""

from __future__ import annotations

from symconfig.descriptor.cluster import ClusterDescriptor
from symconfig.descriptor.job import Job
from symconfig.descriptor.model import ModelDescriptor
from symconfig.install import VERSION
from symconfig.plans.configuration import Configuration, Precision
from symconfig.plans.plan import Candidate, Plan, Predicted, Search, Stage, Target


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
        configuration=Configuration(
            dp=gpus,
            micro=1,
            global_batch=job.global_batch_size,
            seq_length=job.seq_length,
            zero_stage=1,
            precision=precision,
            moe_dispatcher="alltoall" if model.experts else None,
        ),
        stages=(Stage((kinds,), "none", 0.0),),
        predicted=Predicted(0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, {}, {}, {}),
    )
    known = job.model_copy(update={"gpus": gpus})
    return Plan(model, cluster, known, best, (), Search(0, 0, 0.0, False), "nothing was weighed", VERSION)
