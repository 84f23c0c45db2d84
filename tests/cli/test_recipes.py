"""`symconfig list recipes` and `plan --like`."""

from __future__ import annotations

from pathlib import Path

from tests.cli.support import Run

NAME = "mb-0.4.0-perf-llama3-70b-pretrain-h100-64gpu-bf16-v1"


def test_the_list_is_filtered_and_says_how_many(run: Run) -> None:
    every = run("list recipes --json").json()["recipes"]
    assert len(every) >= 150
    chosen = "list recipes --model llama3.1-70b --cluster h100 --gpus 64"
    some = run(f"{chosen} --json").json()["recipes"]
    assert NAME in {one["id"] for one in some}
    assert {(one["model"], one["job"]["cluster"], one["job"]["gpus"]) for one in some} == {("llama3.1-70b", "h100", 64)}
    told = run(chosen)
    assert f"{len(some)} recipes." in told.out
    assert NAME in told.out
    assert run("list recipes --source", "no such source").out.startswith("0 recipes.")


def test_one_is_shown_with_its_source_and_its_pins(run: Run) -> None:
    told = run("list recipes", NAME)
    assert "Megatron-Bridge performance recipe, NVIDIA-NeMo/Megatron-Bridge, v0.4.0" in told.out
    assert "tp=4 pp=4 vpp=5 cp=2" in told.out
    one = run("list recipes", NAME, "--json").json()
    assert one["schema"] == "symconfig.recipe/1"
    assert one["pins"]["vpp"] == "5"


def test_a_plan_like_a_recipe_has_its_job_and_its_layout(run: Run) -> None:
    ended = run("plan --like", NAME, "--json")
    best = ended.json()["best"]
    degrees = {"tp": 4, "pp": 4, "vpp": 5, "cp": 2, "ep": 1, "etp": 1, "dp": 2}
    assert best["parallel"] == degrees
    assert best["batch"]["global"] == 128
    assert best["batch"]["seq_length"] == 8192
    assert "no pin can express: " in ended.err


def test_a_recipe_of_fp8_keeps_its_recompute(run: Run, tmp_path: Path) -> None:
    """Megatron-LM has none of norms under delayed scaling."""
    run.done("plan --like paper-deepseek-v3 --out", tmp_path / "run")
    written = (tmp_path / "run" / "megatron_args.txt").read_text(encoding="utf-8")
    assert "--fp8-recipe tensorwise" in written
    assert "amax" not in written
    assert "--recompute-modules layernorm mla_up_proj" in written


def test_options_go_before_the_recipe(run: Run) -> None:
    best = run("plan --like", NAME, "--gpus", "32", "--pin", "pp=2", "--pin", "vpp=1..10", "--json").json()["best"]
    assert best["parallel"]["pp"] == 2
    assert best["parallel"]["tp"] * best["parallel"]["dp"] * 2 * 2 == 32
