"""The experts' all-to-all beside another microbatch: what of it shows, against streams and stages event by event."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from symconfig.cost import formulas
from symconfig.cost.blocks import Policies
from symconfig.cost.framework import Framework
from symconfig.cost.work import PAIRED_HOST, inside_experts, is_dispatch, paired_collectives_s
from symconfig.descriptor.load import load_cluster
from symconfig.frameworks.megatron.behaviour import EXPERTS_HIDE, MEGATRON
from symconfig.frameworks.megatron.behaviour import beside_another as overlapping
from symconfig.graph.derived import Collective, Phase, recompute_policy
from symconfig.solve.costed import Costed
from tests.cost.support import cost, seconds
from tests.cost.test_experts import layer
from tests.sample_models import sample_model

MODEL = sample_model("qwen3-30b-a3b")
B200 = load_cluster("b200")
WORK = ("before forward", "experts backward", "experts forward", "before backward")
SENT = ("combine backward", "dispatch forward", "dispatch backward", "combine forward")


def streams(work: list[float], sent: list[float], layers: int) -> float:
    """Seconds of so many layers forward beside as many backward: Megatron's launches on two streams, one by one.

    An operation waits for the one before it on its stream and for the one before it of its own microbatch.
    """
    free = {"work": 0.0, "sent": 0.0}
    own = {"forward": 0.0, "backward": 0.0}
    # TransformerLayerSchedulePlan.run: (stream, duration, microbatch), in the order in which the host launches them.
    launched = [
        ("sent", sent[0], "backward"),
        ("work", work[0], "forward"),
        ("work", work[1], "backward"),
        ("sent", sent[1], "forward"),
        ("sent", sent[2], "backward"),
        ("work", work[2], "forward"),
        ("sent", sent[3], "forward"),
        ("work", work[3], "backward"),
    ]
    for _ in range(layers):
        for stream, duration, microbatch in launched:
            free[stream] = own[microbatch] = max(free[stream], own[microbatch]) + duration
    return max(free.values())


def turn(c: Collective) -> int:
    return SENT.index(f"{'combine' if c.owner == 'combine' else 'dispatch'} {c.phase.value}")


def shown(work: list[float], sent: list[float], hide: float = 1.0) -> float:
    """Seconds of all-to-all that show beside a layer whose parts take these times."""
    block = layer(MEGATRON).derived
    among = inside_experts(block)
    first = {
        name: next(
            w
            for w in block.work
            if (w.op in among) is (name[:7] == "experts") and (w.phase is Phase.FORWARD) is name.endswith("forward")
        )
        for name in WORK
    }
    times = {(w.op, w.phase): np.zeros(1) for w in block.work}
    times |= {(first[name].op, first[name].phase): np.array([t]) for name, t in zip(WORK, work, strict=True)}
    before = tuple(np.array([sent[turn(c)]]) if is_dispatch(c) else np.zeros(1) for c in block.collectives)
    return float(sum(t[0] for t in paired_collectives_s(block, before, times, hide)))


@pytest.mark.parametrize(
    ("work", "sent"),
    [
        ([3.0, 4.0, 2.0, 6.0], [4.0, 5.0, 2.5, 9.0]),
        ([3.0, 4.0, 2.0, 6.0], [4.0, 0.0, 9.0, 0.0]),
        ([1.0, 8.0, 4.0, 2.0], [0.0, 0.0, 0.0, 7.0]),
    ],
)
def test_four_turns_are_what_two_streams_do(work: list[float], sent: list[float]) -> None:
    layers = 50
    assert layers * (sum(work) + shown(work, sent)) == pytest.approx(streams(work, sent, layers))


@pytest.mark.parametrize("host_s", [0.0, 1e-3])
def test_alone_a_pass_takes_as_long_as_without_the_overlap(host_s: float) -> None:
    """Also where both wait for the host more than for what is sent."""
    plain = layer(replace(MEGATRON, host_kernel_s=PAIRED_HOST * host_s), 4096)
    beside = layer(overlapping(replace(MEGATRON, host_kernel_s=host_s), "hopper"), 4096)
    none = Policies([recompute_policy(plain.derived, frozenset())])
    alone, paired = (found.passes(none, 1.0, MEGATRON)[:4, 0, 0] for found in (plain, beside))
    for index in (0, 1):  # forward, backward; then the same of what they send
        assert alone[index] + alone[index + 2] == pytest.approx(
            paired[index] + paired[index + 2] + beside.hidden_s[index, 0]
        )
    assert bool(beside.hidden_s.max() > 1e-12) is (host_s == 0)
    assert not plain.hidden_s.any()


def combined(pp: int, vpp: int, m: int, group: int, forward: float, backward: float, both: float) -> float:
    """Seconds of Megatron's combined 1F1B, event by event, of equal chunks.

    One chunk forward more in the warm-up than without, then each forward together with a backward, then backwards.
    """
    table = [(i, k) for first in range(0, m, group) for k in range(vpp) for i in range(first, min(first + group, m))]
    ahead, back = [[(i, k) for i, k in table], [(i, vpp - 1 - k) for i, k in table]]
    orders = []
    for stage in range(pp):
        warm = min(len(table), (2 * (pp - stage - 1) if pp > 1 else 0) + (vpp - 1) * group + 1)
        pairs = list(zip(ahead[warm:], back, strict=False))
        orders.append([(f, None) for f in ahead[:warm]] + pairs + [(None, b) for b in back[len(table) - warm :]])
    done: dict[tuple[str, int, int], float] = {}  # kind, microbatch, chunk of the model
    clock, place = [0.0] * pp, [0] * pp

    def arrived(stage: int, f: tuple[int, int] | None, b: tuple[int, int] | None) -> float | None:
        needs = []
        if f and stage + f[1] * pp > 0:
            needs.append(("F", f[0], stage + f[1] * pp - 1))
        if b:
            chunk = stage + b[1] * pp
            needs.append(("B", b[0], chunk + 1) if chunk + 1 < pp * vpp else ("F", b[0], chunk))
        return max((done[need] for need in needs), default=0.0) if all(need in done for need in needs) else None

    while any(place[s] < len(orders[s]) for s in range(pp)):
        for s in range(pp):
            while place[s] < len(orders[s]):
                f, b = orders[s][place[s]]
                start = arrived(s, f, b)
                if start is None:
                    break
                clock[s] = max(clock[s], start) + (both if f and b else forward if f else backward)
                done |= {(kind, what[0], s + what[1] * pp): clock[s] for kind, what in (("F", f), ("B", b)) if what}
                place[s] += 1
    return max(clock)


@pytest.mark.parametrize(("pp", "vpp"), [(1, 1), (2, 2), (4, 2), (4, 3), (8, 4)])
@pytest.mark.parametrize("times", [1, 2, 5])
@pytest.mark.parametrize("wide", [False, True])
def test_begin_and_end_of_the_pipeline_have_no_neighbour(pp: int, vpp: int, times: int, wide: bool) -> None:
    group = 2 * pp if wide and pp > 1 else pp
    m = times * group
    for forward, backward, both in ((1.0, 2.0, 2.25), (1.0, 1.5, 1.75), (1.0, 2.0, 3.0)):
        hidden = forward + backward - both
        stage = vpp * both
        whole = pp * stage + (pp - 1) * vpp * hidden
        step = formulas.pipeline_s(m, stage, whole, vpp) + formulas.alone_s(vpp * hidden, m, vpp, group)
        assert float(step) == pytest.approx(combined(pp, vpp, m, group, forward, backward, both))


def parts(framework: Framework | None = None, **degrees: int) -> Costed:
    hide = {} if framework is None else {"experts": framework.hide.experts}
    return cost(
        MODEL,
        **{"pp": 4, "vpp": 4, "ep": 8, "dp": 8, "micro": 8, "microbatches": 16, **degrees},
        cluster=B200,  # type: ignore[arg-type]
        seq_length=4096,
        overlap=hide,
    )


def test_messages_of_a_pipeline_show_and_travel_both_ways_at_once() -> None:
    plain, beside = (parts(found) for found in (None, overlapping(MEGATRON, "blackwell")))
    once = cost(
        MODEL, pp=4, vpp=4, ep=8, dp=8, micro=8, microbatches=16, cluster=B200, seq_length=4096, overlap={"pp": 0.0}
    )
    shown, all_, hidden = (seconds(found)["pipeline send/receive"] for found in (beside, once, plain))
    assert hidden < shown == pytest.approx(all_ / 2)


@pytest.mark.parametrize(("architecture", "left"), [("hopper", 0.0), ("blackwell", MEGATRON.hide.tp_backward)])
def test_before_blackwell_many_queues_cost_tensor_parallelism_its_overlap(architecture: str, left: float) -> None:
    hide = overlapping(MEGATRON, architecture).hide
    assert (hide.experts, hide.tp_backward) == (EXPERTS_HIDE, left)
    assert replace(hide, experts=0.0, tp_backward=0.0, cp_forward=0.0, cp_backward=0.0) == replace(
        MEGATRON.hide, tp_backward=0.0, cp_forward=0.0, cp_backward=0.0
    )
