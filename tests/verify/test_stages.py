"""Every layer is present: stages of plans, and small pipelines told in every way, as the real Megatron builds them."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from itertools import accumulate, product
from pathlib import Path
from typing import Any

import pytest

import symconfig
from symconfig.descriptor.load import load_model
from symconfig.descriptor.model import ModelDescriptor
from symconfig.plans.pipeline_layout import dealt, written
from symconfig.plans.plan import Plan
from symconfig.verify import megatron, megatron_agreement, megatron_session
from symconfig.verify.megatron_session import Result
from tests.verify.megatron_support import LIMIT_S, rendered, source

pytestmark = pytest.mark.usefixtures("warm_megatron")

UNEVEN = "Ett|(tt|)*15(t*3|)*15t*3L"
GLM = Path(__file__).parent / "models" / "glm-4.5-air.yaml"


@dataclass(frozen=True, slots=True)
class Case:
    """What is planned, and words of how its stages are then told."""

    model: str
    layers: int
    gpus: int
    batch: int
    pins: dict[str, str]
    said: str
    version: str = "core_v0.19.0"
    cluster: str = "h100"
    change: dict[str, int] = field(default_factory=dict)


CASES = {
    "DeepSeek-V3 on 2,048 GPUs": Case(
        "deepseek-v3",
        61,
        2048,
        8192,
        {"pp": "16", "vpp": "1", "tp": "1", "ep": "64", "cp": "1"},
        "1 layer on the last",
        cluster="h200",  # in the memory of an h100 the first stages get fewer layers than those after them
    ),
    "DeepSeek-V3 with an empty chunk": Case("deepseek-v3", 61, 2048, 8192,
        {"tp": "1", "ep": "64", "cp": "1", "layout": "Et*3|(tt|)*29,|mL"}, "Et*3|(tt|)*29|mL"),
    "GLM-4.5-Air on PP4": Case(str(GLM), 46, 64, 512, {"pp": "4", "vpp": "1", "ep": "8"}, "on the first stage"),
    "30 layers on PP4": Case("llama3.1-8b", 30, 32, 256, {"pp": "4", "vpp": "1"}, "", change={"num_hidden_layers": 30}),
    "30 layers on PP4, without layout strings": Case(
        "llama3.1-8b", 30, 32, 256, {"pp": "4", "vpp": "1"}, "", "core_v0.12.1", change={"num_hidden_layers": 30}
    ),
    "80 layers on PP16 VPP2": Case("llama3.1-70b", 80, 256, 1024, {"pp": "16", "vpp": "2", "layout": UNEVEN}, UNEVEN),
    "12 layers with chunks of no layer": Case(
        "llama3.1-8b", 12, 32, 256, {"layout": "E|t*3||(tt|)*4tL"}, "E|t*3||(tt|)*4tL", change={"num_hidden_layers": 12}
    ),
}  # fmt: skip


def planned(case: Case) -> Plan:
    model: ModelDescriptor = load_model(case.model).model_copy(update=case.change)
    return symconfig.plan(
        model=model, cluster=case.cluster, gpus=case.gpus, global_batch_size=case.batch, seq_length=4096,
        pins=case.pins, megatron_version=case.version, top=1,
    ).plan  # fmt: skip


@pytest.fixture(scope="module")
def plans() -> dict[str, Plan]:
    return {name: planned(case) for name, case in CASES.items()}


@pytest.fixture(scope="module")
def results(plans: dict[str, Plan]) -> dict[str, Result]:
    """Megatron's word on each plan's arguments, for those of old versions as well: it still has their options."""
    jobs = [job for name, plan in plans.items() for job in megatron.session_jobs(name, rendered(plan), source())]
    return megatron_session.run(source(), jobs, LIMIT_S)


@pytest.mark.parametrize("name", CASES)
def test_megatron_builds_layers_where_the_plan_has_them(
    name: str, plans: dict[str, Plan], results: dict[str, Result]
) -> None:
    case, plan, result = CASES[name], plans[name], results[name]
    assert result.error is None
    assert case.said in plan.best.configuration.stage_layout
    assert list(megatron_agreement.stages(plan, result, "file")) == []
    assert sum(count for stage in result.stages for _, count, _ in stage) == case.layers
    assert len(result.stages) == plan.best.configuration.pp
    assert {len(stage) for stage in result.stages} == {plan.best.configuration.vpp}


def test_a_layer_that_is_lost_doubled_or_elsewhere_is_named(plans: dict[str, Plan], results: dict[str, Result]) -> None:
    plan, result = plans["GLM-4.5-Air on PP4"], results["GLM-4.5-Air on PP4"]
    ((first, count, more),) = result.stages[-1]

    def said(*last: int) -> str:
        stages = (*result.stages[:-1], (last,))
        return " ".join(map(str, megatron_agreement.stages(plan, replace(result, stages=stages), "file")))

    assert said(first, count, more) == ""
    assert "45 layers, without 45" in said(first, count - 1, more)
    assert f"twice {first - 1}" in said(first - 1, count + 1, more)
    assert "need 9 moe + 1 mtp" in said(first, count, 0)


def test_megatron_builds_the_layers_of_each_kind_of_two() -> None:
    pins = {"tp": "1", "pp": "4", "mbs": "1", "recompute": "none"}
    mixed = symconfig.plan_mixed("llama2-13b", "h100*16 + a100-80gb*16", 64, pins=pins, top=1).plan
    told = {host.share.cluster.name: mixed.of(host) for host in mixed.best.hosts}
    results = megatron_session.run(
        source(),
        [job for name, plan in told.items() for job in megatron.session_jobs(name, rendered(plan), source())],
        LIMIT_S,
    )
    for name, plan in told.items():
        assert results[name].error is None
        assert list(megatron_agreement.stages(plan, results[name], "file")) == []
        built = [count for stage in results[name].stages for _, count, _ in stage]
        assert built == [count for host in mixed.best.hosts for count in host.layers]
    assert len({tuple(result.stages) for result in results.values()}) == 1


Medium = dict[str, Any]
ENDS = ("account_for_embedding_in_pipeline_split", "account_for_loss_in_pipeline_split")
COUNTS = ("num_layers_in_first_pipeline_stage", "num_layers_in_last_pipeline_stage")


def pipelines() -> Iterator[tuple[int, int, int]]:
    yield from product(range(1, 17), range(2, 5), range(1, 4))


def cases() -> Iterator[Medium]:
    """Of each pipeline: the ends as layers or not, and all counts of the first and last stage."""
    for layers, pp, vpp in pipelines():
        shape = {
            "num_layers": layers,
            "pipeline_model_parallel_size": pp,
            "virtual_pipeline_model_parallel_size": vpp if vpp > 1 else None,
        }
        for ends in product((False, True), repeat=2):
            yield shape | dict(zip(ENDS, ends, strict=True))
        for counts in product((None, *range(1, 7)), repeat=2):
            if counts != (None, None):
                yield shape | dict(zip(COUNTS, counts, strict=True))


def asked(questions: list[Medium]) -> list[Any]:
    root, folder = source().root, megatron_session.RUNNER.parent
    command = [sys.executable, "-E", "-P", str(Path(__file__).with_name("stages_worker.py")), str(root), str(folder)]
    ended = subprocess.run(
        command, input=json.dumps(questions), capture_output=True, text=True, timeout=300, check=False
    )
    assert ended.returncode == 0, ended.stderr[-2000:]
    answers: list[Any] = json.loads(ended.stdout)
    return answers


def stages(sizes: tuple[int, ...], pp: int) -> list[list[list[int]]]:
    """As Megatron says it: first layer and number of layers, by stage and virtual stage."""
    firsts = list(accumulate(sizes, initial=0))
    return [[[firsts[chunk], sizes[chunk]] for chunk in range(stage, len(sizes), pp)] for stage in range(pp)]


@pytest.fixture(scope="module")
def real() -> list[tuple[Medium, Any]]:
    questions = list(cases())
    return list(zip(questions, asked(questions), strict=True))


def ours(told: Medium) -> tuple[int, ...] | None:
    return dealt(
        told["num_layers"],
        told["pipeline_model_parallel_size"],
        told["virtual_pipeline_model_parallel_size"] or 1,
        first=told.get(COUNTS[0]),
        last=told.get(COUNTS[1]),
        embedding=told.get(ENDS[0], False),
        loss=told.get(ENDS[1], False),
    )


def test_what_is_dealt_is_what_megatron_builds(real: list[tuple[Medium, Any]]) -> None:
    dealt_cases = [(told, answer, sizes) for told, answer in real if (sizes := ours(told)) is not None]
    assert len(dealt_cases) > 400
    for told, answer, sizes in dealt_cases:
        pp, vpp = told["pipeline_model_parallel_size"], told["virtual_pipeline_model_parallel_size"]
        if pp == 2 and vpp and None not in (told.get(name) for name in COUNTS):
            assert "ZeroDivisionError" in answer  # so that only the first of two stages is told
        else:
            assert answer == stages(sizes, pp), told


def test_what_is_not_dealt_megatron_refuses_or_loses(real: list[tuple[Medium, Any]]) -> None:
    for told, answer in real:
        if ours(told) is None and not isinstance(answer, str):
            held = sorted(layer for stage in answer for first, count in stage for layer in range(first, first + count))
            negative = any(count < 0 for stage in answer for _, count in stage)
            assert negative or held != list(range(told["num_layers"])), told


def test_layout_strings_are_what_megatron_builds() -> None:
    """Chunks of all sizes, also of none, with the embedding or the loss alone or not."""
    questions, expected = [], []
    for pp, vpp, shift in product((2, 3, 4, 8), (1, 2, 3), range(5)):
        sizes = tuple((7 * chunk + 3 * shift) % 5 // 2 for chunk in range(pp * vpp))
        if not sum(sizes):
            continue
        chunks = [("dense",) * size for size in sizes]
        chunks[0], chunks[-1] = ("embedding", *chunks[0]), (*chunks[-1], "head")
        questions.append(
            {
                "num_layers": sum(sizes),
                "pipeline_model_parallel_size": pp,
                "virtual_pipeline_model_parallel_size": vpp if vpp > 1 else None,
                "pipeline_model_parallel_layout": written(chunks),
            }
        )
        expected.append(stages(sizes, pp))
    for told, answer, wanted in zip(questions, asked(questions), expected, strict=True):
        assert answer == wanted, told
