"""Schedules against the papers' closed forms and against Megatron's own count of warm-up microbatches."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from symconfig.cost import formulas
from symconfig.schedule.simulate import simulate
from symconfig.schedule.timeline import Shape, Times, held, problem
from tests.cost.support import cost, seconds
from tests.sample_models import sample_model
from tests.solve.naive import tiny

SHAPES = [(p, v, m) for p in (1, 2, 4, 8) for v in (1, 2, 3) for m in (8, 16, 64) if p > 1 or v == 1]


@pytest.mark.parametrize(("p", "v", "m"), [shape for shape in SHAPES if shape[0] > 1])
def test_microbatches_in_flight_are_megatrons_warm_up_and_one(p: int, v: int, m: int) -> None:
    schedules = pytest.importorskip("megatron.core.pipeline_parallel.schedules")
    for stage in range(p):
        rank = SimpleNamespace(
            pp_group=SimpleNamespace(size=lambda: p, rank=lambda stage=stage: stage),
            virtual_pipeline_model_parallel_size=v if v > 1 else None,
        )
        total, _, warm, _ = schedules.get_pp_rank_microbatches(m, v, p, p2p_communicator=rank)
        assert float(formulas.in_flight(stage, p, v, m, p)) == pytest.approx(min(total, warm + 1) / v)


def test_a_tied_embedding_costs_an_all_reduce_between_the_ends() -> None:
    """Megatron-LM's embedding group: the gradients of first and last stage are summed; one stage has nothing to sum."""
    small = {"num_hidden_layers": 4, "vocab_size": 32000}

    def communication(pp: int, tied: bool) -> float:
        model = tiny(tie_word_embeddings=tied, **small)
        return seconds(cost(model, pp=pp, microbatches=8))["data-parallel communication"]

    assert communication(4, False) == communication(1, True) == 0
    gradient = 4 * 32000 * 512  # fp32
    link = 300e9 * 0.8  # sample cluster: NVLink and its efficiency
    assert communication(4, True) == pytest.approx(gradient / link, rel=0.1)  # 2 (n - 1)/n of it for two ranks
    assert sample_model("gpt3-175b").tie_word_embeddings


def test_a_tied_embedding_on_one_stage_is_held_once() -> None:
    """Two stages hold it at both ends; one stage has it for the look-up and the head together."""
    small = {"num_hidden_layers": 4, "vocab_size": 32000}

    def weights(pp: int, tied: bool) -> float:
        parts = cost(tiny(tie_word_embeddings=tied, **small), pp=pp, microbatches=8).cost.memory["weights"]
        return float(parts.sum())

    assert weights(1, False) - weights(1, True) == 2 * 32000 * 512
    assert weights(2, False) == weights(2, True)


def most_layers_held(stage: int, p: int, layers: tuple[int, ...], group: int, m: int) -> int:
    """Megatron's interleaved order of passes, one after the other: the most layers' activations held at a time."""
    v = len(layers)
    order = [chunk for first in range(0, m, group) for chunk in range(v) for _ in range(min(group, m - first))]
    warm = min(m * v, 2 * (p - stage - 1) + (v - 1) * group)
    held = most = sum(layers[chunk] for chunk in order[:warm])
    for ahead, back in zip(order[warm:], order, strict=False):
        held += layers[ahead]
        most = max(most, held)
        held -= layers[v - 1 - back]
    return most


@pytest.mark.parametrize("layers", [(3, 1), (1, 3), (2, 2, 2, 1), (1, 1, 0), (3, 2, 2, 1)])
@pytest.mark.parametrize(
    ("stage", "p", "group", "m"), [(0, 4, 4, 16), (1, 2, 2, 4), (2, 4, 4, 8), (0, 4, 5, 10), (3, 4, 4, 16)]
)
def test_chunks_of_different_sizes_are_held_as_often_as_they_run(
    layers: tuple[int, ...], stage: int, p: int, group: int, m: int
) -> None:
    moments = held(stage, p, len(layers), group, m) @ np.array(layers)
    assert moments.max() == pytest.approx(most_layers_held(stage, p, layers, group, m))
    if stage == p - 1:  # the loss's: one microbatch of the last chunk, `group` of every other
        assert moments[0] == pytest.approx(group * sum(layers[:-1]) + layers[-1])


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
