"""Each rule's example breaks this rule alone, what symconfig writes breaks none, and the unknown is not judged."""

from __future__ import annotations

import re
from collections.abc import Iterator
from string import Formatter
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from symconfig.errors import SymconfigError
from symconfig.existing.launch.reading import Setting, Word, settings
from symconfig.existing.launch.text import Place, Text
from symconfig.existing.recover.namespace import Namespace
from symconfig.existing.rules.facts import OLD, MegatronFacts
from symconfig.existing.rules.megatron import BY_FILE, DERIVED, FACTS, NAME_TESTS, RULES, TABLE, findings
from symconfig.existing.rules.rule import NUMBERS, TESTS, TEXTS, filled_with, rows_of
from symconfig.frameworks.megatron.flags import flags, versions
from tests.existing.rules import examples
from tests.existing.rules.megatron_support import facts, of_plan, said
from tests.render.test_megatron_golden import ARGUMENTS
from tests.sample_plans import _DEGREES, sample_plan

NAMED = {rule.name: rule for rule in RULES}
MODELS = [name for name in _DEGREES if not name.endswith("-lora")]
TP, PP = "--tensor-model-parallel-size", "--pipeline-model-parallel-size"


@pytest.mark.parametrize(("version", "refused"), [("core_v0.19.0", True), ("main", False)])
def test_main_recomputes_modules_that_no_release_has(version: str, refused: bool) -> None:
    line = "--recompute-granularity selective --recompute-modules gdp_qkv"
    assert ("recompute-modules-refused" in said(facts(line, version))) is refused


@pytest.mark.parametrize("name", NAMED)
def test_an_example_breaks_its_rule_and_no_other(name: str) -> None:
    found = findings(examples.megatron_facts(NAMED[name]))
    assert {finding.rule for finding in found if finding.severity != "note" or finding.rule == name} == {name}


@pytest.mark.parametrize("file", BY_FILE)
def test_every_name_of_a_row_is_one(file: str) -> None:
    options = {flag.dest for version in versions() for flag in flags(version).flags.values()}
    known = options | FACTS | DERIVED.keys() | TABLE.keys() | set(versions()) | {"value"}
    for row in rows_of(file).values():
        for case in row.get("cases", ({},)):
            whole = {**row, **case}
            for each in whole.get("each", "{each}").split():
                for part in (filled_with(whole, each), filled_with({"if": row.get("if")}, each)):
                    assert set(names_of(part)) <= known


def names_of(part: Any) -> Iterator[str]:
    """What the conditions, the places and the texts of a row or a pair name."""
    for key in ("if", "be", "needs", "excludes"):
        others = part.get(key) or {}
        for name, wanted in others.items() if isinstance(others, dict) else dict.fromkeys(others.split()).items():
            yield from () if name.startswith("$") or "{each}" in name else (name,)
            tests = wanted if isinstance(wanted, dict) else {}
            assert set(tests) <= {*TESTS, *NAME_TESTS, "need", "if"}
            yield from (than for test, than in tests.items() if test in NUMBERS and isinstance(than, str))
            yield from names_of({"if": tests.get("if")})
    yield from (word for word in part.get("at", "").split() if "{" not in word)
    for key in TEXTS:
        for _, name, *_ in Formatter().parse(str(part.get(key, ""))):
            yield from re.findall(r"^\w+(?!.*\[)|(?<=option\[)\w+", name or "")


def test_names_are_unique_and_of_one_form() -> None:
    assert len(NAMED) == len(RULES)
    assert all(re.fullmatch(r"[a-z0-9]+(-[a-z0-9]+)*", name) for name in NAMED)


@pytest.mark.parametrize("name", ARGUMENTS)
def test_a_golden_launch_breaks_no_rule(name: str) -> None:
    model, cluster, version, overrides = ARGUMENTS[name]
    found = findings(of_plan(sample_plan(model, cluster, version=version, **overrides)))
    assert [str(finding.problem) for finding in found if finding.severity != "note"] == []


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("version", versions()[::3])
def test_a_rendered_launch_of_many_versions_breaks_no_rule(model: str, version: str) -> None:
    plan = sample_plan(model, "h100", version=version)
    try:
        launch = of_plan(plan)
    except SymconfigError as error:
        pytest.skip(f"cannot be written for it: {error}")
    found = findings(launch)
    assert [str(finding.problem) for finding in found if finding.severity != "note"] == []


