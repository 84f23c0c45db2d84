"""torchtitan's values of a plan, and what it cannot be told. For real: `python -m tools verify formats`."""

from __future__ import annotations

import ast
import json
from pathlib import Path
from typing import Any

import pytest

from symconfig.descriptor.load import load_model, zoo_models
from symconfig.errors import InfeasibleError
from symconfig.plans.plan import Plan, Recompute
from symconfig.render import render, targets
from symconfig.render.torchtitan_limits import flavor_of, flavors
from tests.render.bash import dry_run
from tests.sample_plans import sample_plan


def plan(model: str = "llama3.1-8b", **fields: Any) -> Plan:
    return sample_plan(load_model(model), **fields)


def said(of: Plan) -> dict[str, Any]:
    data: dict[str, Any] = json.loads(render(of, "torchtitan")["torchtitan.json"])
    return data


def refused(of: Plan) -> set[str | None]:
    with pytest.raises(InfeasibleError) as caught:
        render(of, "torchtitan")
    return {problem.field for problem in caught.value.problems}


def test_the_batch_is_the_plans_with_a_pipeline_and_without() -> None:
    flat, staged = plan(tp=2, pp=1, dp=4, micro=2), plan(tp=2, pp=2, dp=4, micro=2)
    assert said(flat)["training"]["local_batch_size"] == 2
    training, parallelism = said(staged)["training"], said(staged)["parallelism"]
    assert training["local_batch_size"] == 2 * staged.best.batch.num_microbatches
    assert training["local_batch_size"] * 4 == training["global_batch_size"] == staged.best.batch.global_
    assert parallelism["pipeline_parallel_microbatch_size"] == 2


def test_every_layer_is_in_one_part_and_parts_are_in_the_order_of_the_model() -> None:
    parts = said(plan("llama3.1-405b", tp=8, pp=4, vpp=3, dp=2))["parallelism"]["module_fqns_per_model_part"]
    assert len(parts) == 12
    assert [name for part in parts for name in part] == [
        "tok_embeddings",
        *(f"layers.{layer}" for layer in range(126)),
        "norm",
        "lm_head",
    ]


@pytest.mark.parametrize(
    ("stage", "shards", "replicas", "reshard"),
    [(0, 1, 8, "never"), (1, 8, 1, "never"), (3, 8, 1, "always"), (3, 4, 2, "always")],
)
def test_zero_is_how_the_data_ranks_shard(stage: int, shards: int, replicas: int, reshard: str) -> None:
    groups = replicas if stage else 1
    parallelism = said(plan(tp=1, pp=1, dp=8, zero_stage=stage, instances=groups))["parallelism"]
    assert parallelism["data_parallel_shard_degree"] == shards
    assert parallelism["data_parallel_replicate_degree"] == replicas
    assert parallelism["fsdp_reshard_after_forward"] == reshard


def test_what_differs_from_the_plan_is_said() -> None:
    report = render(plan(tp=1, pp=1, dp=8, zero_stage=1, cp=2), "torchtitan")["REPORT.md"]
    assert "no ZeRO-1" in report
    assert "same bytes" in report
    assert "other framework" in report


def test_everything_that_it_cannot_be_told_is_refused_at_once() -> None:
    wrong = plan(
        "mixtral-8x7b",
        tp=2,
        dp=8,
        ep=8,
        etp=2,
        precision="fp8",
        moe_dispatcher="flex",
        recompute=Recompute("selective", ("core_attn",)),
        activation_offload=True,
        overlap_moe_a2a=True,
        optimizer_offload=0.5,
        training={"lr_decay_style": "inverse-square-root"},
    )
    assert refused(wrong) == {
        "model",
        "etp",
        "precision",
        "moe_dispatcher",
        "recompute",
        "activation_offload",
        "moe_overlap",
        "optimizer_offload",
        "training.lr_decay_style",
    }


