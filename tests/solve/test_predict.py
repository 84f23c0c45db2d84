"""A given configuration costs what the search says it costs; published runs are met."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from symconfig.cost.machine import constants
from symconfig.descriptor.job import Job
from symconfig.descriptor.load import load_cluster, load_model
from symconfig.frameworks.behaviour import changed
from symconfig.frameworks.extras import in_effect, put_on
from symconfig.frameworks.megatron.behaviour import MEGATRON
from symconfig.plans.configuration import Configuration
from symconfig.plans.plan import Candidate
from symconfig.solve.costed import costed
from symconfig.solve.predict import Timer, alone_s, as_found, predict
from symconfig.solve.prospect import Setup
from symconfig.solve.search import search
from tests.sample_configurations import configuration
from tests.sample_models import sample_cluster, sample_model

GIB = 2.0**30
PLAIN = Configuration(micro=1, global_batch=1, seq_length=1)


def _configuration(candidate: Candidate) -> Setup:
    return Setup.of(candidate, put_on(MEGATRON, "hopper", in_effect(candidate.configuration), PLAIN))


def test_the_plan_and_the_prediction_agree() -> None:
    model, cluster = load_model("llama3.1-70b"), load_cluster("h100")
    pins = {"optimizer_offload": "0", "activation_offload": "off"}
    job = Job(model="llama3.1-70b", cluster="h100", gpus=64, global_batch_size=128, seq_length=8192, pins=pins)
    plan = search(model, cluster, job, top=3)
    for candidate in plan.ranked:
        predicted = predict(model, cluster, _configuration(candidate)).predicted
        assert predicted.time == pytest.approx(candidate.predicted.time)
        assert predicted.memory == pytest.approx(candidate.predicted.memory)


# The source's runs fuse the cross-entropy.
FUSED = replace(MEGATRON, implementation=changed(MEGATRON.implementation, loss="fused"))


def test_measured_memory_of_a_pipeline() -> None:
    """MooreThreads/SimuMax v1.2, B200: 12 layers of Llama-3-70B, tp 1, pp 2, dp 4; allocated peak of each stage."""
    model = load_model("llama3.1-70b").model_copy(update={"num_hidden_layers": 12})
    prediction = predict(
        model,
        load_cluster("b200"),
        configuration(pp=2, dp=4, micro=1, global_batch=16, seq_length=4096, zero=1, framework=FUSED),
    )
    assert [peak / GIB for peak in prediction.stage_bytes] == pytest.approx([66.55, 62.97], rel=0.015)


def test_measured_memory_with_tensor_parallelism() -> None:
    """The same source: tp 8, pp 1, sequence parallelism."""
    model = load_model("llama3.1-70b").model_copy(update={"num_hidden_layers": 12})
    prediction = predict(
        model,
        load_cluster("b200"),
        configuration(tp=8, micro=1, global_batch=4, seq_length=4096, sequence_parallel=True, zero=1, framework=FUSED),
    )
    assert prediction.predicted.peak_bytes / GIB == pytest.approx(28.29, rel=0.015)


def alone_asked(**degrees: int) -> Setup:
    return configuration(**degrees, micro=1, global_batch=8, seq_length=2048)


def test_one_gpu_does_all_of_its_step_by_itself() -> None:
    found = as_found(sample_model("llama2-13b"), sample_cluster("a100-80gb"), alone_asked())
    whole = costed(found).cost
    overhead = float(np.ravel(whole.time["overhead"])[0])
    assert float(alone_s(found, 0)[0]) + overhead == pytest.approx(float(np.ravel(whole.step_s)[0]), rel=1e-12)


@pytest.mark.parametrize("tied", [False, True], ids=["two tables", "a table on both ends"])
def test_a_timer_of_a_stage_follows_the_constants(tied: bool) -> None:
    cluster, wanted = sample_cluster("a100-80gb"), alone_asked(tp=2, pp=4, dp=2)
    model = sample_model("llama2-13b").model_copy(update={"tie_word_embeddings": tied})
    stated = constants(cluster.kernels)
    slower = {**stated, "gemm_efficiency": np.array([stated["gemm_efficiency"], 0.5 * stated["gemm_efficiency"]])}
    seconds = Timer(model, cluster, wanted, stage=3).step_seconds(slower, 2)
    found = as_found(model, cluster, wanted)
    assert seconds[0] == pytest.approx(float(alone_s(found, 3)[0]), rel=1e-12)
    assert seconds[1] > 1.5 * seconds[0]
