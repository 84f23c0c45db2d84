"""What a stage's GPU does by itself, against the whole step."""

from __future__ import annotations

import numpy as np
import pytest

from symconfig.cost.machine import constants
from symconfig.solve.costed import costed
from symconfig.solve.predict import Timer, alone, as_found
from symconfig.solve.prospect import Setup
from tests.sample_configurations import configuration
from tests.sample_models import sample_cluster, sample_model


def asked(**degrees: int) -> Setup:
    return configuration(**degrees, micro=1, global_batch=8, seq_length=2048)


def test_one_gpu_does_all_of_its_step_by_itself() -> None:
    found = as_found(sample_model("llama2-13b"), sample_cluster("a100-80gb"), asked())
    whole = costed(found).cost
    mine = alone(found, 0)
    overhead = float(np.ravel(whole.time["overhead"])[0])
    assert float(mine.step_s[0]) + overhead == pytest.approx(float(np.ravel(whole.step_s)[0]), rel=1e-12)
    assert sum(mine.memory.values()) == pytest.approx(float(whole.stage_bytes[0, 0, 0, 0]), rel=1e-12)


@pytest.mark.parametrize("tied", [False, True], ids=["two tables", "a table on both ends"])
def test_a_timer_of_a_stage_follows_the_constants(tied: bool) -> None:
    cluster, wanted = sample_cluster("a100-80gb"), asked(tp=2, pp=4, dp=2)
    model = sample_model("llama2-13b").model_copy(update={"tie_word_embeddings": tied})
    stated = constants(cluster.kernels)
    slower = {**stated, "gemm_efficiency": np.array([stated["gemm_efficiency"], 0.5 * stated["gemm_efficiency"]])}
    seconds = Timer(model, cluster, wanted, stage=3).step_seconds(slower, 2)
    found = as_found(model, cluster, wanted)
    assert seconds[0] == pytest.approx(float(alone(found, 3).step_s[0]), rel=1e-12)
    assert seconds[1] > 1.5 * seconds[0]
