"""Target megatron-yaml: Megatron's own loader makes of the file what its parser makes of the options."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from symconfig.descriptor.load import load_model, zoo_models
from symconfig.errors import InfeasibleError, SymconfigError
from symconfig.existing.audit.configuration import configuration_of
from symconfig.existing.launch.read import read
from symconfig.existing.recover.supplied import Supplied
from symconfig.frameworks.megatron import environment, flags
from symconfig.plans.plan import Plan, Recompute
from symconfig.render import megatron, megatron_fields, render
from symconfig.render.files import write
from symconfig.render.megatron_args import Group
from symconfig.render.megatron_namespace import namespace
from symconfig.render.megatron_yaml import NAME, SECTIONS, document
from symconfig.verify import megatron_session
from tests.existing.launch.summary import options, read_yaml, unread
from tests.render.bash import bash, dry_run, shellcheck
from tests.sample_plans import sample_plan
from tests.verify.megatron_support import source

# Destinations that the loader leaves in another form than validate_args, and why nothing comes of it.
ELSEWHERE = {
    "cp_comm_type": "a list of one there; TransformerConfig gets the same",
    "num_query_groups": "read only with group_query_attention",
    "num_layers_per_virtual_pipeline_stage": "how the loader is told of virtual stages",
    "num_virtual_stages_per_pipeline_rank": "the other way, which it does not know",
    "yaml_cfg": "the file",
    "language_model": "a section",
    "model_parallel": "a section",
    "use_custom_fsdp": "a former name, which nothing reads",
    # Of the server for inference: two options share a destination, whose default is that of the one added first.
    "inference_max_batch_size": "inference",
    "disable_chunked_prefill": "inference",
}
# What the file says otherwise than argparse leaves it, since validate_args would still change it.
VALIDATED = {
    "linear_attention_freq",
    "moe_layer_freq",
    "no_rope_freq",
    "window_attn_skip_freq",
    "moe_router_load_balancing_type",
    "moe_aux_loss_coeff",
    "cp_comm_type",
    "num_query_groups",
    "num_virtual_stages_per_pipeline_rank",
}
PLANS: dict[str, tuple[str, dict[str, Any]]] = {
    "interleaved": ("llama3.1-70b", {"precision": "fp8"}),
    "experts": ("mixtral-8x7b", {"recompute": Recompute("selective", ("core_attn", "moe_act"))}),
    "graphs of a router": (
        "mixtral-8x7b",
        {"moe_dispatcher": "flex", "moe_flex_backend": "hybridep", "cuda_graphs": "outside experts"},
    ),
    "8 bits": ("llama2-13b", {"precision": "mxfp8", "fp8_param_gather": True, "overlap_tp_comm": True}),
    "whole graphs": ("llama2-13b", {"cuda_graphs": "all"}),
    "sharded": ("llama2-13b", {"zero_stage": 3, "tp": 1, "pp": 1, "dp": 8}),
    "offload": (
        "llama2-13b",
        {
            "first_stage_layers": 18,
            "last_stage_layers": 22,
            "optimizer_offload": 0.5,
            "recompute": Recompute("full", (), "block", 3),
        },
    ),
}


def plans() -> dict[str, Plan]:
    return {name: sample_plan(model, **more) for name, (model, more) in PLANS.items()}


def jobs(name: str, plan: Plan, folder: Path) -> Iterator[megatron_session.Job]:
    """The plan's options, and its file by way of the program beside it."""
    write(render(plan, NAME), folder)
    exported = {item.name: item.value for item in environment.variables(plan, megatron.version(plan))}
    told = megatron_session.job(f"{name} options", plan, megatron.arguments(plan), exported, source())
    yield told
    yield replace(
        told,
        id=f"{name} file",
        group=None,
        args=("--yaml-cfg", str(folder / "megatron.yaml")),
        program=str(folder / "pretrain_yaml.py"),
    )


def test_megatron_resolves_the_file_to_what_the_options_resolve_to(tmp_path: Path) -> None:
    wanted = [job for name, plan in plans().items() for job in jobs(name, plan, tmp_path / name)]
    results = megatron_session.run(source(), wanted, 120.0)
    for name in PLANS:
        told, read = results[f"{name} options"], results[f"{name} file"]
        assert (told.error, read.error) == (None, None)
        assert read.config == told.config
        assert (read.stages, read.num_microbatches) == (told.stages, told.num_microbatches)
        other = {dest for dest, value in told.args.items() if read.args.get(dest, "missing") != value}
        assert other <= ELSEWHERE.keys()