def test_a_finding_stands_where_its_option_does() -> None:
    text = Text(
        "run.sh", b"torchrun pretrain_gpt.py \\\n  --num-attention-heads 20 \\\n  --tensor-model-parallel-size 8\n"
    )

    def setting(words: str) -> Setting:
        start = text.data.index(words.encode())
        name, value = words.split()
        place = text.place(start, start + len(words))
        return Setting(name, name, (Word.of(value, place, literal=True),), place)

    names = Namespace([setting("--num-attention-heads 20"), setting(f"{TP} 8")], flags("core_v0.19.0"))
    sentences = said(MegatronFacts(names, world_size=8))
    assert sentences["heads-over-tp"].startswith("run.sh:2:3: --num-attention-heads: ")
    assert sentences["no-sequence-parallelism"].startswith("run.sh:3:3: --sequence-parallel: ")


def _dark(option: str) -> Setting:
    place = Place("launch.sh", 0, 0, 1, 1)
    return Setting(option, option, (Word.dark("depends on $SIZE", place),), place)


def test_of_a_value_that_is_not_known_nothing_follows() -> None:
    given = (*settings(("--num-attention-heads", "20", "--num-layers", "30"), "launch.sh"), _dark(TP), _dark(PP))
    found = said(MegatronFacts(Namespace(given, flags("core_v0.19.0")), world_size=8))
    assert not {"heads-over-tp", "layers-over-stages", "gpus-over-degrees", "no-sequence-parallelism"} & set(found)


def test_of_an_option_that_is_misspelt_the_default_is_not_judged() -> None:
    options = "--num-layers 32 --hidden-size 5120 --num-attention-heads 20 --max-position-embeddings 2048 --bf16"
    found = said(facts(f"{options} --sequence-parallel --tensor-parallel-size 8 --micro-batchsize 1", base=False))
    assert "Try: --micro-batch-size" in found["unknown-option"]
    assert not {"missing-option", "sequence-parallel-without-tp", "optimizer-not-sharded"} & set(found)


def test_what_may_hide_in_a_part_that_was_not_read_is_not_called_absent() -> None:
    options = f"--num-attention-heads 20 --hidden-size 5120 {TP} 8 --seq-length 4096 --use-distributed-optimizer"
    whole = said(facts(options, base=False))
    part = said(facts(options, base=False, complete=False))
    assert {"heads-over-tp", "no-sequence-parallelism", "missing-option", "single-precision"} <= set(whole)
    assert set(part) == {"heads-over-tp"}


@pytest.mark.parametrize(
    ("program", "given", "rule"),
    [
        ("pretrain_gpt.py", True, "unknown-option"),
        ("/opt/Megatron-LM/pretrain_gpt.py", True, "unknown-option"),
        ("pretrain_gpt.py", False, "unknown-option"),
        ("finetune.py", True, "option-of-a-fork"),
        (None, True, "option-of-a-fork"),
    ],
)
def test_an_unknown_option_is_an_error_where_it_cannot_be_a_forks(program: str, given: bool, rule: str) -> None:
    found = said(facts("--tensor-parallel-size 4", program=program, version_given=given))
    assert "Try: --tensor-model-parallel-size" in found[rule]
    assert {"unknown-option", "option-of-a-fork"} & set(found) == {rule}


@pytest.mark.parametrize(
    ("option", "hint"),
    [
        ("--tensor_model_parallel_size 4", "--tensor-model-parallel-size"),
        ("--micro-batchsize 1", "--micro-batch-size"),
        ("--DDP-impl local", "--use-distributed-optimizer"),
        ("--layernorm-epsilon 1e-5", "--norm-epsilon"),
        ("--use-custom-fsdp", "--use-megatron-fsdp"),
        ("--sequence-paralel", "--sequence-parallel"),
        ("--checkpoint-activations", "--recompute-granularity full"),
        ("--seq-len 2048", "--seq-length"),
    ],
)
def test_what_was_meant_is_said(option: str, hint: str) -> None:
    assert any(f"Try: {hint}" in sentence for sentence in said(facts(option)).values())


@pytest.mark.parametrize(
    ("options", "given", "severity"),
    [
        ("", True, "error"),
        ("", False, "error"),
        ("--my-own-thing 3", True, "error"),
        ("--my-own-thing 3", False, "warning"),
        ("--DDP-impl local", False, "warning"),
        ("--micro-batchsize 3", False, "error"),
    ],
)
def test_a_fork_may_take_what_is_refused(options: str, given: bool, severity: str) -> None:
    layers = "--pipeline-model-parallel-size 4 --num-layers 30 --num-attention-heads 20"
    found = findings(facts(f"{TP} 8 --sequence-parallel {layers} {options}", world_size=32, version_given=given))
    assert {finding.severity for finding in found if finding.rule == "layers-over-stages"} == {severity}
    assert {finding.severity for finding in found if finding.rule == "heads-over-tp"} == {"error"}


