"""More memory or fewer pins never make the fastest plan under the model slower.

With every option open, layouts with empty chunks among them, a search says by how much a layout that it did not try
could be faster: as much at most another search may find.
"""

from __future__ import annotations

from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from symconfig.errors import SymconfigError
from symconfig.solve.search import search
from tests.solve.naive import job, tight, tiny

MODEL = tiny()
EXPERTS = tiny(
    "qwen3-30b-a3b",
    experts={"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 384, "norm_topk_prob": True},
    intermediate_size=0,
    num_hidden_layers=4,
    vocab_size=8000,
)
GIB = st.sampled_from([0.4, 0.6, 0.8, 1.0, 1.5, 2.0, 4.0])
PINS = st.dictionaries(
    st.sampled_from(["tp", "pp", "cp", "mbs", "vpp"]), st.sampled_from(["1", "2", "4", "1..2"]), max_size=2
)
KERNELS = st.dictionaries(
    st.sampled_from(["user_buffers", "dispatcher", "cuda_graphs", "moe_overlap", "grad_dtype"]), st.integers(0, 1)
)
WORDS = {
    "user_buffers": ("off", "on"),
    "dispatcher": ("alltoall", "deepep"),
    "cuda_graphs": ("none", "outside_experts"),
    "moe_overlap": ("off", "on"),
    "grad_dtype": ("fp32", "bf16"),
}
EXAMPLES = settings(max_examples=25, deadline=None, derandomize=True)


ALLOWED = st.sampled_from([(), ("all",)])


def _fastest_s(
    model: Any, gib: float, pins: dict[str, str], allow: tuple[str, ...], risk: float = 0.05
) -> tuple[float, float]:
    """The fastest step, and with every option open what none is faster than."""
    asked = job(8, 8, 4096, pins=pins, allow=allow, limits={"memory_risk": risk})
    try:
        plan = search(model, tight(model, gib), asked)
    except SymconfigError:
        return float("inf"), float("inf")
    if plan.search.opened:  # what only a risk or an option makes fit is another question
        return float("inf"), float("inf")
    step = plan.fastest.predicted.step_s
    return step, step * (1 - max(plan.search.gap, plan.search.layout_gap) if allow else 1.0)


MODELS = st.sampled_from([MODEL, EXPERTS])


@EXAMPLES
@given(MODELS, GIB, GIB, PINS, ALLOWED)
def test_more_memory_is_never_slower(
    model: Any, one: float, other: float, pins: dict[str, str], allow: tuple[str, ...]
) -> None:
    less, more = (_fastest_s(model, gib, pins, allow) for gib in sorted((one, other)))
    assert more[1] <= less[0] * (1 + 1e-9)


@EXAMPLES
@given(MODELS, GIB, PINS, st.integers(0, 1), ALLOWED)
def test_a_loosened_pin_is_never_slower(
    model: Any, gib: float, pins: dict[str, str], which: int, allow: tuple[str, ...]
) -> None:
    loose = {name: value for place, (name, value) in enumerate(pins.items()) if place != which}
    free, pinned = (_fastest_s(model, gib, each, allow) for each in (loose, pins))
    assert free[1] <= pinned[0] * (1 + 1e-9)


@EXAMPLES
@given(MODELS, GIB, PINS, ALLOWED)
def test_a_larger_risk_is_never_slower(model: Any, gib: float, pins: dict[str, str], allow: tuple[str, ...]) -> None:
    much, little = (_fastest_s(model, gib, pins, allow, risk) for risk in (0.3, 0.02))
    assert much[1] <= little[0] * (1 + 1e-9)


@EXAMPLES
@given(MODELS, GIB, PINS, KERNELS)
def test_a_pinned_kernel_is_never_faster(model: Any, gib: float, pins: dict[str, str], kernels: dict[str, int]) -> None:
    """Of options that are stable; one that a pin opens has no counterpart in the free search."""
    words = {name: WORDS[name][place] for name, place in kernels.items() if name != "grad_dtype" or not place}

    def fastest_s(more: dict[str, str]) -> float:
        asked = job(8, 8, 4096, pins={**pins, **more}, allow=(), without=(), limits={"memory_risk": 1.0})
        try:
            plan = search(model, tight(model, gib, "h100"), asked)
        except SymconfigError:
            return float("inf")
        return float("inf") if plan.search.opened else plan.fastest.predicted.step_s

    assert fastest_s({}) <= fastest_s(words) * (1 + 1e-9)
