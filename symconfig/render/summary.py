"""A plan in words and short tables, for REPORT.md of any target: options, time, memory, the phases of a step."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from symconfig.format import count, percent, seconds, several
from symconfig.format import gib as gib_number
from symconfig.frameworks.megatron import environment
from symconfig.plans.configuration import Configuration
from symconfig.plans.plan import Candidate, Plan
from symconfig.plans.sentences import beyond, opened, searched, stage_rows
from symconfig.units import GIB

_DEGREES = (
    ("tp", "tensor parallel"),
    ("pp", "pipeline stages"),
    ("vpp", "virtual stages per rank"),
    ("cp", "context parallel"),
    ("ep", "expert parallel"),
    ("etp", "expert tensor parallel"),
    ("dp", "data parallel"),
)
_GRAPHED = {
    "router": "the experts' router",
    "outside experts": "attention and the experts' router",
    "all": "whole layers",
    "full iteration": "the whole iteration but the optimizer",
}
PACKING = (
    "The job's packing enters the predicted time only: attention is counted within documents. The files here do "
    "not pack; the data decides what a sequence holds"
)


@dataclass(frozen=True, slots=True)
class Want:
    """A Python module that an option of a plan needs.

    attribute: a name that the module must have; "": any build will do. named: the module and attribute in words.
    """

    option: str
    label: str
    module: str
    attribute: str
    named: str
    why: str
    hint: str


def modules_wanted(plan: Plan) -> tuple[Want, ...]:
    """Return a Want for each Python module that used options of a Megatron plan need, in the order of the options. The
    same module may appear for several options; needs that are no modules are left out.
    """
    return tuple(
        Want(option.name, option.label, need.module, need.attribute or "", need.named, need.why, need.hint)
        for option in environment.used(plan)
        for need in option.needs
        if need.module is not None
    )


@dataclass(frozen=True, slots=True)
class Row:
    """One line of a table: its name and its cells."""

    name: str
    cells: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Nodes:
    """The nodes of a run: `count` of them with `gpus` each."""

    count: int
    gpus: int


def nodes(plan: Plan) -> Nodes:
    """Return the fewest nodes with equally many GPUs each that make up the world size, none with more than the
    cluster's.
    """
    total, most = plan.best.configuration.world_size, plan.cluster.gpus_per_node
    count = -(-total // most)
    while total % count:
        count += 1
    return Nodes(count, total // count)


def number(value: float) -> str:
    """Return a number with three significant digits, or without decimals from 100 on; no exponents above 0.0001."""
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"


def gib(value: float) -> str:
    return f"{value / GIB:.1f} GiB"


def duration(value: float) -> str:
    return f"{value:.2f} s" if value >= 1 else f"{value * 1e3:.1f} ms"


def intervals(plan: Plan) -> list[str]:
    """Return sentences on the likely ranges of step time and of the fullest GPU's memory, each if the prediction has it
    (from measured runs), and one with a safer --memory-margin if the plan may not fit.
    """
    predicted = plan.best.predicted
    ranges = predicted.interval
    sentences = []
    if "step_s" in ranges:
        low, high = ranges["step_s"]
        sentences.append(f"A step likely takes between {duration(low)} and {duration(high)}{predicted.basis('time')}.")
    if "device_bytes" in ranges:
        low, high = ranges["device_bytes"]
        sentences.append(f"The fullest GPU likely needs between {gib(low)} and {gib(high)}{predicted.basis('memory')}.")
    if plan.may_not_fit:
        sentences.append(
            f"**That crosses the {gib(plan.cluster.gpu.memory_bytes.value)} that the GPU has**: "
            f"`--memory-margin {plan.safe_margin:g}` leaves room for it."
        )
    return sentences


def predicted_for(plan: Plan, backend: str) -> str:
    """Return a sentence that the plan's times are those of another framework; "" if its backend is `backend`."""
    if plan.best.target.backend == backend:
        return ""
    return (
        "The plan was made for the other framework, and these times and bytes are what that one would take: "
        f"`symconfig plan --backend {backend}` predicts them for this one."
    )


def share(part: float, whole: float = 1.0) -> str:
    return f"{100 * part / whole:.1f} %" if whole else ""


def recompute(value: Configuration) -> str:
    """Return the recompute in words: "none", "selective: " with its modules (core_attn by default), "full, the first N
    layers of every (virtual) stage" for the method block, else "full, every layer".
    """
    if value.recompute == "none":
        return "none"
    if value.recompute == "selective":
        return "selective: " + ", ".join(value.recompute_modules or ("core_attn",))
    if value.recompute_method == "block":
        return f"full, the first {value.recompute_layers} layers of every (virtual) stage"
    return "full, every layer"