def test_ulysses_and_rounds_of_other_sizes_are_refused() -> None:
    assert refused(plan(tp=1, cp=2, cp_comm="a2a")) == {"cp_comm"}
    assert refused(plan(tp=1, pp=2, vpp=2, dp=4, microbatch_group_size=4)) == {"microbatch_group_size"}
    assert refused(plan(tp=1, pp=4, vpp=2, dp=1, global_batch=9)) == {"num_microbatches"}


def test_a_model_is_a_flavor_only_where_every_number_is_the_same() -> None:
    found = {name: flavor.name for name in zoo_models() if (flavor := flavor_of(load_model(name)))}
    assert found == {
        "llama3.1-8b": "8B",
        "llama3.1-70b": "70B",
        "llama3.1-405b": "405B",
        "qwen3-4b": "4B",
        "qwen3-8b": "8B",
        "qwen3-32b": "32B",
        "qwen3-30b-a3b": "30B-A3B",
        "deepseek-v3": "671B",
        "gpt-oss-120b": "120b",
    }
    model = load_model("llama3.1-8b")
    assert flavor_of(model.model_copy(update={"rope_scaling": None})) is None  # Llama 3, which is another model
    assert len({(flavor.module, flavor.name) for flavor in flavors()}) == len(flavors())


def test_the_function_is_the_same_for_every_plan_and_reads_all_values() -> None:
    files, other = render(plan(), "torchtitan"), render(plan("qwen3-32b", tp=8), "torchtitan")
    assert files["plan_config.py"] == other["plan_config.py"]
    read = {
        node.slice.value
        for node in ast.walk(ast.parse(files["plan_config.py"]))
        if isinstance(node, ast.Subscript)
        and isinstance(node.value, ast.Name)
        and node.value.id == "values"
        and isinstance(node.slice, ast.Constant)
    }
    assert read == set(json.loads(files["torchtitan.json"]))


def test_launch_sh_runs_torchtitan_with_the_function(tmp_path: Path) -> None:
    words = dry_run(render(plan(), "torchtitan"), tmp_path / "out", "launch.sh", "--training.steps=3")
    assert words[words.index("-m") :] == [
        "-m",
        "torchtitan.train",
        "--module",
        "plan_config",
        "--config",
        "plan",
        "--training.steps=3",
    ]


def test_it_goes_on_from_one_checkpoint_or_from_its_own(tmp_path: Path) -> None:
    def said(**training: str) -> Any:
        return json.loads(render(plan(training=training), "torchtitan")["torchtitan.json"])["checkpoint"]

    assert "initial_load_path" not in said(save="some/b", load="some/b/")
    assert said(load="/b/checkpoint/step-20")["initial_load_path"] == "/b/checkpoint/step-20"
    for load in ("other/b", "/b", "b/checkpoint/step-20"):
        with pytest.raises(InfeasibleError, match=r"training\.load: torchtitan goes on from one checkpoint"):
            said(save="some/b", load=load)


def test_a_tokenizer_of_a_published_name_is_where_torchtitan_puts_it(tmp_path: Path) -> None:
    tree = ast.parse(render(plan(), "torchtitan")["plan_config.py"])
    space: dict[str, Any] = {"Path": Path}
    body: list[ast.stmt] = [node for node in tree.body if getattr(node, "name", None) == "assets"]
    exec(compile(ast.Module(body=body, type_ignores=[]), "plan_config.py", "exec"), space)
    assert space["assets"]("meta-llama/Llama-3.1-8B") == "./assets/hf/Llama-3.1-8B"
    assert space["assets"](str(tmp_path)) == str(tmp_path)


def test_a_plan_for_fsdp_is_its_own() -> None:
    """Made in the terms of PyTorch's FSDP, which torchtitan runs: nothing is said of another framework."""
    plan = sample_plan(load_model("llama3.1-8b"), "h100", backend="fsdp", dp=16, grad_bytes=2)
    told = targets()["torchtitan"].variables(plan)
    assert told["predicted_for"] == ""
    sharded = json.loads(render(plan, "torchtitan")["torchtitan.json"])["parallelism"]
    assert (sharded["data_parallel_shard_degree"], sharded["fsdp_reshard_after_forward"]) == (16, "always")
