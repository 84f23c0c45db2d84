"""The answer of `symconfig plan`: the ranked candidates, why the first is the first, and how sure that is; on two kinds
of GPUs also what lies where, and whether it pays.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from statistics import median

from symconfig.descriptor.training import Training
from symconfig.format import count, gib, percent, seconds, signed, words
from symconfig.frameworks import extras
from symconfig.frameworks.known import BACKENDS
from symconfig.graph.model import parameters
from symconfig.plans.configuration import DEGREES
from symconfig.plans.mixed import MixedPlan
from symconfig.plans.pipeline_layout import is_uneven
from symconfig.plans.plan import Candidate, Plan, Predicted
from symconfig.plans.sentences import caveats, left_out, searched, stage_rows
from symconfig.report.grid import Block, Grid, abreast, present
from symconfig.report.rl import whole_step
from symconfig.solve.choice import TIE

_WORDS = ("recompute", "precision", "others")  # columns that are not numbers
# Columns that say nothing where every row has this, or where it is None: the same value.
_PLAIN = {**dict.fromkeys((*DEGREES, "zero"), "1"), "sp": "no", "precision": None}
# Columns that stay where all rows are equal: they are the answer.
_ANSWER = (*DEGREES, "step s", "tokens/s/GPU", "MFU", "GPU GiB")


def blocks(plan: Plan) -> list[Block]:
    """Return the answer of `symconfig plan`: headline, caveats, phases (if its step has any), ranking and summary."""
    return present(headline(plan), *caveats(plan), *whole_step(plan), ranking(plan), "\n".join(summary(plan)))


def summary(plan: Plan) -> Iterator[str]:
    """Yield at most twelve sentences under the table: why row 1 is first (with alternatives and without phases), step,
    step with balanced routing if it differs, memory, bottleneck, a measured run of this model on such GPUs (the
    fastest, as "unproven", if the predicted rate is more than 1.2 times its rate, else one that is like the plan), real
    data, the whole run (not for the default train_iters or steps with phases), what is left out, and the command that
    explains it.
    """
    if plan.alternatives and not plan.steps:
        yield _why(plan)
    yield step_sentence(plan)
    predicted = plan.best.predicted
    if (balanced := predicted.balanced_step_s) and seconds(balanced) != seconds(predicted.step_s):
        yield f"With balanced routing, as in benchmarks: {seconds(balanced)} s."
    yield from memory_sentences(plan)
    by_memory = plan.binding.startswith("memory")  # else it says that time is the limit
    yield f"Limited by {'memory' if by_memory else words(_sorted(predicted.time)[0][0])}."
    if (run := plan.beside.measured) is not None:
        rate = f"{count(run.tokens_per_s_per_gpu)} tokens/s/GPU on {run.job} ({run.layout}; {run.source})"
        claimed = count(predicted.benchmark_tokens_per_s_per_gpu)
        if run.unproven:
            yield f"Unproven: {claimed} are predicted, and the fastest measured run has {rate}."
        else:
            yield f"Measured by others: {rate}; {claimed} are predicted here."
    if ratios := plan.beside.real_data:
        times = f"{ratios[0]:.1f} to {ratios[-1]:.1f} times as long"
        yield f"Measured on packed real data: {times} ({len(ratios)} runs, median {median(ratios):.1f})."
    if (steps := plan.job.training.train_iters) != Training().train_iters and not plan.steps:
        hours = steps * predicted.step_s / 3600
        yield (
            f"{count(steps)} iterations: {hours:,.1f} hours, {count(hours * plan.best.configuration.world_size)} "
            f"GPU-hours; {plan.best.tokens_per_s * 86400 / 1e9:,.2f} billion tokens a day."
        )
    yield from left_out(plan)
    yield "Why this plan, and how sure it is: symconfig explain DIR, with the folder of --out."


def step_sentence(plan: Plan, *, basis: bool = False) -> str:
    """Return the step time with its 90 % interval, if known (basis: and the runs that it rests on), its two largest
    parts, and in other precision than bf16 and fp16 the MFU of the bf16 peak, if the GPU has one.
    """
    predicted = plan.best.predicted
    largest = _sorted(predicted.time)[:2]
    shares = ", ".join(f"{percent(value / predicted.step_s, 0)} {words(name)}" for name, value in largest)
    runs = predicted.interval_from.get("time", "") if basis else ""
    step = f"{seconds(predicted.step_s)} s{_interval(predicted, 'step_s', seconds, 's', runs)}"
    peak, mfu = plan.cluster.gpu.peak_flops.bf16, ""
    if peak is not None and plan.best.configuration.precision not in ("bf16", "fp16"):
        mfu = f"; MFU {percent(predicted.model_tflops_per_gpu * 1e12 / peak.value)} of the bf16 peak"
    return f"Step: {step}; {shares}{mfu}."


def memory_sentences(plan: Plan, *, basis: bool = False) -> Iterator[str]:
    """Yield sentences: GPU memory with its 90 % interval, always; if so, that it may not fit, pinned host memory, and
    which precision "auto" became. basis: with the runs that the interval rests on.
    """
    predicted = plan.best.predicted
    used = f"{gib(predicted.device_bytes)} of {gib(plan.usable_bytes)} GiB usable"
    runs = predicted.interval_from.get("memory", "") if basis else ""
    yield f"Memory: {used}{_interval(predicted, 'device_bytes', gib, 'GiB', runs)}."
    if plan.may_not_fit and predicted.device_bytes <= plan.usable_bytes:
        has = gib(plan.cluster.gpu.memory_bytes.value)
        yield f"It may not fit: the interval crosses the GPU's {has} GiB. Try: --memory-margin {plan.safe_margin:g}"
    if predicted.host_bytes:
        yield f"Host memory: {gib(predicted.host_bytes)} GiB for each GPU, pinned."
    if plan.job.precision == "auto":
        yield f"Precision: {plan.best.configuration.precision} is the fastest here; convergence is not modelled."


def _why(plan: Plan) -> str:
    """Return why plan 1 is above plan 2: how much slower that is and in which parts. If it is faster, why it is second:
    rare choices, for which time is added to its score, or else more options and axes; neither if one of the two has no
    standing.
    """
    other = plan.alternatives[0]
    (slower, because), one, two = loss(plan.best, other), plan.best.standing, other.standing
    if slower[1:] == "0.0 %":
        return f"Plan 2 takes as long: {because}."
    if slower[0] == "+":
        return f"Plan 2 is {slower[1:]} slower: {because}."
    faster = f"Plan 2 would be {slower[1:]} faster: {because}."
    if one is None or two is None:
        return faster
    added = percent(two.score_s / other.predicted.step_s - 1, 0)
    rare = f"Plan 2 has rare choices, for which {added} are added: {', '.join(two.unusual)}"
    if two.score_s > TIE * (plan.search.best_score_s or one.score_s):
        return f"{faster} {rare}."
    plainer = f"more options and axes ({two.complexity} to {one.complexity}); within 2 % the plainer is first."
    return f"{faster} {rare}; it has {plainer}" if two.unusual else f"{faster} Plan 2 has {plainer}"


def _interval(predicted: Predicted, name: str, text: Callable[[float], str], unit: str, runs: str) -> str:
    """Return the 90 % interval in brackets, with its runs; "" if it is unknown."""
    if name not in predicted.interval:
        return ""
    low, high = predicted.interval[name]
    return f" (90 % interval {text(low)} to {text(high)} {unit}{f'; {runs}' if runs else ''})"


def headline(plan: Plan) -> str:
    """Return two lines: model, GPUs, framework (and the job's target); batch, sequence length, precision and type of
    gradients; and a third one for an adapter that the job added.
    """
    best, batch = plan.best, plan.best.configuration
    framework = f"{BACKENDS[best.target.backend].label} {best.target.version}"
    runs = f"{framework} through {plan.job.target}" if plan.job.target else framework
    recipe = f" {batch.fp8_recipe}" if batch.fp8_recipe not in ("", batch.precision) else ""
    gradients, adapter, adapters = "fp32" if batch.grad_bytes == 4 else batch.precision, plan.model.adapter, ""
    if adapter is not None and plan.job.lora is not None:
        method = {"lora": "LoRA", "qlora": "QLoRA"}[adapter.method]
        where = ", ".join(plan.job.lora.targets) + (" outside the experts" if plan.model.experts is not None else "")
        trained = f"{count(parameters(plan.model).trainable)} parameters are trained"
        adapters = f"\n{method} of rank {adapter.r}, alpha {adapter.lora_alpha:g}, on {where}: {trained}"
    return (
        f"{plan.model.name} on {count(best.configuration.world_size)} x {plan.cluster.gpu.product} "
        f"({plan.cluster.name}), for {runs}\n"
        f"global batch {count(batch.global_batch)} sequences of {count(batch.seq_length)} tokens, "
        f"{batch.precision}{recipe}, gradients in {gradients}{adapters}"
    )


def ranking(plan: Plan) -> Grid:
    """Return the table of candidates, numbered from 1, the best first; below them, if known, rows "fastest" (a faster
    one that is not among them) and "published" (a measured run's layout, if the plan is unproven).
    """
    numbered = [(str(number), one) for number, one in enumerate(plan.ranked, 1)]
    further = {"fastest": plan.beside.fastest, "published": plan.beside.published}
    return compared([*numbered, *((name, one) for name, one in further.items() if one is not None)])


def compared(candidates: Sequence[tuple[str, Candidate]], marked: int = 0) -> Grid:
    """Return the table of named candidates (`_row`). Left out are columns whose cells all have the default (degrees and
    ZeRO stage 1, sp no, others empty), and precision if all rows have the same. marked: index of the highlighted row.
    """
    rows = [_row(name, candidate) for name, candidate in candidates]
    names = []  # of columns that tell something: values that differ, or that are not the default
    for name in rows[0]:
        values = {row[name] for row in rows}
        plain = "" if name == "others" else _PLAIN.get(name, "")
        if (len(values) > 1 and name != "others") or (plain is not None and values != {plain}):
            names.append(name)
    cut = ({name: row[name] for name in names} for row in rows)
    return Grid.of(cut, words=_WORDS, marked=marked, fixed=_ANSWER)


def _row(number: str, candidate: Candidate) -> dict[str, str]:
    """Return a candidate's cells by column, in order; "90 %" is "" without an interval."""
    o, predicted = candidate.configuration, candidate.predicted
    return {
        "#": number,
        **{name: str(getattr(o, name)) for name in DEGREES},
        "micro": str(o.micro),
        "accum": str(o.num_microbatches),
        "zero": str(o.zero_stage),
        "sp": "yes" if o.sequence_parallel else "no",
        "recompute": o.recompute_text,
        "precision": o.precision,
        "step s": seconds(predicted.step_s),
        "90 %": "-".join(map(seconds, predicted.interval.get("step_s", ()))),
        "tokens/s/GPU": count(predicted.tokens_per_s_per_gpu),
        "MFU": percent(predicted.mfu),
        "GPU GiB": gib(predicted.device_bytes),
        "others": others_text(candidate),
    }


def others_text(candidate: Candidate) -> str:
    """Return the options without a column that differ from the framework's defaults, joined by ", "; "" if none."""
    o = candidate.configuration
    options = []
    if o.optimizer_offload:
        options.append("optimizer offload" + (f" {percent(o.optimizer_offload)}" if o.optimizer_offload < 1 else ""))
    if o.param_offload:
        options.append("parameter offload")
    if o.activation_offload:
        options.append("activation offload")
    if o.cp_comm not in (None, "p2p") and candidate.configuration.cp > 1:
        options.append(f"cp by {o.cp_comm}")
    options += extras.words(extras.in_effect(candidate.configuration))
    if o.account_for_embedding or o.account_for_loss:
        options.append("ends as layers")
    elif o.stage_layout:
        options.append("uneven stages" if is_uneven(candidate.chunks) else "ends differ")
    return ", ".join(options)


def ranking_reasons(plan: Plan) -> Grid:
    """Return the table behind the ranking's order, of candidates with a standing: step, score, complexity, probability
    to fit, rare choices; without rows if the plan has steps with phases.
    """
    rows = [
        (
            str(number),
            seconds(one.predicted.step_s),
            seconds(standing.score_s),
            str(standing.complexity),
            percent(standing.fits),
            ", ".join(standing.unusual) or "nothing",
        )
        for number, one in enumerate(plan.ranked, 1)
        if (standing := one.standing) is not None and not plan.steps
    ]
    heads = ("#", "step s", "score s", "options and axes", "fits", "rare choices")
    least = plan.search.best_score_s
    near = "" if least is None else f" of the best score, {seconds(least)} s,"
    added = "4, 13 or 18 % are added for one, two or more rare choices"
    title = f"Why this order: {added}; within 2 %{near} the plainest is first"
    return Grid(heads, tuple(rows), left=(5,), title=title)


def loss(best: Candidate, other: Candidate) -> tuple[str, str]:
    """Return (relative loss in step time, the parts of the step that cause it) as texts: the two that change most in
    its direction, then the one that changes most against it. Parts that differ by less than 0.1 % of the best step are
    not named; the loss is "" if the best step is 0.
    """
    base, delta = best.predicted.step_s, other.predicted.step_s - best.predicted.step_s
    ours, theirs = best.predicted.time, other.predicted.time
    every = {name: theirs.get(name, 0.0) - ours.get(name, 0.0) for name in sorted({*ours, *theirs})}
    changes = {name: change for name, change in every.items() if abs(change) > 1e-3 * base}
    largest = sorted(changes, key=lambda name: -abs(changes[name]))
    causes = [name for name in largest if (changes[name] > 0) == (delta >= 0)][:2]
    against = [name for name in largest if (changes[name] > 0) != (delta >= 0)][:1]
    named = ", ".join(f"{words(name)} {changes[name]:+.3f} s" for name in (*causes, *against))
    return signed(delta / base) if base else "", named or "no part by more than 0.1 % of a step"


def parts(plan: Plan, title: str = "Where plan 1 spends") -> Grid:
    """Return the table of the best plan's step time (s) and, beside it, peak memory of a GPU (GiB) by part, each
    with its share, the largest first and the sum last; parts of 0 are left out.
    """
    predicted = plan.best.predicted
    left = [(words(name), seconds(value), percent(value / predicted.step_s)) for name, value in _sorted(predicted.time)]
    right = [
        (words(name), gib(value), percent(value / predicted.device_bytes)) for name, value in _sorted(predicted.memory)
    ]
    left.append(("step", seconds(predicted.step_s), ""))
    right.append(("GPU memory in use", gib(predicted.device_bytes), ""))
    heads = ("time of a step", "s", "share", "", "peak memory of a GPU", "GiB", "share")
    return Grid(heads, abreast(left, right), left=(0, 4), title=title)


def stages(plan: Plan) -> Grid:
    """Return the table of pipeline stages: layers, recomputation, peak GiB; equal neighbours share a row."""
    heads = ("stage", "holds, virtual stages apart by |", "recompute", "peak GiB")
    return Grid(heads, tuple(stage_rows(plan.best.stages, gib)), left=(1, 2), title="Pipeline stages")


def _sorted(values: dict[str, float]) -> list[tuple[str, float]]:
    """Return the parts that are not zero, the largest first, then by name."""
    return sorted(((name, value) for name, value in values.items() if value), key=lambda item: (-item[1], item[0]))


def footer(plan: Plan) -> str:
    """Return lines on step and memory with the runs behind their intervals, what limits the plan, and the search."""
    lines = [step_sentence(plan, basis=True), *memory_sentences(plan, basis=True)]
    lines.append(f"Limited by: {plan.binding.rstrip('.')}.")
    return "\n".join([*lines, *searched(plan)])


def plan_command(fields: Mapping[str, object], pins: Mapping[str, object]) -> str:
    """Return the `symconfig plan` command of a job's flat fields and pins, which writes its files."""
    words = [word for name, value in fields.items() for word in (f"--{name.replace('_', '-')}", str(value))]
    words += [word for name, value in pins.items() for word in ("--pin", f"{name}={value}")]
    return shlex.join(["symconfig", "plan", *words, "--out", "out"])


def mixed_blocks(plan: MixedPlan) -> list[Block]:
    """Return the report of a plan over two kinds of GPUs: a head of two lines, the ranking with the cluster of the
    first stages in a last column; of the best candidate the kinds in the order of its stages, the stages, and where
    time and the memory of the fullest kind's GPUs go; and whether mixing pays.
    """
    best, batch = plan.best.candidate, plan.best.candidate.configuration
    kinds = " and ".join(
        f"{count(share.gpus)} x {share.cluster.gpu.product} ({share.cluster.name})" for share in plan.cluster.shares
    )
    headline = (
        f"{plan.model.name} on {kinds}, for {BACKENDS[best.target.backend].label} {best.target.version}\n"
        f"global batch {count(batch.global_batch)} sequences of {count(batch.seq_length)} tokens, {batch.precision}"
    )
    every = (plan.best, *plan.alternatives)
    ranking = compared(tuple((str(number), each.candidate) for number, each in enumerate(every, 1)))
    ranking = replace(
        ranking,
        headers=(*ranking.headers, "first stages on"),
        rows=tuple((*row, each.hosts[0].share.cluster.name) for row, each in zip(ranking.rows, every, strict=True)),
        left=(*ranking.left, len(ranking.headers)),
    )
    rows = [
        {
            "kind": host.share.cluster.name,
            "GPUs": count(host.share.gpus),
            "nodes": host.nodes.text,
            "stages": host.stages.text,
            "layers of each stage": " ".join(map(str, host.layers)),
            "GPU GiB": gib(host.predicted.device_bytes),
            "usable GiB": gib(host.usable_bytes),
        }
        for host in plan.best.hosts
    ]
    shares = Grid.of(rows, "plan 1", words=("kind", "layers of each stage"), fixed=tuple(rows[0]))
    fullest = max(plan.best.hosts, key=lambda host: host.predicted.device_bytes / host.usable_bytes)
    spent = parts(plan.of(fullest), f"Where plan 1 spends, memory on {fullest.share.cluster.name}")
    return [headline, ranking, shares, stages(plan.of(fullest)), spent, "\n".join(mixed_verdict(plan))]


def mixed_verdict(plan: MixedPlan) -> Iterator[str]:
    """Yield three sentences: each kind by itself (its step, or why it has no plan); how many times as fast both are as
    the faster kind, that they do not pay, or that only both run the job; and how many candidates were searched, without
    a proof of the optimum.
    """
    yield " ".join(
        f"{each.share.cluster.name} alone ({count(each.share.gpus)} GPUs) "
        + (f"has no plan: {each.why}." if each.best is None else f"takes {seconds(each.best.predicted.step_s)} s.")
        for each in plan.alone
    )
    faster, gain = plan.faster, plan.gain
    if gain is None or faster is None:
        yield "Only both kinds together run it."
    elif plan.pays:
        yield f"Both kinds together are {gain:.2f} times as fast as {faster.share.cluster.name} alone."
    else:
        yield f"It does not pay: {faster.share.cluster.name} alone is {1 / gain:.2f} times as fast as both kinds."
    yield (
        f"Searched: {count(plan.candidates)} candidates, of which {count(plan.feasible)} fit, weighed on a machine of "
        f"both kinds' mean rates; the best were mapped to both kinds in either order, {count(plan.laid)} times. "
        "A candidate that was not mapped may be faster: the result is not proved optimal."
    )
