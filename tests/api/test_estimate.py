"""`symconfig.estimate` and its command: the figures are those of `plan`, also where nothing fits."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import symconfig
from symconfig.errors import InputError
from symconfig.plans.pipeline_layout import written
from symconfig.plans.plan import Candidate
from tests.cli.support import Run
from tests.pins import VALUES

JOBS: dict[str, tuple[str, str, int, dict[str, Any]]] = {
    "chunks": ("llama2-13b", "h100", 64, {}),
    "experts": ("mixtral-8x7b", "h100", 32, {}),
    "latent attention": ("deepseek-v3", "h100", 512, {}),
    "another GPU": ("qwen2.5-7b", "mi300x", 16, {}),
    "DeepSpeed": ("llama3.1-8b", "h100", 8, {"backend": "deepspeed"}),
    "FSDP": ("llama3.1-8b", "a100-80gb", 16, {"backend": "fsdp", "pins": {"recompute": "full"}}),
    "offload": ("llama3.1-70b", "h100", 128, {"backend": "fsdp", "pins": {"optimizer_offload": "1"}}),
    "adapters": ("qwen-7b-lora", "h100", 8, {}),
}


def pins_of(candidate: Candidate) -> dict[str, str]:
    """All that a candidate is, as pins."""
    values = {name: value(candidate) for name, value in VALUES.items() if name != "schedule"}
    if candidate.configuration.pp > 1:
        values["layout"] = written(candidate.chunks)
    return {name: value for name, value in values.items() if value is not None}


@pytest.mark.parametrize("name", JOBS)
def test_a_plans_own_layout_costs_what_the_plan_says(name: str) -> None:
    model, cluster, gpus, more = JOBS[name]
    job = {"model": model, "cluster": cluster, "gpus": gpus, "global_batch_size": 8 * gpus, **more}
    planned = symconfig.plan(**job).best
    result = symconfig.estimate(**{**job, "pins": pins_of(planned)})
    one = result.estimate
    assert one.plan.best.predicted == planned.predicted
    assert max(one.stage_bytes) == pytest.approx(planned.predicted.device_bytes, rel=1e-9)
    assert result.runs


def test_a_script_costs_what_its_plan_says(run: Run, tmp_path: Path) -> None:
    words = ("--model", "llama2-13b", "--cluster", "h100", "--gpus", "64", "--global-batch-size", "512")
    planned = run("plan", *words, "--out", tmp_path / "out", "--json").json()["best"]["predicted"]
    ended = run("estimate --script", tmp_path / "out" / "launch.sh", "--cluster", "h100", "--json")
    told = ended.json()["candidate"]["predicted"]
    assert ended.code == 0
    assert (told["step_s"], told["device_bytes"]) == (planned["step_s"], planned["device_bytes"])
    ended = run("estimate --script", tmp_path / "out" / "launch.sh", "--pin", "tp=4")
    assert (ended.code, ended.out) == (2, "")
    assert "--pin: " in ended.err


def test_what_does_not_fit_is_said_with_its_largest_part_and_where_it_does(run: Run) -> None:
    words = ("estimate", "--model", "llama3.1-70b", "--cluster", "h100", "--gpus", "16", "--pin", "tp=8", "--fits-on")
    ended = run(*words, "--json")
    told = ended.json()
    assert (ended.code, told["schema"], told["fits"]) == (1, "symconfig.estimate/1", False)
    held = [stage["device_bytes"] for stage in told["stages"]]
    assert told["missing_bytes"] == pytest.approx(max(held) - told["usable_bytes"])
    assert all(sum(stage["memory"].values()) == pytest.approx(stage["device_bytes"]) for stage in told["stages"])
    assert told["largest"]["bytes"] == max(told["stages"][0]["memory"].values())
    fits_on = told["fits_on"]
    assert fits_on["h100"]["missing_bytes"] == told["missing_bytes"]
    assert [fits_on[name]["fits"] for name in ("h100", "b300")] == [False, True]
    text = run(*words).out
    assert "It does not fit: " in text
    assert f"the largest part: {told['largest']['part']}, " in text


@pytest.mark.parametrize(
    ("pins", "said"),
    [
        ({"tp": "2..4"}, "an estimate is of one layout"),
        ({"tq": "4"}, "tq: is not something that can be pinned"),
        ({"tp": "3", "dp": "8"}, "32 attention heads cannot be split over tp 3"),
        ({"tp": "2", "dp": "2"}, "do not multiply to 8 GPUs"),
    ],
)
def test_pins_that_are_no_layout_are_refused(pins: dict[str, str], said: str) -> None:
    gpus = 24 if pins["tp" if "tp" in pins else "tq"] == "3" else 8
    with pytest.raises(InputError, match=said):
        symconfig.estimate("llama3.1-8b", "h100", gpus, pins=pins)


@pytest.mark.parametrize("pins", ["tp=2", "[tp]", "null"])
def test_pins_that_are_no_section_are_refused_as_by_plan(pins: str, run: Run, tmp_path: Path) -> None:
    file = tmp_path / "job.yaml"
    file.write_text(f"model: llama3.1-8b\ncluster: h100\ngpus: 8\nglobal_batch_size: 16\npins: {pins}\n")
    ended, other = (run(command, str(file)) for command in ("estimate", "plan"))
    assert (ended.code, ended.err) == (2, other.err)
    assert "pins: wrong value" in ended.err
