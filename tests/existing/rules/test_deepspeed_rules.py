"""Each rule's example breaks this rule alone; what DeepSpeed is said to refuse, it refuses; what we write is clean."""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from symconfig.existing.launch.reading import settings
from symconfig.existing.launch.text import Text
from symconfig.existing.launch.trees import parse_json
from symconfig.existing.recover.arguments import Arguments
from symconfig.existing.rules import deepspeed as rules
from symconfig.existing.rules.deepspeed import DeepSpeedFacts
from symconfig.existing.rules.rule import Finding, Rule, findings
from symconfig.frameworks.deepspeed.keys import mismatches, schema
from symconfig.verify import deepspeed as real
from tests.existing.rules.examples import deepspeed_facts

GOLDEN = Path(__file__).parents[2] / "render" / "golden_deepspeed"
NAMED = {rule.name: rule for rule in rules.RULES}
# Rules whose examples break another one, too.
ALSO = {"deepspeed-old-and-new-key": {"deepspeed-deprecated-key"}}


def found(rule: Rule[DeepSpeedFacts]) -> list[Finding]:
    return findings(rules.RULES, deepspeed_facts(rule))


@pytest.mark.parametrize("name", NAMED)
def test_an_example_breaks_its_rule_and_no_other(name: str) -> None:
    broken = {finding.rule for finding in found(NAMED[name]) if finding.severity != "note" or finding.rule == name}
    assert broken == {name, *ALSO.get(name, ())}


def test_deepspeed_refuses_what_it_is_said_to_refuse_and_takes_all_else_in_silence() -> None:
    pytest.importorskip("deepspeed")
    configs = [json.loads(rule.example.rpartition("\n")[2]) for rule in rules.RULES]
    answers = real.run(
        [
            {"task": "resolve", "config": config, "world_size": rule.gpus}
            for config, rule in zip(configs, rules.RULES, strict=True)
        ],
        240,
    )
    refused = {rule.name for rule, answer in zip(rules.RULES, answers, strict=True) if not answer["ok"]}
    assert refused == {rule.name for rule in rules.RULES if "DeepSpeed refuses" in rule.why}


@pytest.mark.parametrize("path", sorted(GOLDEN.glob("*.json")), ids=lambda path: path.name)
def test_what_is_written_breaks_no_rule(path: Path) -> None:
    tree = parse_json(Text(path.name, path.read_bytes()))
    trainer = path.name.endswith("_hf.json")
    for gpus in (None, 16):
        broken = findings(rules.RULES, DeepSpeedFacts(tree=tree, trainer=trainer, gpus=gpus))
        assert [finding for finding in broken if finding.severity != "note"] == []


def _said(text: str, gpus: int | None = 8, trainer: bool = False) -> dict[str, str]:
    tree = parse_json(Text("ds.json", text.encode()))
    broken = findings(rules.RULES, DeepSpeedFacts(tree=tree, trainer=trainer, gpus=gpus))
    return {finding.rule: str(finding.problem) for finding in broken}


def test_a_misspelt_key_is_told_at_its_place_with_the_nearest_name() -> None:
    said = _said('{\n  "train_batch_size": 8,\n  "gradient_cliping": 1.0\n}')
    assert said["deepspeed-misspelt-key"].startswith("ds.json:3:3: gradient_cliping:")
    assert "gradient_clipping" in said["deepspeed-misspelt-key"]


@pytest.mark.parametrize(
    ("text", "gpus", "hint"),
    [
        ('{"train_batch_size": 12, "train_micro_batch_size_per_gpu": 5}', 1, "10"),
        ('{"train_batch_size": 12, "gradient_accumulation_steps": 2}', 4, "16"),
        ('{"train_batch_size": 33, "train_micro_batch_size_per_gpu": 2, "gradient_accumulation_steps": 2}', 8, "32"),
        ('{"train_batch_size": 4}', 8, "8"),
    ],
)
def test_batches_that_do_not_come_out_whole_are_told(text: str, gpus: int, hint: str) -> None:
    assert f"Try: {hint}" in _said(text, gpus)["deepspeed-batch-product"]
    assert "deepspeed-batch-product" not in _said(text, None)


