"""A rank run for real, on a CPU, with Megatron's own code; and its measurements as a file that is read back."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import pytest

from symconfig.descriptor.measurements import load_measurements
from symconfig.descriptor.write import measurements_yaml
from symconfig.errors import InputError
from symconfig.measured.cases import case
from symconfig.measured.gpu.measure import Measurement, measure
from symconfig.measured.gpu.predict import as_measured, expected
from symconfig.measured.gpu.rank import choose
from symconfig.measured.gpu.rows import document, row
from symconfig.measured.gpu.session import Step
from symconfig.measured.read import read
from symconfig.measured.runs import runs
from symconfig.measured.score import source
from symconfig.plans.plan import Recompute
from symconfig.report.grid import plain
from symconfig.report.measure import blocks, to_dict
from symconfig.solve.costed import costed
from symconfig.solve.predict import as_found
from symconfig.solve.restore import restore
from tests.measured.gpu.support import answered, small_folder
from tests.verify import megatron_support


@pytest.fixture(scope="module")
def ran(tmp_path_factory: pytest.TempPathFactory) -> Measurement:
    """The last stage of two chunks: sequence-parallel, so that every kind of collective is in it, with recompute."""
    megatron = megatron_support.source()
    folder = tmp_path_factory.mktemp("plan") / "out"
    again = Recompute("selective", ("layernorm", "mlp"))
    plan = small_folder(folder, tp=2, pp=2, vpp=2, dp=2, sequence_parallel=True, recompute=again)
    compiled = folder.with_name("compiled")
    with pytest.MonkeyPatch.context() as monkeypatch:
        monkeypatch.setenv("TORCH_EXTENSIONS_DIR", str(compiled))
        done = measure(folder, plan, choose(plan, "7", "3", "local", "cpu"), megatron)
    assert not list(compiled.glob("*/*.so")), "on a CPU nothing is worth compiling"
    return done


def test_three_steps_run_with_finite_losses(ran: Measurement) -> None:
    assert ran.failed is None
    assert len(ran.taken.steps) == 3
    assert ran.run.microbatches == 4
    for step in ran.taken.steps:
        assert len(step.forward_s) == len(step.backward_s) == 2 * 4  # chunks and microbatches
        assert len(step.losses) == 4
        assert all(map(math.isfinite, step.losses))
    norms = [step.gradient_norm for step in ran.taken.steps]
    assert all(norm is not None and 0 < norm < 1e6 for norm in norms)
    assert ran.finite
    assert ran.passes is not None
    assert ran.passes.forward_s > 0


def test_the_table_says_what_a_cpu_shows_and_what_is_left_out(ran: Measurement) -> None:
    text = plain(blocks(ran))
    assert "pipeline stage 1 of 2 (from 0), 2 layers in 2 chunks, the head" in text
    assert "the seconds are of this CPU" in text
    assert "Left out on both sides: collectives" in text
    assert "NCCL" in text
    assert to_dict(ran)["measured"]["peak_bytes"] is None


def test_experts_get_tokens_without_a_network(tmp_path: Path) -> None:
    megatron = megatron_support.source()
    plan = small_folder(tmp_path / "out", "mixtral-8x7b", tp=1, pp=1, ep=2, dp=2)
    found = measure(tmp_path / "out", plan, choose(plan, "1", "2", None, "cpu"), megatron)
    assert found.failed is None
    assert found.finite
    assert found.taken.steps[-1].losses[0] < found.taken.steps[0].losses[0]  # the same batch again
    assert "--moe-router-force-load-balancing" in plain(blocks(found))


def test_what_megatron_refuses_is_told_in_its_words(tmp_path: Path) -> None:
    megatron = megatron_support.source()
    plan = small_folder(tmp_path / "out", tp=1, pp=2, dp=2)
    path = tmp_path / "out" / "megatron_args.txt"
    path.write_text(path.read_text().replace("--num-layers 4", "--num-layers 5"))
    found = measure(tmp_path / "out", plan, choose(plan, "0", "2", None, "cpu"), megatron)
    assert found.failed is not None
    assert "validate_args" in found.failed


def test_the_file_is_read_back_and_holds_what_was_measured(ran: Measurement, tmp_path: Path) -> None:
    found = answered(ran.plan, dict(ran.taken.args), rank="7")
    path = tmp_path / "mine.yaml"
    path.write_text(measurements_yaml(document(found)))
    file = load_measurements(path)
    scored = source("mine", file)
    assert scored.skipped == ()
    (item,) = scored.rows
    assert item.time is not None
    assert item.memory is not None
    assert item.time[1] / item.time[0] == pytest.approx(1.1, rel=1e-3)
    assert item.memory[0] == pytest.approx(found.expected.peak_bytes, rel=1e-9)
    assert item.memory[1] == pytest.approx(found.expected.peak_bytes + 2**30, rel=1e-3)
    assert item.case.assumed == ()


def test_the_row_is_predicted_with_the_framework_that_measure_used(ran: Measurement) -> None:
    found = answered(ran.plan, dict(ran.taken.args), rank="7")
    what = case("mine", row(found))
    mine = as_measured(ran.plan, "local", "flash")
    assert what.configuration.framework == mine.request.framework
    assert as_found(what.model, what.cluster, what.configuration).split.chunks == mine.split.chunks


def test_calibrate_takes_the_file(ran: Measurement, tmp_path: Path) -> None:
    found = answered(ran.plan, dict(ran.taken.args), rank="7")
    path = tmp_path / "mine.yaml"
    path.write_text(measurements_yaml(document(found)))
    ((cluster, timed),) = runs([path]).timed
    assert cluster.name == "a100-80gb"
    assert [item.row.measured.stage for _, item in timed] == [1]
    assert read([str(path)])[0][0] == "mine"


def test_calibrate_takes_the_file_of_a_cluster_of_ones_own(ran: Measurement, tmp_path: Path) -> None:
    mine = ran.plan.cluster.model_copy(update={"name": "basement", "aliases": ()})
    found = answered(replace(ran.plan, cluster=mine), dict(ran.taken.args), rank="7")
    path = tmp_path / "mine.yaml"
    path.write_text(measurements_yaml(document(found)))
    ((cluster, timed),) = runs([path], mine).timed
    assert cluster.name == "basement"
    assert len(timed) == 1
    with pytest.raises(InputError, match="no GPU of the zoo"):
        runs([path])


def test_running_out_of_memory_is_an_answer(ran: Measurement) -> None:
    found = answered(ran.plan, dict(ran.taken.args), out_of_memory="Tried to allocate 2.00 GiB", steps=())
    assert not found.fits
    assert "It does not fit on this GPU: Tried to allocate 2.00 GiB" in plain(blocks(found))
    assert document(found).rows[0].measured.oom


def test_what_makes_a_gpu_slower_than_planned_is_told(ran: Measurement) -> None:
    nan = (Step((1.0,) * 8, (1.0,) * 8, 1.0, (float("nan"),) * 4, None),) * 3
    found = answered(ran.plan, dict(ran.taken.args), rank="7", steps=nan, not_compiled="InvalidCxxCompiler: no g++")
    text = plain(blocks(found))
    assert "operators ran one by one: InvalidCxxCompiler: no g++" in text
    assert "is not a number" in text
    assert to_dict(found)["steps"][0]["losses"] is None  # JSON has no NaN


def test_another_gpu_writes_no_row_of_the_plans_cluster(ran: Measurement) -> None:
    other = {"gpu": "NVIDIA H200", "capability": [9, 0], "compute_units": 132}
    found = answered(ran.plan, dict(ran.taken.args), software=other)
    assert found.other_gpu == "NVIDIA H200"
    with pytest.raises(InputError, match="not of the plan's type"):
        document(found)


def test_expected_without_network_is_no_more_than_the_whole_step(ran: Measurement) -> None:
    plan = ran.plan
    hope = [expected(plan, stage, "transformer_engine", "flash") for stage in range(2)]
    m = plan.best.batch.num_microbatches
    slowest = max(m * (each.forward_s + each.backward_s) + each.optimizer_s for each in hope)
    assert 0 < slowest < float(costed(restore(plan, plan.best)).cost.step_s.max())
