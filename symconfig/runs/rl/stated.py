"""A step of reinforcement learning as a script states it: its phases on the layout that is there, and a better one."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from symconfig.cost.machine import machine
from symconfig.descriptor.cluster import ClusterDescriptor
from symconfig.descriptor.job import Job, Limits
from symconfig.errors import InfeasibleError, InputError
from symconfig.existing.audit.audit import Audit, planned, unpredicted_for
from symconfig.existing.audit.judge import PHASES, Judged, judge
from symconfig.existing.recover.rl.step import Alone, Step
from symconfig.existing.recover.rl.values import DTENSOR, FSDP, Workers
from symconfig.existing.recover.run import Run
from symconfig.existing.rules.rule import findings
from symconfig.format import picked
from symconfig.render import ms_swift, named, targets
from symconfig.render.learning import Compares
from symconfig.runs.best import best_plan
from symconfig.runs.rl.choose import planned as recorded
from symconfig.runs.rl.engine import Engine, Replica, generation_s
from symconfig.runs.rl.layouts import ANY
from symconfig.runs.rl.logits import (
    BY_TARGET,
    FUSED,
    NEMO_DTENSOR,
    PLAIN,
    SLIME_CHUNKED,
    VERL,
    VERL_FSDP_SCALED,
    LogitBytes,
    of_loss,
)
from symconfig.runs.rl.phases import Layout
from symconfig.runs.rl.reward import rewards
from symconfig.runs.rl.trained import Trained
from symconfig.runs.rl.tuned import counted
from symconfig.solve.lengths import packing
from symconfig.solve.predict import as_found

TOP = 3  # plans that are kept of a better layout
# ms-swift on Megatron-Core reads both before each forward of the policy (megatron/trainers/{dpo,kto}_trainer.py). Its
# scripts are read, and no plan is written for it.
_SWIFT_COMPARES = Compares(losses=(), first=("model", "reference"))


def completed(
    done: Audit,
    cluster: ClusterDescriptor,
    limits: Limits,
    *,
    plan: bool = False,
    progress: Callable[[str], None] = lambda _: None,
) -> Audit:
    """Return an audit with the stated run's phases predicted and its findings added; unchanged without a stated run.
    plan: whether to search for a better layout, too (`better`, or `infeasible` with the error). A run that cannot be
    predicted is recorded in the audit, not raised. progress: called with a sentence before the search.
    """
    run = done.stated
    if run is None:
        return done
    try:
        judged = _alone(run, cluster, limits) if run.step is None else _judged(run, run.step, cluster, limits)
    except InputError as error:
        return unpredicted_for(done, error.problems)
    done = replace(done, judged=judged, findings=(*done.findings, *findings(PHASES, judged, done.reading.start)))
    if not plan:
        return done
    alone = run.alone
    plain = alone is not None and alone.preference is None and not alone.classifies  # with the loss of pre-training
    if alone is not None and plain and run.target.backend == alone.workers.planned:
        return planned(done, run, cluster, limits, progress)
    progress("looking for a better layout")
    job = judged.plan.job
    job = _job(job, run.step) if run.step is not None else _of_alone(job, run.alone)
    try:
        model = judged.plan.model if run.alone is None else run.described.model  # its head is the target's matter
        return replace(done, better=best_plan(model, cluster, job, top=TOP))
    except (InfeasibleError, InputError) as error:
        return replace(done, infeasible=str(error))


def _of_alone(job: Job, alone: Alone | None) -> Job:
    """Return the job to search a better layout for a run that trains one model without generation: with its workers'
    backend, and its program's target if that is known and supports the task.
    """
    assert alone is not None, "is what there is without a step"
    target: str | None = alone.workers.target or alone.trainer.name
    if target in targets() and job.task in named(target).tasks:
        return job.model_copy(update={"target": target, "backend": alone.workers.planned})
    return job.model_copy(update={"backend": alone.workers.planned})


def _job(job: Job, step: Step) -> Job:
    """Return the job to search a better layout for a run's RL step, for its program's target, with the RL batch and
    longest sequence. Left to the search are the engine's tp and memory share, rollout GPUs, micro-batches and packing.
    The backend is megatron for DTensor workers, else the one with which such workers are planned.
    """
    assert job.rl is not None
    open_ = {"tp": None, "memory_share": None}
    rl = job.rl.model_copy(
        update={"tokens_per_gpu": None, "rollout_gpus": None, "rollout": job.rl.rollout.model_copy(update=open_)}
    )
    update = {
        "target": step.workers.target or step.trainer.name,
        "rl": rl,
        "backend": "megatron" if step.workers is DTENSOR else step.workers.planned,
        "global_batch_size": rl.batch,
        "seq_length": rl.longest,
        "packing": None,
    }
    return job.model_copy(update=update)


def _judged(run: Run, step: Step, cluster: ClusterDescriptor, limits: Limits) -> Judged:
    """Return the prediction of a run with its RL step in `plan.rl`. The critic has its value head; a reward model is
    there only if the script states its layout. Raises InputError if the rollout GPUs do not divide over the engine, the
    engine has no room, or a layout cannot be predicted.
    """
    actor, critic = _trained(run, step, step.fill, _logits(step), cluster, limits), None
    if run.critic is not None:
        described = replace(run.critic.described, model=run.critic.described.model.of_values)
        of_values = replace(run.critic, described=described)
        critic = _trained(of_values, step, step.critic_fill, PLAIN, cluster, limits)
    rl, alone = step.rl, step.rl.placement == "split"
    tp, dp, share = rl.rollout.tp or 1, rl.rollout.dp or 1, rl.rollout.memory_share
    assert share is not None, "a script has one, or its trainer's default"
    served = rl.rollout_gpus if alone and rl.rollout_gpus else run.configuration.world_size
    if served % (tp * dp):
        what = "the GPUs that generate do not divide over the engine's"
        raise InputError(what, field="rollout", got=f"{served} for engines of {tp * dp}")
    gpu = machine(cluster, "bf16" if cluster.gpu.peak_flops.bf16 else "fp16", gpus=served)
    engine = Engine(run.described.model, gpu, tp, dp, step.weight_bytes)
    replica = Replica(engine, share, rl.rollout.static_share)
    taken_s = generation_s(replica, rl, served // engine.gpus)
    if taken_s is None:
        what = "the engine's share of the memory has no room for its weights and the keys of the longest sequence"
        got = f"{share:g} of a GPU for weights of {replica.engine.weights_bytes / 2**30:.1f} GiB"
        raise InputError(what, field="rollout", got=got, hint="a larger share, or more GPUs an engine")
    learns = named(step.workers.target or step.trainer.name).learns or ANY
    network = None
    if rl.reward_model is not None and step.reward_model is not None and step.reward is not None:
        how = learns.rewards[rl.reward_model.placement]
        network = rewards(how, step.reward_model, rl, actor, cluster, gpu, step.reward)
    layout = Layout(
        **picked(step, "rl", "away", "read", "reference_read", "reference", "apart", "sleeps", "waits"),
        actor=actor,
        critic=critic,
        replica=replica,
        replicas=served // engine.gpus,
        alone=alone,
        generation_s=taken_s,
        read_alike=learns.critic == "apart",
        sleep_level=learns.sleep_level(rl, run.described.model.adapter is not None),
        rewards=network,
    )
    return Judged(plan=replace(actor.plan, rl=(recorded(layout),)), memory={}, run=run)


def _alone(run: Run, cluster: ClusterDescriptor, limits: Limits) -> Judged:
    """Return the prediction of a run that trains one model without generation, with its step in `plan.tuned`. A scoring
    model gets a scalar head unless the program keeps both. Raises InputError as `judge` and `as_found`.
    """
    alone = run.alone
    assert alone is not None, "is what makes it one to be completed"
    name = alone.workers.target or alone.trainer.name
    how = _SWIFT_COMPARES if name == ms_swift.NAME else named(name).compares
    if alone.scores and not (how is not None and how.both_heads):
        run = replace(run, described=replace(run.described, model=run.described.model.scoring))
    judged = judge(run, cluster, limits)
    if alone.preference is not None:
        logits = of_loss(alone.preference.means, name)
    else:
        logits = PLAIN if alone.classifies else _of_program(alone.workers, name, PLAIN)
    point = as_found(run.described.model, cluster, run.configuration, judged.plan.job)
    trained = Trained(judged.plan, judged.plan.best, 1.0, logits, point=point)
    step = counted(judged.plan, trained, how, resident=alone.reference == "resident")
    return replace(judged, plan=replace(judged.plan, tuned=(step,)), run=run)


def _logits(step: Step) -> LogitBytes:
    """Return the bytes per logit of the script's loss: FUSED, slime's chunked, verl's FSDP with a temperature, else its
    program's (default VERL).
    """
    if step.fused_logits:
        return FUSED
    if step.chunked_logits:
        return SLIME_CHUNKED
    if step.scaled_logits and step.workers is FSDP:
        return VERL_FSDP_SCALED
    return _of_program(step.workers, step.workers.target or step.trainer.name, VERL)


def _of_program(workers: Workers, name: str, otherwise: LogitBytes) -> LogitBytes:
    return NEMO_DTENSOR if workers is DTENSOR else BY_TARGET.get(name, otherwise)


def _trained(
    run: Run, step: Step, fill: float, logits: LogitBytes, cluster: ClusterDescriptor, limits: Limits
) -> Trained:
    """Return the actor or critic of a step on the stated layout. fill: share of its micro-batches' tokens that are
    real; logits: bytes per logit of its loss. Raises InputError as `judge`.
    """
    packed = replace(run.configuration, packing=packing(step.rl))
    judged = judge(replace(run, configuration=packed, step=step), cluster, limits)
    point = as_found(run.described.model, cluster, packed, judged.plan.job)
    return Trained(judged.plan, judged.plan.best, fill, logits, point=point)
