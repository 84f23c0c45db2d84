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
from symconfig.graph.count import parameters
from symconfig.plans.plan import Plan

USUAL_LENGTH = 4096  # tokens, where a job says none and the model takes as many


def whole(model: ModelDescriptor, job: Job) -> Job:
    """Return the job with the training's open fields filled in by its task and the model's size. Raises InputError for
    a schedule that cannot be."""
    training = learning_rate.derived(job.training, _manner(job.task_of(model), model), _size(model))
    learning_rate.check(training)
    return job.model_copy(update={"training": training})


def filled(model: ModelDescriptor, cluster: ClusterDescriptor, job: Job) -> Job:
    """Return the job with its defaults written out: task, precision, sequence length and training.

    Raises InputError as `whole` does, and for tokens without a learned position.
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
    """Return what of a plan's training was derived, and from what, as sentences."""
    return learning_rate.why(plan.training, _manner(plan.task, plan.model), _size(plan.model), _kind(plan.model))


def short(plan: Plan) -> str:
    """Return the same as one line; empty where the job states all of it."""
    return learning_rate.short(plan.training, _manner(plan.task, plan.model), _size(plan.model), _kind(plan.model))


def _manner(task: Task, model: ModelDescriptor) -> Task | AdapterTask:
    """Return the row of the table of learning rates that a task has."""
    return learning_rate.row(task, adapters=model.adapter is not None)


def _size(model: ModelDescriptor) -> float:
    """Count the parameters that work on a token, without adapters: those beside which these are trained."""
    bare = model if model.adapter is None else model.model_copy(update={"adapter": None})
    return parameters(bare).active


def _kind(model: ModelDescriptor) -> str:
    """Return the word for the parameters that `_size` counts: of experts only those that are chosen."""
    return "parameters" if model.experts is None else "active parameters"
