"""Sentences on a plan that are the same wherever they are read: its stages, its search, and what to beware of."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from itertools import groupby

from symconfig.descriptor.job import Job
from symconfig.descriptor.sections import Position
from symconfig.format import count, several
from symconfig.plans.plan import Plan, Stage

NOTHING = 0.0005  # relative: a difference in seconds that is not mentioned
MOST_CHANGE = 0.05  # largest relative change of a batch that is suggested
_ENDS = ("embedding", "head")  # there is one of each
_MOST_RUNS = 4  # of equal layers, that a chunk is written with


def stage_rows(stages: Sequence[Stage], size: Callable[[float], str]) -> list[tuple[str, str, str, str]]:
    """Return (stages' numbers, layers, recompute, peak memory) in words for each run of equal stages. Such as `("2 to
    15", "4 dense", "none", "61.2 to 63.0")`, with the least and the most peak of the run; one number where both are
    equal. Stages are equal if their layers and recompute are. size: writes bytes.
    """
    rows = []
    for (layers, recompute), same in groupby(
        enumerate(stages), lambda each: (stage_layers(each[1]), each[1].recompute)
    ):
        numbers, alike = zip(*same, strict=True)
        peaks = [size(pick(stage.peak_bytes for stage in alike)) for pick in (min, max)]
        ends = (dict.fromkeys(map(str, pair)) for pair in ((numbers[0], numbers[-1]), peaks))
        number, peak = map(" to ".join, ends)
        rows.append((number, layers, recompute, peak))
    return rows


def stage_layers(stage: Stage) -> str:
    """Return a stage's layers in words, equal chunks joined: `embedding + 4 dense | 7 x (4 dense)`."""
    runs = [(chunk_layers(chunk), len(list(same))) for chunk, same in groupby(stage.chunks)]
    return " | ".join(text if times == 1 else f"{times} x ({text})" for text, times in runs)


def chunk_layers(chunk: Sequence[str]) -> str:
    """Return a chunk's layers in words and in order: `embedding + 20 dense`, or `no layers` if it is empty. Kinds that
    alternate are a repeated period: `4 x (1 moe + 1 dense)`. Embedding and head are taken off the ends.
    """
    first = [kind for kind in chunk[:1] if kind in _ENDS]
    last = [kind for kind in chunk[len(first) :][-1:] if kind in _ENDS]
    between = _runs(chunk[len(first) : len(chunk) - len(last)])
    return " + ".join([*first, *between, *last]) or "no layers"


def _runs(kinds: Sequence[str]) -> list[str]:
    """Return runs of equal kinds in words, such as `4 dense`; more than _MOST_RUNS as the shortest period and its rest.
    Without a period that comes twice, a single text with the total of each kind, `in turns`.
    """
    runs = [f"{len(list(same))} {kind}" for kind, same in groupby(kinds)]
    if len(runs) <= _MOST_RUNS:
        return runs
    for period in range(2, len(kinds) // 2 + 1):
        if all(kind == kinds[index % period] for index, kind in enumerate(kinds)):
            times, rest = divmod(len(kinds), period)
            return [f"{times} x ({' + '.join(_runs(kinds[:period]))})", *_runs(kinds[:rest])]
    return [", ".join(f"{times} {kind}" for kind, times in Counter(kinds).items()) + " in turns"]


def searched(plan: Plan) -> tuple[str, ...]:
    """Return sentences on the search: how many candidates were compared and fit, the plan's rank, and what is left out.
    The number of simulated ones only if any were. The rank is that no candidate scores better, with how much faster the
    fastest one is if by more than NOTHING; of a plan with steps of rl or tuning, only that a better one may exist.
    """
    search, step_s, fastest_s = plan.search, plan.best.predicted.step_s, plan.fastest.predicted.step_s
    counts = f"Searched: {count(search.candidates)} candidates, of which {count(search.feasible)} fit"
    if search.simulated:
        schedules = several(search.simulated, "schedule")
        counts += f"; {schedules} of the best simulated, all others ranked by a formula"
    rank = "No plan that was compared scores better."
    if plan.steps:
        rank = "Whole steps were counted around the best plans of an update alone, so a better one may exist."
    elif step_s > (1 + NOTHING) * fastest_s:
        rank += (
            f" The fastest plan that was compared takes {fastest_s:.3f} s, this one "
            f"{100 * (step_s / fastest_s - 1):.1f} % longer: it is plainer, or has fewer rare choices."
        )
    return (f"{counts}.", rank, *left_out(plan))


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


def caveats(plan: Plan) -> Iterator[str]:
    """Yield sentences of warning about the best plan. In order: its experimental options (`opened`); gradients that are
    accumulated in fp32 but reduced between several data-parallel ranks in the weights' type, as DeepSpeed (engine.py,
    communication_data_type) and Accelerate's FSDP do; sequences longer than the model takes (`beyond`).
    """
    yield from opened(plan)
    c, json = plan.best.configuration, '"communication_data_type": "fp32" in the JSON changes that for twice the bytes'
    accelerate = None if plan.job.target == "verl-fsdp" else "Accelerate does"
    who = {"deepspeed": f"DeepSpeed does by default. {json}", "fsdp": accelerate}.get(plan.best.target.backend)
    if who and c.grad_bytes > 2 and c.dp * c.cp > 1:
        yield (
            f"Gradients are added up in fp32 over micro-batches, and in {c.precision} between the "
            f"{count(c.dp * c.cp)} data-parallel ranks, as {who}."
        )
    yield from beyond(plan)


def opened(plan: Plan) -> Iterator[str]:
    """Yield a sentence for each experimental option of the best plan, with why it is used."""
    for one in plan.search.opened:
        reason = "A pin asks for it." if one.pinned else "Nothing fits without it."
        yield f"Not stable: {one.label} ({one.maturity}: {one.why}). {reason}"


def beyond(plan: Plan) -> Iterator[str]:
    """Yield a sentence if the job's sequences are longer than the model's max_position_embeddings. For a model with
    rope it advises a larger rope_theta or a rope_scaling.
    """
    model, longest = plan.model, plan.job.beyond(plan.model)
    if not longest:
        return
    how = " Its rope is written as it is: give the model a larger rope_theta, or a rope_scaling, for a longer reach."
    yield (
        f"Sequences of {count(longest)} tokens are longer than the model's max_position_embeddings of "
        f"{count(model.max_position_embeddings)}: what was trained up to that has seen no later position."
        f"{how if model.position is Position.ROPE else ''}"
    )


def batch_nearby(plan: Plan) -> str | None:
    """Return a sentence that suggests a --global-batch-size that at least twice as many replicas could share. It is
    within MOST_CHANGE of the plan's; the one with the most replicas, then the nearest, then the larger. None if there
    is none, for reinforcement learning, and if dp is below half of the most replicas that its batch allows.
    """
    gpus, batch = plan.best.configuration.world_size, plan.best.configuration.global_batch
    most = math.gcd(gpus, batch)
    if plan.rl or 2 * plan.best.configuration.dp < most:
        return None
    for replicas in range(gpus, 2 * most - 1, -1):
        below = batch // replicas * replicas
        nearest = min((below, below + replicas), key=lambda size: (abs(size - batch), -size))
        if gpus % replicas == 0 and nearest and abs(nearest - batch) <= int(MOST_CHANGE * batch):
            return (
                f"{batch:,} sequences can be shared by at most {most} replica{'s' * (most > 1)} of {gpus} GPUs, "
                f"{nearest:,} by up to {math.gcd(gpus, nearest)}. Try: --global-batch-size {nearest}"
            )
    return None
