"""What Accelerate and Transformers read, and what Megatron-LM would get in programs that build on it, is the plan."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence, Set
from pathlib import Path
from typing import Any

import pytest
import yaml

from symconfig.descriptor.architectures.keys import words
from symconfig.descriptor.load import load_model, zoo_models
from symconfig.errors import InfeasibleError, SymconfigError
from symconfig.formats.renamed import BRIDGE, MS_SWIFT, Renamed
from symconfig.frameworks.megatron.flags import flags, versions
from symconfig.plans.plan import Plan
from symconfig.render import megatron, render, trainer
from symconfig.render.files import write
from tests.render.bash import shellcheck
from tests.render.test_megatron_run import PLANS
from tests.sample_plans import sample_plan
from tools.verify.formats import judge, read_format

VERSION = {"bridge": "core_v0.16.1", "ms-swift": "core_v0.19.0"}
NAMES: Any = yaml.safe_load(Path(__file__).with_name("renamed.yaml").read_text(encoding="utf-8"))
CALLED, PROVIDERS = NAMES["called"], words(NAMES["providers"])
LISTS, ELSEWHERE = ({name: words(text) for name, text in NAMES[part].items()} for part in ("lists", "elsewhere"))


def plans(target: str) -> Iterator[Plan]:
    for model, cluster, fields, _ in PLANS.values():
        yield sample_plan(model, cluster, version=VERSION[target], **fields)
    saved = {"save": "/s", "save_interval": 7, "load": "/l", "data_path": ("/a.jsonl",), "wandb_project": "w"}
    yield sample_plan(
        "llama2-13b", "h100", version=VERSION[target], training={**saved, "eval_iters": 3, "eval_interval": 5}
    )
    for name in zoo_models():
        yield sample_plan(load_model(name), "h100", version=VERSION[target], tp=2, pp=1, dp=8)


def written(plan: Plan, target: str) -> dict[str, dict[str, Any]] | None:
    """Return the file's sections; None where the target refuses the plan."""
    try:
        files = render(plan, target)
    except SymconfigError:
        return None
    found = yaml.safe_load(files["overrides.yaml" if target == "bridge" else "config.yaml"])
    return found if target == "bridge" else {"": {**found, **found.get("megatron_extra_kwargs", {})}}


def values(texts: Sequence[str]) -> list[Any]:
    """Return the option's values: literals, the items of list expressions, or texts."""
    found: list[Any] = []
    for word in texts:
        try:
            literal = eval(word, {"__builtins__": {}})
        except (NameError, SyntaxError):
            literal = word
        found += literal if isinstance(literal, list | tuple) else [literal]
    return found


@pytest.mark.parametrize("target", VERSION)
def test_every_option_of_every_plan_arrives_with_its_value(target: str) -> None:
    told = 0
    for plan in plans(target):
        sections = written(plan, target)
        try:
            groups = megatron.groups(plan)
        except SymconfigError:
            continue
        for name, *texts in (option for group in groups for option in group.options) if sections else ():
            said = name.lstrip("-").replace("-", "_")
            if said in ELSEWHERE[target]:
                continue
            called, on = CALLED[target].get(said, said), not said.startswith(("no_", "disable_"))
            found = [section[called] for section in (sections or {}).values() if called in section]
            assert found, said
            for got in found:
                assert isinstance(got, list) == (said in LISTS[target]), said
                assert (got if isinstance(got, list) else [got]) == (values(texts) or [on]), said
        told += sections is not None
    assert told > 20


def test_bridges_fields_are_those_of_megatron_core() -> None:
    config = pytest.importorskip("megatron.core.transformer.transformer_config")
    optimizer = pytest.importorskip("megatron.core.optimizer")
    distributed = pytest.importorskip("megatron.core.distributed")
    known: dict[str, Set[str]] = {
        "model": PROVIDERS | set(config.MLATransformerConfig.__dataclass_fields__),
        "optimizer": set(optimizer.OptimizerConfig.__dataclass_fields__),
        "ddp": set(distributed.DistributedDataParallelConfig.__dataclass_fields__),
        "mixed_precision": words(
            """
            fp8 fp4 fp8_recipe fp4_recipe fp8_amax_history_len fp8_amax_compute_algo fp8_param_gather
            grad_reduce_in_fp32 first_last_layers_bf16 reuse_grad_buf_for_mxfp8_param_ag
            """
        ),
        "scheduler": words(
            """
            lr_decay_style lr_decay_iters lr_warmup_iters lr_wsd_decay_iters lr_wsd_decay_style start_weight_decay
            end_weight_decay
            """
        ),
    }
    known["model"] -= known["mixed_precision"] | known["scheduler"]
    for sections in (written(plan, "bridge") for plan in plans("bridge")):
        for section, fields in known.items():
            assert sections is None or sections.get(section, {}).keys() <= fields


