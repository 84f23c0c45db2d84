"""The layout of a step of reinforcement learning: the actor's, the engine's and what is moved between them, together.

The planner solves the actor's update for each size of a micro-batch of packed sequences; around its best plans every
engine and every way to move what is not needed is weighed. Of the shortest steps that fit in every phase the plainest
wins.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from math import ceil

from symconfig.descriptor.job import Job
from symconfig.errors import InfeasibleError, Problem, Problems
from symconfig.existing.recover.rl.step import Packed, in_a_row, padded
from symconfig.format import gib, picked
from symconfig.plans.configuration import EXTRAS
from symconfig.plans.plan import Candidate, Plan
from symconfig.plans.rl import PlannedRl
from symconfig.runs.rl.engine import ASLEEP_BYTES, UNCERTAIN
from symconfig.runs.rl.layouts import Division, Question, divisions, layouts, preferred, undivided, unserved
from symconfig.runs.rl.logits import BY_TARGET, PLAIN, VERL, LogitBytes
from symconfig.runs.rl.phases import Layout
from symconfig.runs.rl.trained import Trained
from symconfig.solve.candidate import described
from symconfig.solve.choice import TIE, complexity, unusual
from symconfig.solve.lengths import packing
from symconfig.solve.pins import parse
from symconfig.solve.predict import restore
from symconfig.solve.usual import premium

WEIGHED = 12  # plans of the actor, around each of which engines are weighed
_TIMES = (1, 2, 4)  # the longest sequence, that a micro-batch has room for
_CONTEXT = (1, 2, 4, 8, 16)  # ranks of context parallelism
_LEFT = (0.0, 0.05, 0.1, 0.2)  # shares of a GPU that an update leaves beside, the first that leads to a plan that fits
# A plan of updates, one of its candidates as the actor, and the layouts around that which fit, the shortest step first.
Tried = tuple[Plan, Trained, list[Layout]]


def answer(question: Question, top: int) -> Plan:
    """Return the actor's plan with its RL step (`plan.rl[0]`), and up to `top` - 1 alternatives with theirs. The best
    plan is `_plainest`. Alternatives are candidates for the same job with the same memory risk class, the shortest step
    first. Divisions of the GPUs for which nothing fits are skipped. Raises InputError if the job's GPUs or lengths do
    not suit the section, the first InfeasibleError if no layout fits at all.
    """
    _check(question)
    tried: list[Tried] = []
    refused: list[InfeasibleError] = []
    for on, job, fill in _jobs(question):
        try:
            tried += _around(question, job, fill, on)
        except InfeasibleError as error:
            refused.append(error)
    if not tried:
        raise refused[0]
    plan, _, _ = best = _plainest(question, tried)
    sure = question.is_sure(best[2][0])
    alike = [each for each in tried if each[0].job == plan.job and each is not best]
    alike = [each for each in alike if question.is_sure(each[2][0]) == sure]
    ranked = [best, *sorted(alike, key=lambda each: question.rank(each[2][0]))][:top]
    candidates = [trained.as_written for _, trained, _ in ranked]
    steps = tuple(planned(layouts[0]) for _, _, layouts in ranked)
    return replace(plan, best=candidates[0], alternatives=tuple(candidates[1:]), rl=steps)


def _plainest(question: Question, tried: Sequence[Tried]) -> Tried:
    """Return the least complex of the plans whose score (`_score`: step with the premium for rare options) is at most
    TIE times the best one's, and that meet the memory risk if that does. Of equal ones the shorter step counts, then
    the order of the search.
    """
    best = min(tried, key=lambda each: _score(question, each))
    unsure, score = _score(question, best)
    close = [each for each in tried if _score(question, each) <= (unsure, TIE * score)]
    return min(close, key=lambda each: (complexity(each[1].prospect), each[2][0].step_s, each[1].prospect.order))


def _score(question: Question, tried: Tried) -> tuple[bool, float]:
    """Return (whether a plan's best layout may run out of memory, its step in seconds with the premium for rare
    options). The premium multiplies the step without generation, or the whole step where the layout is `alone`.
    """
    _, actor, (layout, *_) = tried
    unsure, step_s = question.rank(layout)
    trained = step_s if layout.alone else step_s - layout.generation_s
    return unsure, step_s + trained * (float(premium(len(unusual(actor.prospect)))) - 1)


def _check(question: Question) -> None:
    """Raise one InputError with all problems: GPUs "auto", no division of them or no engine for it, a longest sequence
    above tokens_per_gpu times the largest cp, or above the model's positions.
    """
    problems = Problems()
    if question.job.gpus == "auto":
        problems.add(Problem("of a step of reinforcement learning must be a number", field="gpus", got="auto"))
    elif not (ways := _divided(question)):
        problems.add(undivided(question.rl, question.job.gpus, question.cluster.gpus_per_node))
    elif problem := unserved(question, {on.rollout or on.trained for on in ways}):
        problems.add(problem)
    room, most = question.rl.tokens_per_gpu, max(_contexts(question), default=1)
    if room is not None and room * most < question.rl.longest:
        what = f"a micro-batch has no room for the longest sequence, of {question.rl.longest} tokens"
        need = f"{ceil(question.rl.longest / most)} tokens or more, with cp {most}"
        problems.add(Problem(what, field="rl.tokens_per_gpu", got=str(room), need=need))
    if question.rl.longest > question.model.max_position_embeddings:
        what, need = (
            "the longest sequence is longer than the model's",
            f"at most {question.model.max_position_embeddings}",
        )
        problems.add(Problem(what, field="rl", got=f"{question.rl.longest} tokens", need=need))
    problems.check()


def _divided(question: Question) -> list[Division]:
    """Return the ways to divide the job's GPUs among the roles; empty if the job's `gpus` is "auto"."""
    gpus = question.job.gpus
    return [] if gpus == "auto" else [*divisions(question.rl, question.cluster, gpus, question.reward is not None)]


def _jobs(question: Question) -> Iterator[tuple[Division, Job, float]]:
    """Yield (division of the GPUs, job of one update on the training GPUs, fill) for each division and micro-batch
    size.

    fill: computed tokens over the tokens that the job's sequences have room for; without packing the padded length over
    rl.longest. Without packing each division has one job of rl.batch padded sequences. With it there is one for
    each of `_rooms`: its sequences are packed micro-batches, as many as an update fills, rounded up to a multiple
    of the largest divisor of the GPUs that is not above that.
    """
    rl = question.rl
    for on in _divided(question):
        gpus = on.trained
        if question.learns.sequences != "packed":
            plain = {"gpus": gpus, "global_batch_size": rl.batch, "seq_length": rl.longest, "packing": None}
            # All that a rank generates is padded together.
            length = padded(rl, max(1, rl.sequences // gpus))
            yield on, question.job.model_copy(update=plain), length / rl.longest
            continue
        for room, pins in _rooms(question):
            needed = rl.batch * rl.mean_tokens / room
            # As many as leave the degrees free: what divides the GPUs divides them, too.
            together = max(each for each in range(1, gpus + 1) if gpus % each == 0 and each <= max(1.0, needed))
            batch = together * ceil(needed / together)
            update = {
                "gpus": gpus,
                "global_batch_size": batch,
                "seq_length": room,
                "packing": packing(rl),
                "pins": {**question.job.pins, **pins},
            }
            fill = rl.batch * rl.mean_tokens / (batch * room)
            yield on, question.job.model_copy(update=update), fill


def _rooms(question: Question) -> Iterator[tuple[int, dict[str, str]]]:
    """Yield (tokens of a packed micro-batch, pins that it requires). Without `rl.tokens_per_gpu`: the longest sequence,
    and 2 and 4 times that if an update fills them, without pins. With it: cp * tokens_per_gpu for each cp at which the
    longest sequence fits, with cp and mbs 1 pinned.
    """
    rl = question.rl
    if rl.tokens_per_gpu is None:
        yield from (
            (times * rl.longest, {})
            for times in _TIMES
            if times == 1 or times * rl.longest <= rl.batch * rl.mean_tokens
        )
        return
    for cp in _contexts(question):
        if cp * rl.tokens_per_gpu >= rl.longest:
            yield cp * rl.tokens_per_gpu, {"cp": str(cp), "mbs": "1"}


def _contexts(question: Question) -> tuple[int, ...]:
    """Return the context-parallel degrees from 1 to 16 that the most training GPUs and the job's pin allow; if there
    are none, the first of the pinned range.
    """
    pins, most = parse(question.job.pins), max((on.trained for on in _divided(question)), default=max(_CONTEXT))
    left = tuple(cp for cp in _CONTEXT if cp <= most and pins.allows("cp", cp))
    return left or pins.ranges["cp"][:1]


def _around(question: Question, job: Job, fill: float, on: Division) -> list[Tried]:
    """Return (plan, actor, its preferred feasible layouts) of each candidate of the actor's search that has any, in the
    search's order; without candidates whose critic is infeasible. Colocated, it solves again with a larger memory
    margin (_LEFT) until a layout meets the memory risk; else the first candidates are returned whose layouts fit
    without meeting it. fill: share of micro-batches' tokens that are real; on: the division of the GPUs. Raises
    InfeasibleError if no layout fits, or as the search.
    """
    unsure: list[Tried] = []
    full: list[Layout] = []
    refused: list[InfeasibleError] = []
    for tight in _tighter(question, job):
        plan = question.solve(question.model, tight, WEIGHED)
        plan = replace(plan, job=plan.job.model_copy(update={"limits": job.limits, "pins": question.job.pins}))
        critics: dict[tuple[str, ...], Trained | InfeasibleError] = {}
        result = []
        for candidate in plan.ranked:
            logits = BY_TARGET.get(question.job.target or "", VERL)
            actor = _trained(question, plan, candidate, fill, logits)
            critic = _critic(question, tight, fill, on.critic, candidate, critics)
            if isinstance(critic, InfeasibleError):
                refused.append(critic)
                continue
            every = list(layouts(question, actor, critic, on))
            if fitting := _fitting(question, every):
                result.append((plan, actor, fitting))
            else:
                full += every
        if any(question.is_sure(fitting[0]) for *_, fitting in result):
            return result
        unsure = unsure or result
    if unsure:
        return unsure
    if refused and not full:
        raise refused[-1]
    raise _none_fits(question, min(full, key=lambda each: each.trained_bytes, default=None))


def _tighter(question: Question, job: Job) -> Iterator[Job]:
    """Yield the job with larger memory margins, which keep room for what is on the GPU beside the update: colocated,
    for the sleeping engine and each share of _LEFT in turn, while the margin is below 0.9; else the job as it is, once.
    """
    if question.rl.placement != "colocated":
        yield job
        return
    asleep = ASLEEP_BYTES / question.cluster.gpu.memory_bytes.value
    for margin in (job.limits.memory_margin + (asleep + left) for left in _LEFT):
        if margin < 0.9:
            yield job.model_copy(update={"limits": job.limits.model_copy(update={"memory_margin": margin})})


def _fitting(question: Question, every: Sequence[Layout]) -> list[Layout]:
    """Return the layouts of one actor that fit on GPUs and hosts, the shortest step first but the preferred one
    (`preferred`) in front; only those that meet the memory risk, if any does. [] if none fits.
    """
    host = question.cluster.host.memory_bytes.value / question.cluster.gpus_per_node
    fitting = [each for each in every if each.trained_bytes <= question.usable_bytes and each.host_bytes <= host]
    fitting.sort(key=lambda each: each.step_s)
    return preferred([each for each in fitting if question.is_sure(each)] or fitting)


def _critic(
    question: Question,
    job: Job,
    fill: float,
    gpus: int,
    actor: Candidate,
    solved: dict[tuple[str, ...], Trained | InfeasibleError],
) -> Trained | InfeasibleError | None:
    """Return the critic, solved with the pins of `_alike`; None without a critic, the error if it does not fit. job:
    the update's, with the memory margin that remains; fill: share of micro-batches' tokens that are real; gpus: of the
    critic's own, 0 if it shares the actor's. solved: cache by pinned values, which this extends.
    """
    if question.critic is None:
        return None
    pins = _alike(question, actor)
    if (key := tuple(pins.values())) not in solved:
        own = job.model_copy(update={"gpus": gpus or job.gpus, "pins": {**job.pins, **pins}})
        try:
            plan = question.solve(question.critic, own, 1)
            solved[key] = _trained(question, plan, plan.best, fill, PLAIN)
        except InfeasibleError as error:
            solved[key] = error
    return solved[key]


def _alike(question: Question, actor: Candidate) -> dict[str, str]:
    """Return the pins that give the critic the actor's choices: mbs, cp, tp and, where programs configure the critic by
    itself (`learns.critic` "own"), pp; elsewhere ZeRO stage, recompute, offload and instances instead of pp.
    """
    c = actor.configuration
    alike: dict[str, object] = {"mbs": c.micro, "cp": c.cp}  # programs take one number of tokens for both
    if question.learns.critic == "own":
        alike |= {"tp": c.tp, "pp": c.pp}
    else:
        alike |= {"zero": c.zero_stage, "tp": c.tp, "recompute": c.recompute}
        alike |= {"optimizer_offload": f"{c.optimizer_offload:g}"}
        if any(one.name == "instances" and actor.target.backend in one.of for one in EXTRAS):
            alike["instances"] = c.instances
    return {name: str(value) for name, value in alike.items()}


def _trained(question: Question, plan: Plan, candidate: Candidate, fill: float, logits: LogitBytes) -> Trained:
    """Return a plan's candidate as a trained model, with the number and room of the micro-batches that the program
    makes. A packed micro-batch holds at most a replica's share of the update. If that changes room or batch, the
    candidate is costed again with one sequence per micro-batch and the original kept as `written`; padded ones stay.
    """
    rl, batch, dp = question.rl, candidate.configuration, candidate.configuration.dp
    room = batch.micro * batch.seq_length
    packed = Packed(room=room, length=rl.mean_tokens).within(rl, dp)
    whole = packed.spread(rl, dp, in_a_row(candidate.configuration))
    if question.learns.sequences != "packed" or (packed.room == room and whole * batch.micro == batch.global_batch):
        return Trained(plan, candidate, fill, logits)
    job = plan.job.model_copy(update={"global_batch_size": whole, "seq_length": packed.room})
    point = restore(plan, candidate)
    request = replace(point.request, job=job).having(global_batch=whole, seq_length=packed.room)
    point = point.having(micro=1, global_batch=whole, seq_length=packed.room)
    filled = described(replace(point, request=request), plan.cluster, job, best=True)
    filled = replace(filled, target=candidate.target)
    return Trained(replace(plan, job=job), filled, packed.fill(rl, whole), logits, candidate)


def _none_fits(question: Question, layout: Layout | None) -> InfeasibleError:
    """Return the error for a job of which no layout fits: no engine at all (`layout` None), too little host memory, or
    the fullest phase.
    """
    if layout is None:
        what = "no engine has room for the weights and the longest sequence beside what is trained"
        hint = "more GPUs, a shorter response_length.max, or placement: split"
        return InfeasibleError(what, field="rl.rollout", hint=hint)
    fullest = max(layout.phases, key=lambda phase: phase.bytes)
    if layout.trained_bytes <= question.usable_bytes:
        what = "nothing fits: what is moved to the host takes more than it has for each GPU"
        had = question.cluster.host.memory_bytes.value / question.cluster.gpus_per_node
        got, need = f"{gib(layout.host_bytes)} GiB", f"{gib(had)} GiB"
        return InfeasibleError(what, field="rl", got=got, need=need, hint="more GPUs")
    return InfeasibleError(
        f"nothing fits: the phase {fullest.name} of the best layout is too full",
        field="rl",
        got=f"{gib(fullest.bytes)} GiB",
        need=f"{gib(question.usable_bytes)} GiB usable of {gib(question.cluster.gpu.memory_bytes.value)}",
        hint="more GPUs, or fewer tokens_per_gpu",
    )


def planned(layout: Layout) -> PlannedRl:
    """Return a layout as the plan records it: engine, phases, bytes, step and its interval. tokens_per_gpu is the
    job's, else the actor's micro-batch over cp; the critic, if any, is recorded with the actor's batch.
    """
    candidate, rl = layout.actor.candidate, layout.rl
    batch = layout.actor.as_written.configuration
    critic = layout.critic.candidate.configuration if layout.critic else None
    if critic is not None:  # plan.json has no batch of its own for it
        critic = replace(critic, **picked(batch, "micro", "global_batch", "seq_length"))
    served = layout.replica.engine.gpus * layout.replicas
    return PlannedRl(
        rollout_tp=layout.replica.engine.tp,
        rollout_dp=layout.replica.engine.dp,
        sleep_level=layout.sleep_level,
        reward=None if layout.rewards is None else layout.rewards.planned,
        rollout_gpus=served,
        memory_share=layout.replica.share,
        at_once=layout.replica.at_once(rl),
        at_longest=layout.replica.at_once(rl, float(rl.longest)),
        tokens_per_gpu=rl.tokens_per_gpu or batch.micro * batch.seq_length // candidate.configuration.cp,
        away=layout.away,
        host_bytes=layout.host_bytes,
        step_s=layout.step_s,
        interval=_interval(layout),
        generated_per_s_per_gpu=rl.generated * rl.response_length.mean / layout.generation_s / served,
        phases=layout.phases,
        critic=critic,
    )


def _interval(layout: Layout) -> tuple[float, float]:
    """Return the 90 % interval of a layout's step in seconds: generation times the factors UNCERTAIN (1 if its rate is
    stated), all else scaled by the actor's interval; with an engine on GPUs of its own the longer counts.
    """
    predicted, generated_s = layout.actor.candidate.predicted, layout.generation_s
    trained_s = layout.step_s if layout.alone else layout.step_s - generated_s

    def end(step_s: float, of_engine: float) -> float:
        rest = trained_s * step_s / predicted.step_s
        own = generated_s * (1.0 if layout.rl.rollout.tokens_per_s_per_gpu is not None else of_engine)
        return max(own, rest) if layout.alone else own + rest

    low, high = map(end, predicted.interval["step_s"], UNCERTAIN)
    return low, high
