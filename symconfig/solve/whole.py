"""A job with what its training leaves open: the only place where a model's size meets the table of learning rates."""

from __future__ import annotations

from symconfig.descriptor import learning_rate
from symconfig.descriptor.cluster import ClusterDescriptor
from symconfig.descriptor.job import Job
from symconfig.descriptor.learning_rate import AdapterTask
from symconfig.descriptor.model import ModelDescriptor
from symconfig.descriptor.sections import Position
from symconfig.descriptor.task import Task
from symconfig.errors import InputError, Problem
from symconfig.graph.model import parameters
from symconfig.plans.plan import Plan

USUAL_LENGTH = 4096  # default sequence length in tokens, if the model supports it


def whole(model: ModelDescriptor, job: Job) -> Job:
    """Return the job with open fields of its training derived from task and active parameters; fields set are kept.

    Raises InputError for a learning rate schedule that is not possible.
    """
    training = learning_rate.derived(job.training, _learning_rate_row(job.task_of(model), model), _size(model))
    learning_rate.check(training)
    return job.model_copy(update={"training": training})


def filled(model: ModelDescriptor, cluster: ClusterDescriptor, job: Job) -> Job:
    """Return the job with defaults for task, precision, sequence length and training; fields set are kept.

    Precision is bf16 if the GPU has it, else fp16; the length is the model's longest, at most USUAL_LENGTH tokens.
    Raises InputError for sequences longer than learned positions, and as `whole` does.
    """
    precision = job.precision or ("bf16" if cluster.gpu.peak_flops.bf16 is not None else "fp16")
    seq_length = job.seq_length or min(model.max_position_embeddings, USUAL_LENGTH)
    fields = {"task": job.task_of(model), "precision": precision, "seq_length": seq_length}
    job = whole(model, job.model_copy(update=fields))
    if model.position is Position.LEARNED and (beyond := job.beyond(model)):
        what, need = "the model has a learned position for fewer tokens", f"at most {model.max_position_embeddings}"
        raise InputError(Problem(what, field="seq_length", got=str(beyond), need=need))
    return job


def why(plan: Plan) -> tuple[str, ...]:
    """Return sentences on which training fields were derived and from what."""
    return learning_rate.why(
        plan.training, _learning_rate_row(plan.task, plan.model), _size(plan.model), _kind(plan.model)
    )


def short(plan: Plan) -> str:
    """Return the derived training fields as one line; empty if the job states all of them."""
    return learning_rate.short(
        plan.training, _learning_rate_row(plan.task, plan.model), _size(plan.model), _kind(plan.model)
    )


def _learning_rate_row(task: Task, model: ModelDescriptor) -> Task | AdapterTask:
    """Return the key of a task in the table of learning rates."""
    return learning_rate.row(task, adapters=model.adapter is not None)


def _size(model: ModelDescriptor) -> float:
    """Return the number of active parameters without adapters."""
    bare = model if model.adapter is None else model.model_copy(update={"adapter": None})
    return parameters(bare).active


def _kind(model: ModelDescriptor) -> str:
    """Return the word for what `_size` counts: "parameters" or, with experts, "active parameters"."""
    return "parameters" if model.experts is None else "active parameters"
