"""A job's best plan: solved for the target that the job names, or for its framework's own."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from symconfig.descriptor.cluster import ClusterDescriptor
from symconfig.descriptor.job import Job
from symconfig.descriptor.load import load_model
from symconfig.descriptor.model import ModelDescriptor
from symconfig.descriptor.rl import Rl
from symconfig.errors import SymconfigError
from symconfig.frameworks.known import built
from symconfig.frameworks.megatron.adapters import as_laid
from symconfig.plans.plan import Candidate, Plan
from symconfig.render import target_of
from symconfig.runs import sayable
from symconfig.runs.imaged import as_trained
from symconfig.solve.answer import answer, assuming


def best_plan(
    model: ModelDescriptor,
    cluster: ClusterDescriptor,
    job: Job,
    *,
    top: int,
    writes: bool = False,
    progress: Callable[[str, float], None] | None = None,
) -> Plan:
    """Solve a job. writes: its files are wanted, so that nothing may be left to change by hand. One that
    names no target is solved for the next that can be told its model, where its framework's own cannot
    (`sayable.opened`).

    Raises InputError for what can never run, InfeasibleError where nothing fits or can be refined; what no plan can be
    refined before the search.
    """
    wanted = job
    model, job = prepared(model, cluster, job)
    target = sayable.check(model, cluster, job, writes=writes)

    def solve(of: ModelDescriptor, job: Job, most: int) -> Plan:
        return answer(of, cluster, job, target_of(of, job), top=most, progress=progress)

    if target.rl is not None:
        from symconfig.runs.rl.choose import answer as step
        from symconfig.runs.rl.question import Question

        source = target_of(model, target)
        learns = source.learns
        assert learns is not None, "sayable.check refuses other targets"
        rl = target.rl.with_engine(learns.engines[0])
        refined = target.model_copy(update={"rl": rl, "target": source.name})
        return step(Question(model, cluster, refined, rl, _critic(model, rl), solve, _reward(model, rl), learns), top)
    if target.preference is not None or target.sequences is not None:
        from symconfig.runs.rl.tuned import answer as tuned

        return tuned(target, lambda update, most: solve(model, update, most), target_of(model, target), top)
    with sayable.naming(model, cluster, wanted, job):
        plan = answer(model, cluster, target, target_of(model, target), top=top, progress=progress)
    return replace(plan, job=plan.job.model_copy(update={"edited": job.edited}))


def as_if_told(
    model: ModelDescriptor,
    cluster: ClusterDescriptor,
    job: Job,
    refusal: sayable.UntoldError,
    *,
    top: int,
    progress: Callable[[str, float], None] | None = None,
) -> Plan:
    """Solve a job whose framework's own target cannot be told the network, as if it could be. Raises the refusal where
    it is for another reason, where the job names the target, or where that has no price."""
    fields = {(problem.field or "").partition(".")[0] for problem in refusal.problems[:-1]}
    of_network = fields <= ModelDescriptor.model_fields.keys() - {"adapter"}
    phases = job.rl is not None or job.preference is not None or job.sequences is not None
    if job.target is not None or phases or not of_network:
        raise refusal
    model, job = prepared(model, cluster, job)
    try:
        permissive = replace(target_of(model, job), variables=lambda plan: {})
        return answer(model, cluster, job, permissive, top=top, progress=progress)
    except SymconfigError:
        raise refusal from None


def other_backend(model: ModelDescriptor, cluster: ClusterDescriptor, job: Job, plan: Plan) -> Candidate | None:
    """Return the best plan of the other framework that fine-tunes, Megatron-LM or DeepSpeed, by one more search; None
    where the job says which, where it is not of fine-tuning alone, or where the other has no plan."""
    if plan.task not in ("lora", "sft") or plan.steps or sayable.NAMED & job.model_fields_set:
        return None
    other = "deepspeed" if plan.job.backend == "megatron" else "megatron"
    try:
        return best_plan(model, cluster, job.model_copy(update={"backend": other, "pins": {}}), top=1).best
    except SymconfigError:
        return None


def prepared(model: ModelDescriptor, cluster: ClusterDescriptor, job: Job) -> tuple[ModelDescriptor, Job]:
    """Return the model with the job's adapters, images and head, and the job with the target that it goes to."""
    model, job = as_trained(model, job)
    job = sayable.opened(model, cluster, job)
    model = built(model, assuming(job, target_of(model, job)).backend)
    model = as_laid(model, job.target)
    compares = target_of(model, job).compares
    return model if compares is None else compares.scoring(model, job), job


def _reward(model: ModelDescriptor, rl: Rl) -> ModelDescriptor | None:
    """Return the model of rewards; None where none runs on the job's GPUs."""
    if (named := rl.reward_model) is None or named.placement == "server":
        return None
    return (model if named.model is None else load_model(named.model)).of_values


def _critic(model: ModelDescriptor, rl: Rl) -> ModelDescriptor | None:
    """Return the model that gives values; None where none is trained."""
    if not rl.has_critic:
        return None
    return (model if rl.critic is None else load_model(rl.critic)).of_values
