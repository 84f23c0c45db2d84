"""Schedules against the papers' closed forms and against Megatron's own count of warm-up microbatches."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest

from symconfig.cost import formulas
from symconfig.schedule.schedules import held
from tests.cost.support import cost, seconds
from tests.sample_models import sample_model
from tests.solve.naive import tiny

SHAPES = [(p, v, m) for p in (1, 2, 4, 8) for v in (1, 2, 3) for m in (8, 16, 64) if p > 1 or v == 1]


@pytest.mark.parametrize(("p", "v", "m"), SHAPES)
def test_bubble_of_equal_stages(p: int, v: int, m: int) -> None:
    """arXiv 2104.04473, section 2.2: (p - 1) / m of the ideal time, and 1/v of that when interleaved."""
    each = 0.125
    step = float(formulas.pipeline_s(m, each, p * each, v))
    assert step / (m * each) - 1 == pytest.approx((p - 1) / (v * m))


def one_forward_one_backward(forward: list[float], backward: list[float], m: int) -> float:
    """Seconds of 1F1B, event by event: each stage does its operations in Megatron's order as soon as it can."""
    p = len(forward)
    orders = []
    for stage in range(p):
        warm = min(m, p - stage - 1)
        steady = [op for i in range(m - warm) for op in (("F", warm + i), ("B", i))]
        orders.append([("F", i) for i in range(warm)] + steady + [("B", i) for i in range(m - warm, m)])
    done: dict[tuple[str, int, int], float] = {}
    clock, place = [0.0] * p, [0] * p
    while any(place[s] < len(orders[s]) for s in range(p)):
        for s in range(p):
            while place[s] < len(orders[s]):
                kind, i = orders[s][place[s]]
                before = ("F", i, s - 1) if kind == "F" else ("B", i, s + 1)
                edge = before[2] in (-1, p)
                if not edge and before not in done:
                    break
                start = max(clock[s], 0.0 if edge else done[before])
                clock[s] = done[kind, i, s] = start + (forward[s] if kind == "F" else backward[s])
                place[s] += 1
    return max(clock)


@pytest.mark.parametrize(("p", "m"), [(2, 4), (4, 8), (4, 3), (8, 8), (3, 17)])
def test_1f1b_event_by_event(p: int, m: int) -> None:
    simulated = one_forward_one_backward([1.0] * p, [2.0] * p, m)
    assert float(formulas.pipeline_s(m, 3.0, 3.0 * p, 1)) == pytest.approx(simulated)


@pytest.mark.parametrize("heavy", [0, 1, 2, 3])
def test_one_heavy_stage_binds_wherever_it_is(heavy: int) -> None:
    forward = [2.0 if stage == heavy else 1.0 for stage in range(4)]
    backward = [2 * seconds for seconds in forward]
    simulated = one_forward_one_backward(forward, backward, 16)
    total = sum(forward) + sum(backward)
    # The closed form lets the whole fill and drain wait for each other; a heavy first stage hides some of it.
    assert 1.0 <= float(formulas.pipeline_s(16, 6.0, total, 1)) / simulated <= 1.0 + 1 / 16


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


@pytest.mark.parametrize(("p", "v"), [(2, 2), (4, 3), (8, 2)])
def test_the_first_stage_holds_the_factor_of_the_paper(p: int, v: int) -> None:
    """arXiv 2205.05198, section 4.2.3: L layers' activations, interleaved times 1 + (p - 1)/(p m) for m chunks."""
    assert float(formulas.in_flight(0, p, 1, 64, p)) == p  # of L/p layers each: all L
    assert float(formulas.in_flight(0, p, v, 64, p)) == pytest.approx(p * (1 + (p - 1) / (p * v)))


def test_few_microbatches_fill_no_pipeline() -> None:
    assert float(formulas.in_flight(0, 8, 1, 3, 8)) == 3
    assert float(formulas.in_flight(7, 8, 1, 3, 8)) == 1
    assert float(formulas.in_flight(0, 8, 4, 8, 8)) <= 8


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
