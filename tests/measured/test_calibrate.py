"""`symconfig calibrate`: runs made by the model itself under other constants, which must come back."""

from __future__ import annotations

from dataclasses import dataclass
from math import log
from pathlib import Path

import pytest

from symconfig.cost.machine import constants
from symconfig.descriptor.cluster import ClusterDescriptor
from symconfig.descriptor.load import load_cluster
from symconfig.measured.calibrate import BOUNDS, FAR, Calibration, priors
from symconfig.measured.cases import case
from symconfig.measured.runs import calibrations, runs
from symconfig.solve.predict import predict
from tests.cli.support import Run

TRUE = {"gemm_efficiency": 0.61, "hbm_efficiency": 0.9, "link_efficiency": 0.5}


@dataclass(frozen=True)
class Shape:
    name: str
    layers: int
    hidden: int
    heads: int


SHAPES = (Shape("small", 24, 2048, 16), Shape("middle", 32, 4096, 32), Shape("large", 40, 5120, 40))
PLANS = ((1, 1, 8), (2, 1, 4), (4, 1, 2), (8, 1, 1), (2, 2, 2), (1, 4, 2))


def row(shape: Shape, plan: tuple[int, int, int], micro: int, seconds: float, gpu: str = "a100-sxm4-80gb") -> str:
    tp, pp, dp = plan
    return f"""
  - id: {shape.name}-{tp}-{pp}-{micro}
    task: pretrain
    model: {{name: {shape.name}, num_hidden_layers: {shape.layers}, hidden_size: {shape.hidden},
            intermediate_size: {4 * shape.hidden}, num_attention_heads: {shape.heads}, vocab_size: 32000}}
    cluster: {{gpu: {gpu}, gpus: 8}}
    software: {{name: Megatron-LM, version: none}}
    parallel: {{tp: {tp}, pp: {pp}, dp: {dp}}}
    batch: {{micro: {micro}, global: 128, seq_length: 2048}}
    options: {{precision: bf16, recompute: none, zero_stage: 1, attention_kernel: flash, sequence_parallel: true}}
    measured: {{step_s: {seconds!r}}}
    confidence: exact
"""


HEAD = "schema: symconfig.measurements/1\nsource: {name: made for this test}\nrows:"


def written(path: Path, rows: list[str]) -> Path:
    path.write_text(HEAD + "".join(rows), encoding="utf-8")
    return path


def machine_as_measured(cluster: ClusterDescriptor) -> ClusterDescriptor:
    """The cluster as it truly is in these tests."""
    kernels = cluster.kernels
    update = {name: getattr(kernels, name).model_copy(update={"value": value}) for name, value in TRUE.items()}
    return cluster.model_copy(update={"kernels": kernels.model_copy(update=update)})


