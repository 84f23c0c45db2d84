"""The pipeline's formula, with which the search compares candidates, against the schedules that Megatron runs."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from symconfig.cost import formulas
from symconfig.schedule.schedules import Shape, problem
from symconfig.schedule.simulate import simulate
from symconfig.schedule.timeline import Times


@settings(max_examples=80, deadline=None)
@given(
    p=st.integers(1, 16),
    v=st.integers(1, 8),
    m=st.integers(1, 64),
    more=st.integers(0, 8),
    received=st.floats(0.0, 0.01),
    recomputed=st.booleans(),
)
def test_uniform_stages_within_a_hundredth(
    p: int, v: int, m: int, more: int, received: float, recomputed: bool
) -> None:
    """received: seconds for which a message occupies its receiver, as a share of a stage's passes of a microbatch.

    A stage receives an activation and a gradient for each of its chunks; the model's ends one less. Interleaved, inner
    stages run ahead far enough for that not to delay them, which the formula does not know: it is m messages too long.
    """
    group = p + more
    assume(problem(Shape(p, v, m, group)) is None)
    passes = np.full((p, v), 1.0 / v)
    times = Times(passes, recomputed * passes, passes, passes, busy_s=received * (3 + recomputed))
    messages = np.full(p, 2.0 * v)
    messages[0] -= 1
    messages[-1] -= 1
    seconds = 3.0 + recomputed + times.busy_s * messages * (p > 1)
    formula = float(formulas.pipeline_s(float(m), seconds.max(), seconds.sum(), float(v)))
    assert formula == pytest.approx(simulate(times, m, group).step_s, rel=0.01)
