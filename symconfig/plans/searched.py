"""What a plan's search did, in sentences that are the same wherever they are read."""

from __future__ import annotations

from collections.abc import Iterator

from symconfig.descriptor.job import Job
from symconfig.format import count, several
from symconfig.plans.beside import NOTHING
from symconfig.plans.plan import Plan


def searched(plan: Plan) -> tuple[str, ...]:
    """Return sentences on the search: how many candidates were compared and fit, the plan's rank, and what is left out.

    The number of simulated ones only if any were.
    """
    search = plan.search
    weighed = f"Searched: {count(search.candidates)} candidates, of which {count(search.feasible)} fit"
    if search.simulated:
        schedules = several(search.simulated, "schedule")
        weighed += f"; {schedules} of the best simulated, all others ranked by a formula"
    return (f"{weighed}.", _best_of(plan), *left_out(plan))


def left_out(plan: Plan) -> tuple[str, ...]:
    """Return sentences on what the plan's target cannot express and on options that were not searched; () for none."""
    return (*_cost_of_target(plan), *_options_not_searched(plan))


def one_length(job: Job, seq_length: int) -> bool:
    """Return whether a job's task has sequences of one length and all documents packed in it have seq_length tokens.

    Such tasks are pretrain (or None), sft and lora; without packing, only the task counts.
    """
    alike = job.packing is None or set(job.packing.lengths) == {seq_length}
    return alike and job.task in (None, "pretrain", "sft", "lora")


def _options_not_searched(plan: Plan) -> Iterator[str]:
    """Yield a sentence on user buffers and CUDA graphs, which the search leaves out for sequences of several lengths.

    Only for Megatron-LM, and only for those that no pin sets.
    """
    job, names = plan.job, {"user_buffers": "user buffers", "cuda_graphs": "CUDA graphs"}
    left = [name for name in names if name not in job.pins]
    if job.backend == "megatron" and left and not one_length(job, plan.best.configuration.seq_length):
        pins = " ".join(f"--pin {name}={'on' if name == 'user_buffers' else 'all'}" for name in left)
        what = " and ".join(names[name] for name in left)
        yield f"Not searched, as sequences are of several lengths: {what} ({pins})."


def _cost_of_target(plan: Plan) -> Iterator[str]:
    """Yield a sentence on how much slower the plan is for the pins that the job's target imposes.

    "as fast" below NOTHING of a step. None if it imposes none or the unrestricted step is not recorded.
    """
    search, own = plan.search, plan.job.target or plan.best.target.backend
    if search.narrowed and search.free_step_s is not None:
        pins = ", ".join(f"{name}={value}" for name, value in search.narrowed.items())
        slower = plan.best.predicted.step_s / search.free_step_s - 1
        cost = f"takes {100 * slower:.1f} % longer than" if slower >= NOTHING else "is as fast as"
        yield f"{own} supports only {pins}: the plan {cost} the best one of its framework."


def _best_of(plan: Plan) -> str:
    """Return a sentence on among which plans this is the best: no plan that was compared scores better.

    If another was faster by more than NOTHING, it adds by how much and why. If the plan has steps of rl or tuning, it
    only says that a better plan may exist.
    """
    if plan.steps:
        return "Whole steps were counted around the best plans of an update alone, so a better one may exist."
    best = "No plan that was compared scores better."
    fastest = plan.fastest.predicted.step_s
    if plan.best.predicted.step_s <= (1 + NOTHING) * fastest:
        return best
    return (
        f"{best} The fastest plan that was compared takes {fastest:.3f} s, this one "
        f"{100 * (plan.best.predicted.step_s / fastest - 1):.1f} % longer: it is plainer, or has fewer rare choices."
    )