@pytest.mark.parametrize("name", OLD)
def test_old_names_are_as_the_tables_know_them(name: str) -> None:
    taken = [version for version in versions() if flags(version).known(name)]
    if OLD[name].state == "gone":
        assert versions()[-1] not in taken
    else:
        assert versions()[-1] in taken
    for option in re.findall(r"--[a-z][a-z0-9-]+", OLD[name].today or ""):
        assert any(flags(version).known(option) for version in versions())


@pytest.mark.parametrize(
    ("options", "variables", "architecture", "rule"),
    [
        (f"{TP} 2 --sequence-parallel", {"CUDA_DEVICE_MAX_CONNECTIONS": "8"}, "hopper", "environment-contradicts"),
        (f"{TP} 2 --sequence-parallel", {"CUDA_DEVICE_MAX_CONNECTIONS": "8"}, "blackwell", None),
        (f"{TP} 2 --sequence-parallel", {}, "ampere", "environment-missing"),
        (f"{TP} 2 --sequence-parallel", {}, "blackwell", None),
        (f"{TP} 2 --sequence-parallel", {}, None, None),
        (f"{TP} 2 --sequence-parallel", None, "hopper", None),
        (f"{TP} 2 --sequence-parallel", {"CUDA_DEVICE_MAX_CONNECTIONS": "1"}, "hopper", None),
        (
            "--use-megatron-fsdp --ckpt-format fsdp_dtensor",
            {"CUDA_DEVICE_MAX_CONNECTIONS": "1"},
            "blackwell",
            "environment-contradicts",
        ),
        ("--use-megatron-fsdp --ckpt-format fsdp_dtensor", {}, "hopper", None),
        ("--attention-backend flash", {"NVTE_FUSED_ATTN": "1"}, "hopper", "attention-environment"),
        ("--attention-backend flash", {"NVTE_FUSED_ATTN": "0"}, "hopper", None),
        ("", {"CUDA_DEVICE_MAX_CONNECTIONS": "1"}, "hopper", "overlap-serialised"),
        ("", {"NCCL_DEBUG": "trace"}, "hopper", "slow-environment"),
        ("", {"NCCL_DEBUG": "INFO"}, "hopper", None),
    ],
)
def test_the_environment_is_judged_by_gpu_and_options(
    options: str, variables: dict[str, str] | None, architecture: str | None, rule: str | None
) -> None:
    found = findings(facts(options, environment=variables, architecture=architecture))
    of_variables = {each.name for each in BY_FILE["environment"]} - {"environment-advised"}
    assert {finding.rule for finding in found} & of_variables == ({rule} if rule else set())


ANY = st.sampled_from(sorted(flags("core_v0.19.0").flags))


@given(
    st.lists(
        st.tuples(
            ANY, st.lists(st.sampled_from(["0", "-3", "7", "", "x", "1e9", "full", "Et|", "9" * 30]), max_size=2)
        ),
        max_size=12,
    ),
    st.sampled_from([None, 0, 1, 7, 4096]),
)
def test_no_list_of_options_breaks_the_rules_themselves(
    options: list[tuple[str, list[str]]], world: int | None
) -> None:
    words = [word for name, values in options for word in (name, *values)]
    for version in ("core_v0.11.0", "core_v0.19.0"):
        names = Namespace(settings(words, "launch.sh"), flags(version))
        for finding in findings(
            MegatronFacts(
                names,
                world_size=world,
                gpus_per_node=8,
                architecture="hopper",
                environment={},
                program="pretrain_gpt.py",
            )
        ):
            assert finding.problem.what[-1] not in ".!"


@pytest.mark.parametrize("version", ["core_v0.11.0", "core_v0.14.0"])
def test_words_in_place_of_the_numbers_of_a_rampup_are_a_finding(version: str) -> None:
    assert "has no numbers" in said(facts("--rampup-batch-size 16 16 x", version))["rampup-over-replicas"]


@pytest.mark.parametrize(("backend", "refused"), [("deepep", True), ("hybridep", False), ("ncclep", False)])
def test_a_backend_that_is_not_predicted_is_not_taken_for_another(backend: str, refused: bool) -> None:
    experts = "--num-experts 8 --expert-model-parallel-size 8 --moe-token-dispatcher-type flex"
    options = f"{experts} --moe-flex-dispatcher-backend {backend} --moe-expert-rank-capacity-factor 1.5"
    assert ("expert-capacity-of-a-dispatcher" in said(facts(options, "main"))) is refused