@pytest.fixture(scope="module")
def measured(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What the true machine takes."""
    tmp_path = tmp_path_factory.mktemp("measured")
    asked = [(shape, plan, micro) for shape in SHAPES for plan in PLANS for micro in (1, 2)]
    blank = written(tmp_path / "blank.yaml", [row(*what, 1.0) for what in asked])
    true = machine_as_measured(load_cluster("a100-80gb"))
    from symconfig.descriptor.measurements import load_measurements

    cases = [case("blank", found) for found in load_measurements(blank).rows]
    seconds = [predict(c.model, true, c.configuration).predicted.step_s for c in cases]
    return written(tmp_path / "runs.yaml", [row(*what, s) for what, s in zip(asked, seconds, strict=True)])


@pytest.fixture(scope="module")
def from_scratch(measured: Path) -> Calibration:
    return calibrations(runs([measured], load_cluster("a100-80gb")), "made up", from_scratch=True)[0]


@pytest.fixture(scope="module")
def from_priors(measured: Path) -> Calibration:
    return calibrations(runs([measured], load_cluster("a100-80gb")), "", from_scratch=False)[0]


def test_constants_come_back_and_models_that_were_left_out_are_predicted(from_scratch: Calibration) -> None:
    found = from_scratch
    assert found.kernels.gemm_efficiency.value == pytest.approx(TRUE["gemm_efficiency"], rel=0.05)
    # Links are a small part of these steps, so their rate goes only part of the way from what is believed of the GPU.
    prior = priors(load_cluster("a100-80gb"))["link_efficiency"]
    near = prior.value * (1 - 0.4 * prior.uncertainty)
    assert TRUE["link_efficiency"] < found.kernels.link_efficiency.value < near
    assert found.rows == 36
    assert found.before > 0.1
    assert found.after < 0.015
    assert found.left_out < 0.025
    # What the cluster says outside its kernels stays, and each fitted constant names the command.
    assert found.profile.gpu == load_cluster("a100-80gb").gpu
    assert found.kernels.gemm_efficiency.source == "fitted: made up"


def test_from_scratch_does_not_depend_on_what_the_cluster_says(measured: Path, from_scratch: Calibration) -> None:
    cluster = load_cluster("a100-80gb")
    wrong = cluster.model_copy(
        update={
            "kernels": cluster.kernels.model_copy(
                update={"gemm_efficiency": cluster.kernels.gemm_efficiency.model_copy(update={"value": 0.3})}
            )
        }
    )
    other = calibrations(runs([measured], wrong), "", from_scratch=True)[0]
    assert constants(other.kernels) == constants(from_scratch.kernels)


def test_one_run_moves_the_constants_towards_it_and_no_further_than_it_says(measured: Path, tmp_path: Path) -> None:
    lines = measured.read_text(encoding="utf-8").split("\n  - id: ")
    one = written(tmp_path / "one.yaml", ["\n  - id: " + lines[1]])
    cluster = load_cluster("a100-80gb")
    found = calibrations(runs([one], cluster), "", from_scratch=False)[0]
    assert found.left_out is None
    assert found.after < 0.6 * found.before
    assert TRUE["gemm_efficiency"] < found.kernels.gemm_efficiency.value < cluster.kernels.gemm_efficiency.value


def test_every_constant_of_the_zoo_lies_within_its_bounds() -> None:
    from symconfig.descriptor.load import zoo_clusters

    for name in zoo_clusters():
        for constant, value in constants(load_cluster(name).kernels).items():
            low, high = BOUNDS[constant]
            assert low <= value <= high, (name, constant)


def test_a_profile_is_a_cluster_for_every_command(run: Run, measured: Path, tmp_path: Path) -> None:
    profile = tmp_path / "mine.yaml"
    outcome = run("calibrate", measured, "--cluster", "a100-80gb", "--from-scratch", "--out", profile)
    assert outcome.code == 0
    assert "model left out" in outcome.out
    assert f"wrote {profile}" in outcome.err
    loaded = load_cluster(str(profile))
    assert loaded.kernels.gemm_efficiency.value == pytest.approx(TRUE["gemm_efficiency"], rel=0.06)
    command = "symconfig calibrate runs.yaml --cluster a100-80gb --from-scratch"
    assert loaded.kernels.gemm_efficiency.source == f"fitted: {command}"
    again = run("calibrate", measured, "--cluster", profile, "--json").json()
    assert again["schema"] == "symconfig.calibration/1"
    assert again["clusters"][0]["mape"]["before"] < 0.015


def test_what_cannot_be_calibrated_is_said(run: Run, measured: Path, tmp_path: Path) -> None:
    other = written(tmp_path / "other.yaml", [row(SHAPES[0], PLANS[0], 1, 3.0, gpu="h100-sxm5-80gb")])
    both = run("calibrate", measured, other, "--out", tmp_path / "both.yaml")
    assert both.code == 2
    assert "several types of GPU" in both.err
    assert not (tmp_path / "both.yaml").exists()
    none = run("calibrate", other, "--cluster", "a100-80gb")
    assert none.code == 2
    assert "no run on GPUs of the type of a100-80gb" in none.err
    (tmp_path / "there.yaml").write_text("mine", encoding="utf-8")
    many = run("calibrate", tmp_path / "absent.yaml", "--cluster", "a100-81gb", "--out", tmp_path / "there.yaml")
    assert many.code == 2
    assert "absent.yaml" in many.err
    assert "a100-80gb" in many.err
    assert "exists already" in many.err
    assert (tmp_path / "there.yaml").read_text(encoding="utf-8") == "mine"
    assert run("calibrate", measured, "--out", tmp_path / "profile.txt").code == 2
    (tmp_path / "folder.yaml").mkdir()
    folder = run("calibrate", measured, "--out", tmp_path / "folder.yaml", "--force")
    assert "--out: this is a folder, a file is needed" in folder.err
    nowhere = run("calibrate", measured, "--cluster", "a100", "--out", tmp_path / "nowhere" / "profile.yaml")
    assert "--out: there is no such folder" in nowhere.err
    assert "--cluster: unknown cluster" in nowhere.err


def test_a_folder_stands_for_its_runs(run: Run, measured: Path, tmp_path: Path) -> None:
    folder = tmp_path / "runs"
    folder.mkdir()
    (folder / measured.name).write_bytes(measured.read_bytes())
    assert run("calibrate", folder, "--json").json() == run("calibrate", measured, "--json").json()
    (tmp_path / "none").mkdir()
    assert "none: this folder holds no measurements" in run("calibrate", tmp_path / "none").err


def test_runs_on_other_gpus_are_counted_not_used(run: Run, measured: Path, tmp_path: Path) -> None:
    other = written(tmp_path / "other.yaml", [row(SHAPES[0], PLANS[0], 1, 3.0, gpu="h100-sxm5-80gb")])
    outcome = run("calibrate", measured, other, "--cluster", "a100-80gb")
    assert outcome.code == 0
    assert "1 run on other GPUs is left out" in outcome.out


def test_a_constant_that_leaves_its_prior_names_the_rows_that_take_it_there(
    run: Run, measured: Path, from_priors: Calibration
) -> None:
    found = from_priors
    values = {p.name: (p, value) for p, value in zip(found.parameters, found.fit.values, strict=True)}
    away = {name: log(value / p.value) / p.uncertainty for name, (p, value) in values.items()}
    assert {item.constant: item.deviations for item in found.left} == {
        name: pytest.approx(deviations) for name, deviations in away.items() if abs(deviations) > FAR
    }
    first = found.left[0]
    assert abs(first.deviations) == max(map(abs, away.values()))
    assert [share for _, share in first.rows] == sorted((share for _, share in first.rows), reverse=True)
    assert 0 < sum(share for _, share in first.rows) < 1
    text = " ".join(run("calibrate", measured, "--cluster", "a100-80gb").out.split())
    side = "below" if first.deviations < 0 else "above"
    way = f"{first.value:.3g}, is {abs(first.deviations):.1f} deviations {side} its prior of {first.prior:.3g} +- "
    assert f"{first.constant} of a100-80gb, {way}{100 * first.uncertainty:.1f} %. The runs that pull it most: " in text
    assert f"{first.rows[0][0]} (" in text
    said = run("calibrate", measured, "--cluster", "a100-80gb", "--json").json()["clusters"][0]["left_priors"]
    assert [item["constant"] for item in said] == [item.constant for item in found.left]
    assert said[0]["rows"][0]["id"] == first.rows[0][0]
