"""A plan's pipeline simulated: against the stages' own sums and against the formula that the search uses."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from symconfig.cost.lattice import Array
from symconfig.cost.machine import constants
from symconfig.cost.optimizer import between_ends_s
from symconfig.descriptor.load import load_cluster, load_model
from symconfig.frameworks.megatron.behaviour import MEGATRON
from symconfig.schedule.timeline import Start
from symconfig.solve.costed import EXCHANGE, costed, refined_s, refined_time, timeline, times
from symconfig.solve.pieces import WHOLE
from symconfig.solve.predict import Timer, as_found, predict
from symconfig.solve.prospect import Prospect, recomputing
from tests.sample_configurations import configuration
from tests.sample_models import sample_cluster
from tests.solve.naive import tiny


def found(**fields: Any) -> Prospect:
    """An odd number of layers with a wide vocabulary, so that no two stages are alike."""
    model = tiny(num_hidden_layers=18, vocab_size=64000)
    asked = {"tp": 1, "pp": 4, "vpp": 2, "dp": 2, "micro": 1, "global_batch": 32, "seq_length": 2048, **fields}
    return as_found(model, sample_cluster(), configuration(**asked))


@pytest.mark.parametrize("vpp", [1, 2, 4])
@pytest.mark.parametrize(
    "how",
    [
        {},
        {"modules": frozenset({"core_attn"})},
        {"modules": WHOLE.modules},
        recomputing(WHOLE, 1),
        {"activation_offload": True},
    ],
    ids=["kept", "selective", "full", "first layers", "offloaded"],
)
def test_the_chunks_of_a_stage_take_what_the_stage_takes(vpp: int, how: dict[str, Any]) -> None:
    one = found(vpp=vpp, **how)
    parts = costed(one)
    made = times(one, parts)
    stages = (made.forward + made.recompute + made.backward + made.weight).sum(axis=1)
    expected = parts.sums.seconds[:, 0, 0].copy()
    if one.block_layers:
        whole = costed(one.having(**recomputing(WHOLE))).sums.seconds[:, 0, 0]
        layers = np.array([sum(kind == "dense" for kind in sum(one.split.stage(i), ())) for i in range(4)])
        expected += (whole - expected) * vpp / layers  # of embedding and head nothing runs again
    np.testing.assert_allclose(stages, expected, rtol=1e-12)
    assert all((array >= 0).all() for array in (made.forward, made.recompute, made.backward, made.weight))


ALIKE = [  # of equal stages but for the ends: model, tp, pp, vpp, microbatches, dp
    ("llama2-7b", 1, 4, 1, 4, 8),
    ("llama2-7b", 1, 8, 2, 8, 8),
    ("llama3.1-70b", 4, 8, 1, 64, 64),
    ("llama3.1-70b", 4, 16, 5, 16, 8),
    ("llama3.1-70b", 4, 4, 10, 32, 1),
    ("gpt3-175b", 8, 16, 1, 16, 1),
    ("gpt3-175b", 4, 4, 8, 4, 64),
    ("gpt3-175b", 8, 16, 6, 32, 8),
    ("mixtral-8x7b", 2, 8, 2, 16, 64),
    ("qwen3-32b", 2, 2, 8, 4, 64),
]


@pytest.mark.parametrize("demanded", [False, True])
@pytest.mark.parametrize(("name", "tp", "pp", "vpp", "microbatches", "dp"), ALIKE)
def test_the_formula_of_the_search_is_the_simulation_where_stages_are_alike(
    name: str, tp: int, pp: int, vpp: int, microbatches: int, dp: int, demanded: bool
) -> None:
    asked = configuration(
        tp=tp,
        pp=pp,
        dp=dp,
        micro=1,
        global_batch=dp * microbatches,
        seq_length=4096,
        vpp=vpp,
        sequence_parallel=tp > 1,
        zero=int(dp > 1),
        framework=replace(MEGATRON, gathers=Start.ON_DEMAND if demanded else Start.AHEAD),
    )
    one = as_found(load_model(name), load_cluster("h100"), asked)
    formula = float(costed(one).cost.step_s[0, 0, 0])
    assert refined_s(one, costed(one)) == pytest.approx(formula, rel=0.01)
    if vpp == 1:
        assert refined_s(one, costed(one)) == pytest.approx(formula, rel=1e-4)


def test_a_table_of_both_ends_is_summed_when_both_have_reduced() -> None:
    def shown(tied: bool) -> tuple[float, float, Array]:
        """Of the step, and of the sum between the ends; and when the stages are done."""
        model = tiny(num_hidden_layers=8, vocab_size=128000).model_copy(update={"tie_word_embeddings": tied})
        one = as_found(model, sample_cluster(), configuration(pp=4, dp=2, micro=1, global_batch=32, seq_length=2048))
        parts = costed(one)
        between = float(between_ends_s(parts.sums, parts.points, parts.setting)[0])
        return refined_time(one, parts)[EXCHANGE], between, timeline(one, parts).finish_s

    (apart, none, _), (together, between, done) = shown(False), shown(True)
    assert none == 0 < between
    assert together - apart == pytest.approx(max(0.0, max(done[0], done[-1]) + between - done.max()), rel=1e-6)


def test_other_constants_scale_the_simulation_as_they_scale_the_formula() -> None:
    """So that a fit may weigh many constants without simulating each."""
    model, cluster = tiny(num_hidden_layers=18, vocab_size=64000), sample_cluster()
    asked = configuration(pp=4, dp=2, micro=1, global_batch=32, seq_length=2048, vpp=2, zero=1)
    slower = {"gemm_efficiency": 0.8 * constants(cluster.kernels)["gemm_efficiency"]}
    timed = float(Timer(model, cluster, asked).step_seconds({k: np.array([v]) for k, v in slower.items()}, 1)[0])
    kernels = cluster.kernels
    quantity = kernels.gemm_efficiency.model_copy(update={"value": slower["gemm_efficiency"]})
    other = cluster.model_copy(update={"kernels": kernels.model_copy(update={"gemm_efficiency": quantity})})
    assert timed == pytest.approx(predict(model, other, asked).predicted.step_s, rel=2e-3)