REFUSED = {"removed", "unknown", "type", "range", "choice"}


def _paths(
    section: dict[str, Any], path: tuple[str, ...] = (), strict: bool = False
) -> Iterator[tuple[Any, Any, bool]]:
    """Every key that may hold a value of its own, its schema, and whether its section is one of pydantic's models."""
    for key, node in section["properties"].items():
        if node and "properties" in node:
            yield from _paths(node, (*path, key), "additionalProperties" in node)
        elif path[:1] not in (("optimizer",), ("scheduler",), ("bfloat16",)) and node is not False:
            yield (*path, key), node, strict  # bfloat16: another name of bf16, which stands before it


@pytest.mark.parametrize("value", [None, -1, 0, 1.5, 2, 1e9, "3", "x", "true", True, [], {}], ids=repr)
def test_what_deepspeed_takes_is_no_error_and_what_its_models_refuse_is_one(value: Any) -> None:
    runtime = pytest.importorskip("deepspeed.runtime.config")
    taken = refused = 0
    for path, node, strict in _paths(schema()):
        config: dict[str, Any] = {"train_batch_size": 1, "zero_optimization": {"stage": 1}}
        section = config
        for key in path[:-1]:
            section = section.setdefault(key, {})
        section[path[-1]] = value
        kinds = {one.kind for one in mismatches(config)}
        try:
            runtime.DeepSpeedConfig(copy.deepcopy(config))
        except ValidationError as error:
            of_type = any(item["loc"] == path[-1:] and item["type"] != "value_error" for item in error.errors())
            refused += of_type
            assert kinds & REFUSED or not (of_type and node), path
        except Exception:  # whatever its other sections raise
            continue
        else:
            taken += 1
            nothing = value is None and node.get("type") != "number"  # which computing with it would find
            assert not kinds & REFUSED or not (strict or nothing), path
    assert taken > 100
    assert refused > 5 or value is None


def test_what_arguments_alone_decide_is_not_told_without_them() -> None:
    """The Trainer's own defaults are no finding in a JSON by itself, whose arguments are not known."""
    text = (
        '{"train_batch_size": 64, "train_micro_batch_size_per_gpu": "auto", "bf16": {"enabled": "auto"}, '
        '"gradient_accumulation_steps": "auto", "data_types": {"grad_accum_dtype": "bf16"}}'
    )
    assert _said(text, 8, trainer=True) == {}
    tree = parse_json(Text("ds.json", text.encode()))
    given = settings(("--output_dir", "out"), "launch.sh")
    broken = findings(rules.RULES, DeepSpeedFacts(tree=tree, trainer=True, arguments=Arguments(given), gpus=8))
    assert {finding.rule for finding in broken} == {"deepspeed-no-precision", "deepspeed-accumulation-type"}


def test_overlap_that_is_not_given_is_off_below_stage_3() -> None:
    for stage, told in ((1, True), (2, True), (3, False), (0, False)):
        said = _said(f'{{"train_batch_size": 8, "zero_optimization": {{"stage": {stage}}}}}')
        assert ("deepspeed-no-overlap" in said) == told
    assert "deepspeed-no-overlap" not in _said('{"train_batch_size": 8, "zero_optimization": {"stage": 2}}', 1)


@pytest.mark.parametrize(
    "text",
    [
        "[]",
        "{}",
        "3",
        '{"zero_optimization": true}',
        '{"zero_optimization": {"stage": "x", "offload_optimizer": 3}}',
        '{"optimizer": []}',
        '{"optimizer": {"type": 3, "params": 4}}',
        '{"bf16": 1, "fp16": null}',
        '{"train_batch_size": -3, "tensor_parallel": {"autotp_size": 0}, "sequence_parallel_size": -2}',
        '{"zero_optimization": {"reduce_bucket_size": [1]}}',
        '{"data_types": {"grad_accum_dtype": [1]}}',
        '{"communication_data_type": 3, "optimizer": {"params": {"betas": "x"}}}',
        '{"scheduler": {"params": 3}}',
    ],
)
def test_a_strange_file_is_told_and_breaks_nothing(text: str) -> None:
    for trainer in (True, False):
        assert _said(text, 8, trainer)
