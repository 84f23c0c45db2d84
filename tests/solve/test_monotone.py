"""More memory or fewer pins never make the fastest plan under the model slower.

With every option open another search may find what is a tie.
"""

from __future__ import annotations

from functools import cache

from hypothesis import assume, given, settings
from hypothesis import strategies as st

from symconfig.errors import SymconfigError
from symconfig.solve.choice import TIE
from symconfig.solve.search import search
from tests.sampled import sampled
from tests.solve.naive import job, tight, tiny
from tests.solve.test_brute_force import EXPERTS

MODEL = tiny()
MIXTURE = tiny("qwen3-30b-a3b", experts=EXPERTS, intermediate_size=0, num_hidden_layers=4, vocab_size=8000)
MODELS = {"dense": MODEL, "experts": MIXTURE}
NAMES = st.sampled_from(sorted(MODELS))
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
EXAMPLES = settings(max_examples=len(sampled(range(25), 2)), deadline=None, derandomize=True)


ALLOWED = st.sampled_from([(), ("all",)])
RISK = 0.05


def _fastest_s(
    model: str, gib: float, pins: dict[str, str], allow: tuple[str, ...], risk: float = RISK
) -> tuple[float, float]:
    """Return the fastest step, and with every option open what none is faster than."""
    return _searched_s(model, gib, tuple(sorted(pins.items())), allow, risk)


@cache
def _searched_s(
    name: str, gib: float, pins: tuple[tuple[str, str], ...], allow: tuple[str, ...], risk: float
) -> tuple[float, float]:
    """Search for `_fastest_s`: with a pin fewer, jobs of several examples are the same one."""
    model = MODELS[name]
    asked = job(8, 8, 4096, pins=dict(pins), allow=allow, limits={"memory_risk": risk})
    try:
        plan = search(model, tight(model, gib), asked)
    except SymconfigError:
        return float("inf"), float("inf")
    if plan.search.opened:  # what only a risk or an option makes fit is another question
        return float("inf"), float("inf")
    step = plan.fastest.predicted.step_s
    return step, step / TIE  # what is no further apart counts as a tie


@EXAMPLES
@given(NAMES, GIB, GIB, PINS, st.integers(0, 1), st.sampled_from([0.02, 0.3]), ALLOWED)
def test_more_memory_fewer_pins_or_a_larger_risk_is_never_slower(
    model: str, one: float, other: float, pins: dict[str, str], which: int, risk: float, allow: tuple[str, ...]
) -> None:
    """One search of each job is held against those of three jobs beside it."""
    less, more = sorted((one, other))
    base = _fastest_s(model, less, pins, allow)
    loose = {name: value for place, (name, value) in enumerate(pins.items()) if place != which}
    if more > less:
        assert _fastest_s(model, more, pins, allow)[1] <= base[0] * (1 + 1e-9)
    if loose != pins:
        assert _fastest_s(model, less, loose, allow)[1] <= base[0] * (1 + 1e-9)
    weighed = {RISK: base, risk: _fastest_s(model, less, pins, allow, risk)}
    assert weighed[max(weighed)][1] <= weighed[min(weighed)][0] * (1 + 1e-9)


@settings(EXAMPLES, max_examples=len(sampled(range(25), 3)))
@given(NAMES, GIB, PINS, KERNELS)
def test_a_pinned_kernel_is_never_faster(name: str, gib: float, pins: dict[str, str], kernels: dict[str, int]) -> None:
    """Of options that are stable; one that a pin opens has no counterpart in the free search."""
    words = {kind: WORDS[kind][place] for kind, place in kernels.items() if kind != "grad_dtype" or not place}
    model = MODELS[name]

    def fastest_s(more: dict[str, str]) -> float:
        asked = job(8, 8, 4096, pins={**pins, **more}, allow=(), without=(), limits={"memory_risk": 1.0})
        try:
            plan = search(model, tight(model, gib, "h100"), asked)
        except SymconfigError:
            return float("inf")
        return float("inf") if plan.search.opened else plan.fastest.predicted.step_s

    assume(words)
    assert fastest_s({}) <= fastest_s(words) * (1 + 1e-9)
