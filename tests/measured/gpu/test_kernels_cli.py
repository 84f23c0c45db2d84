"""`symconfig measure` as a person runs it: tables, files, and what is wrong with the input."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
import yaml

from symconfig.descriptor.cluster import KernelsFile
from symconfig.descriptor.document import load_yaml_strict
from symconfig.descriptor.load import load_cluster
from symconfig.descriptor.strict import validate
from symconfig.measured.gpu.kernel_fit import read
from symconfig.resources import data_dir
from tests.cli.support import Outcome, Run, run  # noqa: F401

PUBLISHED = Path(__file__).parents[2] / "published" / "kernel_times"
TIMES, CPU = PUBLISHED / "cpu.yaml", PUBLISHED / "clusters" / "cpu.yaml"


@pytest.fixture
def kernels(run: Run) -> Run:  # noqa: F811
    def call(*words: object) -> Outcome:
        return run("measure", *words)

    return call


def test_it_measures_fits_and_writes_both_files(kernels: Run, tmp_path: Path) -> None:
    pytest.importorskip("torch")
    profile, raw = tmp_path / "profile.yaml", tmp_path / "times.yaml"
    done = kernels("--device", "cpu", "--budget", 1, "--cluster", CPU, "--out", profile, "--raw", raw)
    assert done.code == 0, done.err
    for text in ("Kernels of CPU, 1 thread, torch", "gemm_efficiency", "before"):
        assert text in done.out
    assert f"wrote {profile}" in done.err
    times = read(raw)
    assert {row.what.family for row in times.rows} >= {"launch", "product, bf16"}
    made = validate(load_yaml_strict(profile), KernelsFile)
    assert f"CPU, 1 thread, torch {times.rig.torch}, {times.rig.date}" in made.gemm_efficiency.source


def test_a_profile_serves_a_cluster_that_plans(kernels: Run, run: Run, tmp_path: Path) -> None:  # noqa: F811
    """As the descriptor of a person's cluster names it; slower kernels make a slower step."""
    profile, mine = tmp_path / "profile.yaml", tmp_path / "mine.yaml"
    assert kernels("--times", TIMES, "--cluster", "a100-80gb", "--out", profile).code == 0
    stated = yaml.safe_load((data_dir("model_zoo") / "clusters" / "a100-80gb.yaml").read_text(encoding="utf-8"))
    mine.write_text(yaml.safe_dump({**stated, "kernels": "./profile.yaml"}, sort_keys=False), encoding="utf-8")
    assert load_cluster(str(mine)).kernels == validate(load_yaml_strict(profile), KernelsFile).constants
    job = ("--model", "llama2-7b", "--gpus", 8, "--global-batch-size", 64, "--pin", "tp=2", "--json")
    steps = {
        name: run("plan", *job, "--cluster", name).json()["best"]["predicted"]["step_s"]
        for name in (str(mine), "a100-80gb")
    }
    assert steps[str(mine)] > steps["a100-80gb"]


def test_json_has_rates_constants_and_errors(kernels: Run) -> None:
    data = kernels("--times", TIMES, "--cluster", CPU, "--json").json()
    assert data["schema"] == "symconfig.kernel_fit/1"
    assert data["rig"]["product"] == "CPU, 1 thread"
    assert set(data["constants"]["hbm_efficiency"]) == {"before", "value", "uncertainty"}
    assert {each["name"] for each in data["families"]} >= {"product, bf16", "copy"}
    product = next(row for row in data["rows"] if row["what"]["kernel"] == "product")
    assert product["seconds"] > 0
    assert product["after_s"] != product["before_s"]


def test_a_cpu_without_a_cluster_shows_rates_only(kernels: Run) -> None:
    done = kernels("--times", TIMES)
    assert done.code == 0
    assert "GB/s" in done.out
    assert "gemm_efficiency" not in done.out
    data = kernels("--times", TIMES, "--json").json()
    assert (data["constants"], data["families"], data["cluster"]) == (None, None, None)


def test_times_of_another_gpu_than_the_clusters_are_said_to_be(kernels: Run) -> None:
    assert (
        "These are times of CPU, 1 thread, held against the peaks of h200: NVIDIA H200."
        in kernels("--times", TIMES, "--cluster", "h200").out
    )


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--budget", "soon"), "--budget: wrong value (got soon, need seconds from 1 to 3600)"),
        (("--budget", "nan"), "--budget: wrong value"),
        (("--budget", "0"), "--budget: wrong value"),
        (("--out", "/nowhere/at/all.yaml"), "--out: there is no such folder (got /nowhere/at)"),
        (("--raw", "times.txt"), "--raw: this file is YAML (got times.txt, need a name that ends in .yaml)"),
        (("--cluster", "h2000"), "--cluster: unknown cluster (got h2000"),
        (
            ("--times", TIMES, "--budget", "9", "--device", "cpu"),
            "--budget: is for measuring, and --times reads measured times",
        ),
        (("--times", "absent.yaml"), "absent.yaml: there is no such file"),
    ],
)
def test_bad_input_is_said_in_a_sentence(kernels: Run, words: tuple[str, ...], said: str) -> None:
    done = kernels(*words)
    assert done.code == 2
    assert said in done.err


def test_all_that_is_wrong_is_said_at_once_before_anything_is_measured(kernels: Run) -> None:
    done = kernels("--budget", "x", "--out", "/nowhere/x.yaml", "--cluster", "h2000", "--json")
    assert done.code == 2
    assert [problem["field"] for problem in done.json()["problems"]] == ["--budget", "--out", "--cluster"]


def test_a_profile_of_a_cpu_needs_a_cluster_and_an_existing_file_force(kernels: Run, tmp_path: Path) -> None:
    out = tmp_path / "profile.yaml"
    assert "a CPU has none" in kernels("--times", TIMES, "--out", out).err
    assert kernels("--times", TIMES, "--cluster", CPU, "--out", out).code == 0
    first = out.read_text(encoding="utf-8")
    assert "--force" in kernels("--times", TIMES, "--cluster", CPU, "--out", out).err
    assert kernels("--times", TIMES, "--cluster", CPU, "--out", out, "--force").code == 0
    assert out.read_text(encoding="utf-8") == first


def test_an_unknown_gpu_asks_for_a_cluster(kernels: Run, tmp_path: Path) -> None:
    text = TIMES.read_text(encoding="utf-8").replace("CPU, 1 thread", "NVIDIA H100 PCIe")
    (tmp_path / "times.yaml").write_text(text, encoding="utf-8")
    done = kernels("--times", tmp_path / "times.yaml")
    assert done.code == 2
    assert "no cluster of the zoo has this GPU" in done.err
    assert "NVIDIA H100 PCIe" in done.err


def test_without_torch_it_says_how_to_install_it(kernels: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)
    done = kernels("--device", "cpu", "--json")
    assert done.code == 2
    assert "python -m pip install torch" in json.loads(done.out)["problems"][0]["hint"]
