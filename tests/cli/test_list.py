"""`symconfig list`: the lists, one as a whole; recipes, and `plan --like`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import jsonschema
import pytest

import symconfig
from symconfig.cli.list import KINDS
from symconfig.descriptor.load import load_cluster, load_model, zoo_clusters, zoo_models
from tests.cli.support import Run


def test_every_cluster_of_the_zoo_is_a_line_with_its_rates(run: Run) -> None:
    told = run("list clusters")
    lines = {line.split("  ")[0]: line.split() for line in told.out.splitlines() if line}
    assert set(zoo_clusters()) <= set(lines)
    assert lines["h100"] == ["h100", "NVIDIA", "H100", "80GB", "HBM3", "79.1", "989", "8", "450", "50"]
    assert lines["v100-16gb"][-5:] == ["15.8", "125", "8", "150", "0.391"]
    found = run("list clusters --json").json()
    assert found["schema"] == "symconfig.clusters/1"
    one = next(one for one in found["clusters"] if one["name"] == "gb200-nvl72")
    assert one == {
        "name": "gb200-nvl72", "gpu": "NVIDIA GB200", "gpus_per_node": 4, "peak_flops": 2.5e15,
        "memory_bytes": load_cluster("gb200-nvl72").gpu.memory_bytes.value,
        "link": "nvlink", "link_bytes_per_s": 900e9, "network_bytes_per_s": 50e9,
    }  # fmt: skip


def test_the_json_of_one_is_a_file_that_is_loaded_again(run: Run, tmp_path: Path) -> None:
    name = "h100 with network=4x200Gb/s and gpus_per_node=4"
    cluster, model = tmp_path / "cluster.json", tmp_path / "model.json"
    cluster.write_text(run("list clusters", name, "--json").out, encoding="utf-8")
    assert load_cluster(str(cluster)) == load_cluster(name)
    model.write_text(run("list models qwen2.5-7b-lora --json").out, encoding="utf-8")
    assert load_model(str(model)) == load_model("qwen2.5-7b-lora")


def test_every_model_of_the_zoo_is_a_line_with_its_sizes(run: Run) -> None:
    told = run("list models")
    lines = {line.split("  ")[0]: line.split() for line in told.out.splitlines() if line}
    assert set(zoo_models()) <= set(lines)
    assert lines["mixtral-8x7b"] == ["mixtral-8x7b", "46.70", "B", "12.88", "B", "32", "4,096", "32,768", "8"]
    assert lines["llama2-70b-lora"][-1] == "lora"
    found = run("list models --json").json()
    assert found["schema"] == "symconfig.models/1"
    one = next(one for one in found["models"] if one["name"] == "llama2-70b-lora")
    assert (one["task"], one["trainable_parameters"], one["num_experts"]) == ("lora", 65_536_000, None)
    assert one["huggingface_id"] == "meta-llama/Llama-2-70b-hf"


def test_one_model_is_shown_with_its_parameters_and_its_source(run: Run) -> None:
    told = run("list models qwen3-30b-a3b").out
    assert told.startswith("# 30,532,122,624 parameters (30.53 B), 3,353,032,704 active for a token\n")
    assert "https://huggingface.co/Qwen/Qwen3-30B-A3B/blob/main/config.json" in told
    assert run("list models llama2-70b-lora").out.partition("\n")[0].endswith(", 65,536,000 trained")


def test_python_lists_both() -> None:
    assert [one["name"] for one in symconfig.clusters()] == zoo_clusters()
    assert [one["name"] for one in symconfig.models()] == zoo_models()


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_has_a_list_in_text_and_as_data(run: Run, kind: str) -> None:
    assert run("list", kind).out
    assert run("list", kind, "--json").json()["schema"].startswith("symconfig.")


@pytest.mark.parametrize(
    ("kind", "name", "said"),
    [("launchers", "slurm", "partition"), ("rules", "layers-over-stages", "severity"),
     ("options", "deepep_on_rocm", "maturity")],
)  # fmt: skip
def test_one_of_a_table_is_shown(run: Run, kind: str, name: str, said: str) -> None:
    assert said in run("list", kind, name).out


@pytest.mark.parametrize(
    ("name", "document"),
    [
        ("job", {"model": "llama2-7b", "cluster": "h100", "gpus": 8, "global_batch_size": 64}),
        ("model", load_model("mixtral-8x7b").model_dump(mode="json", by_alias=True, exclude_unset=True)),
        ("cluster", load_cluster("h100").model_dump(mode="json", by_alias=True, exclude_unset=True)),
    ],
)
def test_a_schema_accepts_what_is_read_and_refuses_a_wrong_field(run: Run, name: str, document: dict[str, Any]) -> None:
    schema = json.loads(run("list", "schemas", name).out)
    jsonschema.validate(document, schema)
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate({**document, "gpu_count": 8}, schema)


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
