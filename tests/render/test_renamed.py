"""What Megatron-LM would get arrives in programs that build on it, by names and values that are written here anew."""

from __future__ import annotations

from collections.abc import Iterator, Sequence, Set
from pathlib import Path
from typing import Any

import pytest
import yaml

from symconfig.descriptor.architectures.keys import words
from symconfig.descriptor.load import load_model, zoo_models
from symconfig.errors import SymconfigError
from symconfig.formats.renamed import BRIDGE, MS_SWIFT, Renamed
from symconfig.frameworks.megatron.flags import flags, versions
from symconfig.plans.plan import Plan
from symconfig.render import megatron, render
from tests.render.test_megatron_run import PLANS
from tests.sample_plans import sample_plan

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