def overlap(value: Configuration) -> str:
    """Return the overlapped kinds of communication in words, joined by commas; "nothing" if there is none."""
    names = (
        ("gradient reduction", value.overlap_grad_reduce),
        ("weight gather", value.overlap_param_gather),
        ("tensor-parallel communication", value.overlap_tp_comm),
        ("pipeline sends", value.overlap_pp_p2p),
        ("experts' all-to-all", value.overlap_moe_a2a),
    )
    return ", ".join(name for name, on in names if on) or "nothing"


def options(best: Candidate) -> tuple[Row, ...]:
    """Return rows for the options: always those of sharding, precision, gradients, recompute, overlap and schedule.
    Others appear only if they are on.
    """
    value = best.configuration
    zero = ("off", "1: optimizer state sharded", "2: and gradients", "3: and weights")[value.zero_stage]
    rows = [
        ("sequence parallel", "on" if value.sequence_parallel else "off"),
        ("ZeRO stage", zero),
        ("precision", value.precision),
        ("gradients", f"{value.grad_bytes} bytes each"),
        ("recompute", recompute(value)),
        ("runs beside computation", overlap(value)),
        ("schedule", value.schedule),
    ]
    if value.instances > 1:
        rows.append(("groups that each have all shards", str(value.instances)))
    if value.gtp > 1:
        rows.append(("shards of each linear weight", f"tp {value.tp} x gtp {value.gtp}"))
    if value.cp > 1:
        rows.append(("context-parallel exchange", value.cp_comm))
    if value.moe_dispatcher:
        kernels = f", {value.moe_flex_backend}'s kernels" if value.moe_flex_backend else ""
        rows.append(("token dispatcher", value.moe_dispatcher + kernels))
    if value.cuda_graphs != "none":
        rows.append(("CUDA graphs replay", _GRAPHED[value.cuda_graphs]))
    if value.expert_capacity:
        rows.append(("expert capacity per rank", f"{value.expert_capacity:g} times the mean load"))
    if value.stage_layout:
        rows.append(("stage layout", value.stage_layout))
    if value.optimizer_offload:
        rows.append(("optimizer state on the host", share(value.optimizer_offload)))
    for name, on in (
        ("activations on the host", value.activation_offload),
        ("weights on the host", value.param_offload),
        ("weights kept and gathered in 8 bits", value.fp8_param_gather),
        ("loss in one kernel of Transformer Engine", value.fused_loss),
        ("experts' activations kept in pages", value.paged_stash),
        ("attention in fp8", value.fp8_attention),
    ):
        if on:
            rows.append((name, "yes"))
    return tuple(Row(name, (text,)) for name, text in rows)


def stages(best: Candidate) -> tuple[Row, ...]:
    """Return a row for each group of equal stages: layers by virtual stage, recompute, peak memory or its range."""
    return tuple(Row(numbers, tuple(others)) for numbers, *others in stage_rows(best.stages, gib))


def memory(plan: Plan) -> tuple[Row, ...]:
    """Return a row for each part of the memory of the fullest GPU: GiB and its share of what is in use; then rows for
    the peak allocation, reserved and used memory, and the limit with its margin.
    """
    best = plan.best.predicted
    rows = [Row(name, (gib(value), share(value, best.device_bytes))) for name, value in best.memory.items()]
    rows += [
        Row("**peak allocation**", (gib(best.peak_bytes), "")),
        Row("**reserved by the allocator**", (gib(best.reserved_bytes), "")),
        Row("**in use on the device**", (gib(best.device_bytes), "")),
        Row("**limit**", (gib(plan.usable_bytes), f"margin {plan.job.limits.memory_margin:.0%}")),
    ]
    return tuple(rows)


def short(best: Candidate) -> str:
    """Return the candidate on one line, as "tp4 pp2 dp8 mbs1 zero1 bf16, recompute none"; degrees of 1 are left out."""
    parts = [
        f"{name}{getattr(best.configuration, name)}" for name, _ in _DEGREES if getattr(best.configuration, name) > 1
    ]
    parts += [f"mbs{best.configuration.micro}", f"zero{best.configuration.zero_stage}", best.configuration.precision]
    return " ".join(parts) + f", recompute {recompute(best.configuration)}"


