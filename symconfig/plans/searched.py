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


def one_length(job: Job, seq_length: int) -> bool:
    """Return whether a job's task has sequences of one length and all documents packed in it have seq_length tokens.

    Such tasks are pretrain (or None), sft and lora; without packing, only the task counts.
    """
    alike = job.packing is None or set(job.packing.lengths) == {seq_length}
    return alike and job.task in (None, "pretrain", "sft", "lora")


def left_out(plan: Plan) -> Iterator[str]:
    """Yield a sentence on user buffers and CUDA graphs, which the search leaves out for sequences of several lengths.

    Only for Megatron-LM, and only for those that no pin sets.
    """
    job, names = plan.job, {"user_buffers": "user buffers", "cuda_graphs": "CUDA graphs"}
    left = [name for name in names if name not in job.pins]
    if job.backend == "megatron" and left and not one_length(job, plan.best.configuration.seq_length):
        pins = " ".join(f"--pin {name}={'on' if name == 'user_buffers' else 'all'}" for name in left)
        what = " and ".join(names[name] for name in left)
        yield f"Not searched, as sequences are of several lengths: {what} ({pins})."


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