@pytest.mark.parametrize("table", [BRIDGE, MS_SWIFT], ids=["bridge", "ms-swift"])
def test_a_table_is_of_options_that_there_are(table: Renamed) -> None:
    known = {flag.dest for version in versions() for flag in flags(version).flags.values()}
    assert {*table.names, *table.omitted, *table.refused} <= known
    assert not {*table.refused} & {*table.names, *table.omitted}


pytest.importorskip("accelerate")
pytest.importorskip("deepspeed")

FORMATTED = {
    "zero3": {"model": "llama2-13b", "zero_stage": 3, "training": {"lr": 1e-4, "lr_decay_style": "linear"}},
    "ulysses": {
        "model": "llama2-13b",
        "cp": 4,
        "dp": 4,
        "zero_stage": 3,
        "cp_comm": "a2a",
        "recompute": "full",
        "recompute_method": "uniform",
        "recompute_layers": 1,
    },
    "autotp": {"model": "llama2-13b", "tp": 4, "dp": 4, "zero_stage": 2, "sequence_parallel": False},
    "lora": {"model": load_model("qwen2.5-7b-lora"), "training": {"lr_decay_style": "WSD", "save": "it's saved here"}},
}


def of_formats() -> dict[str, Plan]:
    return {name: sample_plan(backend="deepspeed", **fields) for name, fields in FORMATTED.items()}


@pytest.mark.parametrize("name", ["accelerate", "transformers"])
def test_the_real_parser_understands_the_plan(name: str, tmp_path: Path) -> None:
    outcomes = judge(read_format(name), sys.executable, of_formats(), tmp_path)
    assert [item for item in outcomes if not item.accepted] == []
    assert all(item.compared > 10 for item in outcomes)


def of_fsdp(**fields: Any) -> Plan:
    return sample_plan("llama2-13b", backend="fsdp", dp=16, zero_stage=3, **fields)


def test_the_real_parser_understands_a_plan_for_fsdp(tmp_path: Path) -> None:
    again = {"recompute": "full", "recompute_method": "uniform", "recompute_layers": 1}
    wanted = {"whole": of_fsdp(training={"lr_decay_style": "linear"}), "groups": of_fsdp(instances=2, **again)}
    outcomes = judge(read_format("transformers"), sys.executable, wanted, tmp_path)
    assert [item for item in outcomes if not item.accepted] == []
    assert all(item.compared > 10 for item in outcomes)
    write(render(wanted["groups"], "transformers"), tmp_path / "written")
    assert shellcheck(tmp_path / "written" / "launch.sh") == ""


def test_everything_that_cannot_be_said_is_said_at_once() -> None:
    plan = sample_plan(
        "mixtral-8x7b",
        backend="deepspeed",
        ep=8,
        zero_stage=2,
        recompute="full",
        recompute_method="block",
        recompute_layers=3,
        training={"lr_decay_iters": 10, "train_iters": 100},
    )
    with pytest.raises(InfeasibleError) as caught:
        render(plan, "transformers")
    assert {problem.field for problem in caught.value.problems} == {"ep", "recompute", "training.lr_decay_iters"}


def test_a_plan_of_megatron_is_rendered_where_deepspeed_can_run_it_and_says_whose_times_these_are() -> None:
    plan = sample_plan("llama2-13b", tp=1, pp=1, dp=8, sequence_parallel=False, overlap_pp_p2p=False)
    assert "other framework" in render(plan, "accelerate")["REPORT.md"]


@pytest.mark.parametrize(
    ("training", "field"),
    [
        ({"lr_decay_style": "inverse-square-root", "lr_warmup_iters": 1, "train_iters": 10**6}, "training.min_lr"),
        ({"lr_decay_style": "inverse-square-root", "lr_warmup_iters": 0, "min_lr": 0.0}, "training.lr_warmup_iters"),
    ],
)
def test_schedules_that_trainer_has_none_of(training: dict[str, object], field: str) -> None:
    plan = sample_plan("llama2-13b", backend="deepspeed", training=training)
    assert [problem.field for problem in trainer.schedule_problems(plan)] == [field]


@pytest.mark.parametrize("name", ["transformers", "llamafactory"])
def test_trainer_goes_on_from_one_checkpoint_or_from_its_own(name: str) -> None:
    def said(**training: str) -> str:
        files = render(sample_plan("llama2-13b", backend="deepspeed", zero_stage=3, training=training), name)
        return files["train.yaml" if name == "llamafactory" else "training_args.json"] + files["REPORT.md"]

    own = said(save="out", load="out/")
    assert 'resume_from_checkpoint"' not in own
    assert "resume_from_checkpoint:" not in own
    assert name == "llamafactory" or "get_last_checkpoint(output_dir)" in own
    assert "/b/checkpoint-20" in said(save="out", load="/b/checkpoint-20")
    with pytest.raises(InfeasibleError, match=r"training\.load: Trainer goes on from one checkpoint"):
        said(save="out", load="/b")