def test_every_option_of_every_zoo_model_is_in_the_file_or_refused() -> None:
    said = refused = 0
    for model in map(load_model, zoo_models()):
        for version in flags.versions()[1:]:
            plan = sample_plan(
                model, version=version, training={"save": "/ckpt", "data_path": ("/a", "/b"), "tokenizer_model": "/tok"}
            )
            try:
                groups = megatron.groups(plan)
            except SymconfigError:  # this version cannot say it in any spelling
                continue
            try:
                whole = document(plan)
            except InfeasibleError:
                refused += 1
                continue
            table = flags.flags(version)
            args = namespace(table, groups)
            flat = {**whole, **whole["language_model"], **whole["model_parallel"]}
            for dest in {table.flags[option[0]].dest for group in groups for option in group.options} - VALIDATED:
                assert flat[dest] == args[dest], (model.name, version, dest)
            said += 1
    assert said > 100
    assert refused > 10


@pytest.mark.parametrize("name", PLANS)
def test_it_reads_back_as_the_plan(name: str) -> None:
    plan = plans()[name]
    reading = read_yaml(render(plan, NAME)["megatron.yaml"])
    assert unread(reading, matters=True) == []
    table = flags.flags(megatron.version(plan))
    groups = megatron.groups(plan)
    words = [tuple(line.split(" ")) for line in options(reading)]
    assert not table.check([word for option in words for word in option])
    back, told = namespace(table, [Group("", tuple(words))]), namespace(table, groups)
    chosen = {table.flags[option[0]].dest for group in groups for option in group.options}
    chosen -= {"num_virtual_stages_per_pipeline_rank"} if plan.best.parallel.vpp > 1 else set()
    assert {dest: back[dest] for dest in chosen} == {dest: told[dest] for dest in chosen}


@pytest.mark.parametrize("model", ["llama3.1-70b", "mixtral-8x7b"])
def test_all_spellings_of_a_plan_are_audited_as_the_same_run(model: str, tmp_path: Path) -> None:
    plan = sample_plan(model)
    runs = []
    for target, file in (("megatron", "launch.sh"), (NAME, "megatron.yaml"), ("model-args", "model_config.yaml")):
        write(render(plan, target), tmp_path / target)
        found = configuration_of(
            read(str(tmp_path / target / file)), Supplied(None, plan.best.parallel.world_size, None, None, None)
        )
        runs.append(found.run(plan.cluster))
    assert runs[0].configuration == runs[1].configuration == runs[2].configuration
    assert runs[0].options == runs[1].options == runs[2].options
    assert runs[0].described.model == runs[1].described.model == runs[2].described.model


@pytest.mark.parametrize(
    ("model", "more", "fields"),
    [
        ("deepseek-v3", {}, {"q_lora_rank"}),
        ("gpt3-175b", {"pp": 2, "vpp": 3}, {"hidden_act", "vpp"}),
        ("gpt-oss-120b", {}, {"hidden_act"}),
        ("llama3.1-70b", {"pipeline_layout": "Et*10|(t*10|)*6t*10L", "vpp": 2}, {"pipeline_layout"}),
        ("llama2-13b", {"zero_stage": 3, "pp": 1, "tp": 2}, {"tp"}),
    ],
)
def test_what_the_loader_has_no_way_to_say_is_refused(model: str, more: dict[str, Any], fields: set[str]) -> None:
    with pytest.raises(InfeasibleError) as caught:
        render(sample_plan(model, **more), NAME)
    assert fields <= {problem.field for problem in caught.value.problems}


def test_a_text_with_a_variable_is_refused_where_the_loader_would_put_one_in() -> None:
    training = {"save": "/ckpt/${USER}"}
    with pytest.raises(InfeasibleError, match="save"):
        document(sample_plan("llama2-13b", version="core_v0.13.0", training=training))
    assert document(sample_plan("llama2-13b", version="core_v0.14.0", training=training))["save"] == "/ckpt/${USER}"


def test_launch_starts_the_loader_and_takes_no_option_that_megatron_would_ignore(tmp_path: Path) -> None:
    command = dry_run(render(sample_plan("llama2-13b"), NAME), tmp_path, "launch.sh")
    assert command[-4:] == [
        f"{tmp_path}/pretrain_yaml.py",
        "./pretrain_gpt.py",
        "--yaml-cfg",
        f"{tmp_path}/megatron.yaml",
    ]
    done = bash(tmp_path / "launch.sh", "--lr", "1", cwd=tmp_path, DRY_RUN="1")
    assert done.returncode == 2
    assert b"change" in done.stderr
    assert shellcheck(tmp_path / "launch.sh") == ""


def test_the_sections_hold_every_field_once() -> None:
    whole = yaml.safe_load(render(sample_plan("mixtral-8x7b"), NAME)["megatron.yaml"])
    first, second = (set(whole[name]) for name in SECTIONS)
    assert not first & second
    assert not (first | second) & (set(whole) - set(SECTIONS))
    assert {item.name for item in megatron_fields.fields("core_v0.19.0") if item.section != "latent"} <= first | second


def test_the_table_of_fields_is_what_the_source_declares() -> None:
    declared = {(item.section, item.name): item.default for item in megatron_fields.read(source().root)}
    table = megatron_fields.fields(f"core_v{source().version}")
    assert {(item.section, item.name): item.default for item in table} == declared