def alternatives(plan: Plan) -> tuple[Row, ...]:
    """Return a row for each runner-up: rank from 2, options, step time, change against the best in
    percent, and memory.
    """
    first = plan.best.predicted.step_s
    return tuple(
        Row(
            str(rank),
            (
                short(other),
                duration(other.predicted.step_s),
                f"{100 * (other.predicted.step_s / first - 1):+.1f} %",
                gib(other.predicted.device_bytes),
            ),
        )
        for rank, other in enumerate(plan.alternatives, start=2)
    )


def tables(best: Candidate) -> dict[str, tuple[Row, ...]]:
    """Return {name: rows} of a candidate for REPORT.md: degrees, options, stages, and time (seconds of each part with
    its share of the step).
    """
    predicted = best.predicted
    return {
        "degrees": tuple(Row(short, (words, str(getattr(best.configuration, short)))) for short, words in _DEGREES),
        "options": options(best),
        "stages": stages(best),
        "time": tuple(
            Row(name, (duration(value), share(value, predicted.step_s))) for name, value in predicted.time.items()
        ),
    }


def words(plan: Plan, wanted: Iterable[Want] = ()) -> dict[str, Sequence[Row | str]]:
    """Return the tables and sentences of REPORT.md by name. wanted: modules that options of the plan want."""
    return {
        **tables(plan.best),
        "wants": tuple(Row(want.label, (want.option, want.named, want.why, want.hint)) for want in wanted),
        "memory": memory(plan),
        "alternatives": alternatives(plan),
        "intervals": intervals(plan),
        "searched": searched(plan),
        "opened": tuple(opened(plan)),
        "beyond": tuple(beyond(plan)),
    }


def phases(plan: Plan) -> tuple[Row, ...]:
    """Return a row for each phase of an RL or preference step: seconds, share of the step, tokens of a micro-batch per
    GPU (or ""), GiB, and its parts, largest first. The shares of phases that overlap add up to more than 100 %. () for
    a plan without phases.
    """
    if not plan.steps:
        return ()
    step = plan.steps[0]
    return tuple(
        Row(
            phase.name,
            (
                seconds(phase.seconds),
                percent(phase.seconds / step.step_s),
                count(phase.tokens) if phase.tokens else "",
                gib_number(phase.bytes),
                ", ".join(
                    f"{name} {gib_number(size)}"
                    for name, size in sorted(phase.holds.items(), key=lambda part: -part[1])
                ),
            ),
        )
        for phase in step.phases
    )


def step_notes(plan: Plan, moved: str = "") -> Iterator[str]:
    """Yield sentences about an RL or preference step to read before the first start; nothing for other jobs. For
    preferences only the size of a reference on the GPU, if there is one, with `moved`, how it could be taken off. For
    RL: no KL term, the reward model, and a generation rate that is predicted.
    """
    if (rl := plan.job.rl) is None:
        if plan.tuned and (copy := plan.tuned[0].phases[-1].holds.get("reference")):
            yield f"The reference is on the GPU in every phase, {gib_number(copy)} GiB" + (
                f"; {moved}" if moved else ""
            )
        return
    if not rl.reference:
        yield "There is no KL term, and so no reference model"
    yield from (sentence.removesuffix(".") for sentence in rewards(plan))
    if plan.rl and plan.rl[0].generated_per_s_per_gpu and rl.rollout.tokens_per_s_per_gpu is None:
        yield (
            f"Generation is predicted by a model, at {plan.rl[0].generated_per_s_per_gpu:,.0f} tokens/s on each GPU; "
            "plan again with rl.rollout.tokens_per_s_per_gpu of your first steps' log"
        )


def rewards(plan: Plan) -> Iterator[str]:
    """Yield a sentence on where the reward model runs; nothing without one. Without a planned one it is the URL's
    server.
    """
    named, own = plan.job.rl.reward_model if plan.job.rl else None, plan.rl[0].reward if plan.rl else None
    if named is None:
        return
    if own is None:
        yield f"Rewards come from {named.url}, for which nothing is counted."
        return
    name = "a network of the actor's size" if named.model is None else named.model.removesuffix(".yaml")
    where = f"{several(own.gpus, 'GPU')} of its own" if own.gpus else "the GPUs that train"
    engines = f"engines on {several(own.tp, 'GPU')} each, with {own.memory_share:g} of the memory"
    yield f"Rewards: {name} on {where}, by {engines if own.tp else 'workers'}."
