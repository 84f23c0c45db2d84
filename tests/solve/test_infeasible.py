"""A refusal names what binds and a change that would fit; the fewest GPUs are the fewest."""

from __future__ import annotations

import re

import pytest

from symconfig.descriptor.load import load_cluster, load_model
from symconfig.errors import InfeasibleError, InputError, Problem
from symconfig.solve.search import search
from tests.sample_models import sample_cluster
from tests.solve.naive import job, tight, tiny

MODEL = tiny()
MOST_GPUS = 2**20  # of a job; no division of a small model has so many


def refusal(*args: object, **fields: object) -> Problem:
    with pytest.raises(InfeasibleError) as caught:
        search(*args, **fields)  # type: ignore[arg-type]
    assert caught.value.exit_code == 1
    return caught.value.problems[0]


def test_too_little_memory_names_the_leanest_candidate_and_what_fills_it() -> None:
    problem = refusal(MODEL, tight(MODEL, 0.5), job(1, 4))
    assert re.search(r"needs [\d.]+ GiB on a GPU with [\d.]+ GiB usable", problem.what)
    assert "most of it" in problem.what
    assert "micro-batch 1" in problem.what


def test_a_host_too_small_for_what_is_offloaded_is_named_and_not_the_gpu() -> None:
    cluster = load_cluster("a100-40gb")
    problem = refusal(load_model("llama2-70b"), cluster, job(8, 8, 4096, backend="deepspeed", pins={"tp": "1"}))
    found = re.search(r"pins ([\d.]+) GiB of the host for each, of ([\d.]+) GiB", problem.what)
    assert found, problem.what
    room = cluster.host.memory_bytes.value / cluster.gpus_per_node / 2**30
    assert float(found[2]) < min(float(found[1]), room)


@pytest.mark.parametrize(
    ("pins", "sentence"),
    [
        ({"tp": "3"}, "pins.tp: does not divide 8 GPUs (got 3). Try: --pin tp=2 or --pin tp=4."),
        ({"dp": "5..7"}, "pins.dp: does not divide 8 GPUs (got 5..7). Try: --pin dp=4 or --pin dp=8."),
        ({"mbs": "5"}, "pins.mbs: does not divide a batch of 8 (got 5). Try: --pin mbs=2 or --pin mbs=4."),
        ({"ep": "2"}, "pins.ep: splits experts, and this model has none (got 2, need 1)."),
        (
            {"tp": "4", "pp": "2..4", "dp": "2"},
            "tp x pp x dp must divide the number of GPUs, with the pins tp=4, pp=2..4, dp=2 it cannot "
            "(got 16 or more, need a divisor of 8). Try: fewer pins.",
        ),
    ],
)
def test_pins_that_no_division_has_are_named_with_the_next_ones(pins: dict[str, str], sentence: str) -> None:
    assert str(refusal(MODEL, sample_cluster(), job(8, 8, pins=pins))) == sentence


def test_a_batch_that_no_replicas_share_is_named_with_the_next_ones_that_run() -> None:
    """DeepSpeed's ZeRO has a replica on every GPU."""
    asked = job(8, 30, backend="deepspeed", pins={"tp": "1", "cp": "1"})
    assert refusal(MODEL, sample_cluster(), asked).hint == "--global-batch-size 24 or --global-batch-size 32"
    for size in (24, 32):
        assert (
            search(MODEL, sample_cluster(), asked.model_copy(update={"global_batch_size": size})).best.configuration.dp
            == 8
        )
    assert "--global-batch-size" not in str(refusal(MODEL, sample_cluster(), job(MOST_GPUS, 8)).hint)


@pytest.mark.parametrize(("gib", "gpus", "seq_length"), [(0.5, 1, 2048), (0.5, 1, 4096), (0.2, 2, 8192)])
def test_the_change_that_is_proposed_fits(gib: float, gpus: int, seq_length: int) -> None:
    cluster, asked = tight(MODEL, gib), job(gpus, 4, seq_length)
    hint = refusal(MODEL, cluster, asked).hint or ""
    more, shorter = re.fullmatch(r"(\d+) GPUs", hint), re.fullmatch(r"--seq-length (\d+)", hint)
    assert more or shorter, hint
    if more:
        changed = asked.model_copy(update={"gpus": int(more[1])})
    else:
        assert shorter
        changed = asked.model_copy(update={"seq_length": int(shorter[1])})
    assert search(MODEL, cluster, changed).best.predicted.device_bytes <= gib * 2**30


def test_a_degree_that_does_not_divide_is_named() -> None:
    older = job(8, 8, pins={"tp": "8"}, megatron_version="core_v0.15.3")
    assert "key/value heads" in refusal(MODEL, sample_cluster(), older).what
    assert "batch" in refusal(MODEL, sample_cluster(), job(8, 7, pins={"dp": "8"})).what


def test_more_than_the_cluster_has_and_half_a_node_are_wrong_input() -> None:
    whole = r"need a multiple of 8\)\. Try: 8 or 16, or --set gpus_per_node=6 if a node has 6\."
    with pytest.raises(InputError, match=whole):
        search(MODEL, sample_cluster(), job(12, 12))
    with pytest.raises(InputError, match=r"Try: 8 or 16\."):
        search(MODEL, sample_cluster(), job(13, 13))
    small = sample_cluster().model_copy(update={"max_gpus": 8})
    with pytest.raises(InputError, match="at most 8"):
        search(MODEL, small, job(16, 16))


def test_adapters_that_megatron_bridge_cannot_train_are_named() -> None:
    """The sample model's adapters are on q and v alone: CanonicalLoRA calls one for each of q, k and v."""
    problem = refusal(tiny("llama2-13b-lora"), sample_cluster(), job(8, 8))
    assert problem.hint == "--backend deepspeed"
    assert "q, k and v" in problem.what


@pytest.mark.parametrize(("gib", "seq_length"), [(2.0, 2048), (0.6, 4096), (0.35, 4096), (0.3, 8192)])
def test_auto_is_the_smallest_size_that_has_a_plan(gib: float, seq_length: int) -> None:
    cluster = tight(MODEL, gib)

    def fits(gpus: int) -> bool:
        try:
            search(MODEL, cluster, job(gpus, 64, seq_length), top=1)
        except InfeasibleError:
            return False
        return True

    smallest = next(gpus for gpus in (1, 2, 4, 8, 16, 32) if fits(gpus))
    plan = search(MODEL, cluster, job("auto", 64, seq_length))
    assert plan.job.gpus == plan.best.configuration.world_size == smallest


def test_a_pin_of_modules_that_the_model_does_not_have_names_those_that_it_has() -> None:
    """The norms of dense layers are part of Transformer Engine's linear ones, which recompute none alone."""
    problem = refusal(MODEL, sample_cluster("a100-80gb"), job(1, 4, pins={"recompute": "selective:layernorm"}))
    assert problem.field == "pins.recompute"
    assert problem.need == "none, full, or selective of core_attn, mlp"
