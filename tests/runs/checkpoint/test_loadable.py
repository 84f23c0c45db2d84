"""What `loadable` says: of the cases that the real frameworks were asked, and what follows from the rules."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from symconfig.descriptor.model import ModelDescriptor
from symconfig.errors import InputError
from symconfig.plans.plan import Plan
from symconfig.runs.checkpoint.loadable import kinds, loadable, of_folder
from symconfig.runs.checkpoint.read import read
from symconfig.runs.checkpoint.table import Loadable, Verdict
from tests.runs.checkpoint import cases, cases_deepspeed
from tests.runs.checkpoint.cases import CASES, WHOLE, dense, experts, plan
from tests.runs.checkpoint.cases_deepspeed import ZERO
from tests.runs.checkpoint.cases_deepspeed import plan as deepspeed_plan
from tests.runs.checkpoint.folders import deepspeed, torch_dist
from tests.sample_plans import sample_model, sample_plan
from tests.sampled import sampled
from tests.verify.megatron_support import source
from tools.generate import is_current
from tools.verify.checkpoints.megatron import do

EVERY = {**CASES, **cases_deepspeed.CASES}


@pytest.mark.parametrize("name", EVERY)
def test_cases(name: str) -> None:
    case = EVERY[name]
    said = loadable(*case.plans(), case.kind)
    assert said.verdict is case.verdict
    if said.verdict is Verdict.CONVERTED:
        assert {step.run for step in said.how} & {"old", "between"}
        assert said.otherwise in (Verdict.WEIGHTS, Verdict.NO)


def says(said: Loadable) -> str:
    return " ".join(reason.text for reason in said.reasons)


@pytest.mark.parametrize("kind", kinds(plan()))
def test_the_same_plan_loads_its_own(kind: str) -> None:
    expected = Verdict.WEIGHTS if kind == "huggingface" else Verdict.AS_IS
    assert loadable(plan(dp=2), plan(dp=2), kind).verdict is expected


degrees = st.fixed_dictionaries({name: st.sampled_from((1, 2, 4)) for name in ("tp", "pp", "cp", "dp")})


@settings(deadline=None, max_examples=40)
@given(old=degrees, new=degrees)
def test_whole_tensors_are_never_worse_than_buffers(old: dict[str, int], new: dict[str, int]) -> None:
    plans = plan(**old), plan(**new)
    buffers, whole = loadable(*plans), loadable(*plans, WHOLE)
    assert whole.verdict.rank <= buffers.verdict.rank
    assert whole.verdict.rank <= Verdict.RESHARDED.rank
    same = all(old[name] == new[name] for name in ("tp", "pp"))
    assert (buffers.verdict is Verdict.CONVERTED) != same


@settings(deadline=None, max_examples=30)
@given(old=degrees, new=degrees, writes=st.sampled_from(("core_v0.12.1", "core_v0.15.0", "core_v0.19.0")))
def test_every_reason_has_a_source_and_no_word_is_left_open(
    old: dict[str, int], new: dict[str, int], writes: str
) -> None:
    said = loadable(plan(writes, **old), plan(**new))
    for reason in said.reasons:
        assert "@" in reason.source or "." in reason.source
        assert "{" not in reason.text
    for step in (*said.how, *said.otherwise_how):
        assert "<<" not in step.words + step.does


def test_buckets_that_close_elsewhere_can_be_told() -> None:
    """Beyond 40 replicas the buckets grow; the first stage of 13B has more than one."""
    plans = (sample_plan("llama2-13b", tp=2, pp=2, dp=32), sample_plan("llama2-13b", tp=2, pp=2, dp=64))
    said = loadable(*plans)
    assert said.verdict is Verdict.RESHARDED
    assert said.options("new")[:2] == ("--ddp-bucket-size", "40000000")
    assert not loadable(plans[0], plans[0]).how


@pytest.mark.parametrize(("writes", "reads", "told"), [
    ("core_v0.16.1", "core_v0.16.1", True), ("core_v0.16.1", "core_v0.19.0", True),
    ("core_v0.15.0", "core_v0.16.1", True), ("core_v0.19.0", "core_v0.19.0", False)])  # fmt: skip
def test_generators_of_every_replica(writes: str, reads: str, told: bool) -> None:
    """With expert parallelism core_v0.16 has states of all replicas, and its neighbours of the first."""
    model = experts()
    said = loadable(plan(writes, model, ep=2, dp=2), plan(reads, model, ep=2, dp=4), WHOLE)
    assert ("--no-load-rng" in said.options("new")) is told
    assert bool(said.lost) is told
    assert not loadable(plan(writes, model, ep=2, dp=2), plan(writes, model, ep=2, dp=2)).lost


ADAPTER = {"r": 8, "lora_alpha": 16.0, "target_modules": ["q_proj", "v_proj"]}


def tuned(**fields: Any) -> Any:
    model = sample_model("qwen2.5-7b", adapter={**ADAPTER, **fields.pop("adapter", {})})
    return sample_plan(model, "h100", backend="deepspeed", version="0.19.8", **fields)


BUCKETED = {"tp": 2, "pp": 2, "dp": 8}
LEARNED = dense(position="learned", max_position_embeddings=64)
# The old and the new plan, the verdict, and what is said of it.
SAID: dict[str, tuple[Plan, Plan, Verdict, str]] = {
    "another kernel": (plan(dp=2), plan(dp=2), Verdict.AS_IS, ""),
    "one bucket without overlap": (
        sample_plan("llama2-13b", **BUCKETED),
        sample_plan("llama2-13b", **BUCKETED, overlap_grad_reduce=False),
        Verdict.CONVERTED,
        "",
    ),
    "longer sequences": (plan(dp=2), plan(dp=2, seq_length=32), Verdict.AS_IS, "cut into sequences anew"),
    "beyond a table of positions": (plan(model=LEARNED), plan(model=LEARNED, seq_length=128), Verdict.NO, ""),
    "a wider window of rope": (
        plan(), plan(model=dense(rope_theta=500000.0)), Verdict.AS_IS, "rope_theta 10000.0 -> 500000.0",
    ),
    "dense to experts": (plan(), plan(model=experts()), Verdict.WEIGHTS, "--moe-use-upcycling"),
    "experts to dense": (plan(model=experts()), plan(), Verdict.NO, ""),
    "a larger batch for an adapter": (
        tuned(dp=8, global_batch=8), tuned(dp=8, global_batch=32), Verdict.AS_IS, "in steps of the new size",
    ),
    "an adapter of another rank": (tuned(), tuned(adapter={"r": 16}), Verdict.WEIGHTS, "merge_and_unload"),
    "an old release": (plan("core_v0.14.0", dp=2), plan(dp=2), Verdict.CONVERTED, "core_v0.15"),
    "the next release": (plan("core_v0.14.0", dp=2), plan("core_v0.15.0", dp=2), Verdict.AS_IS, ""),
    "an old release, unsharded": (
        plan("core_v0.14.0", dp=2, zero_stage=0), plan(dp=2, zero_stage=0), Verdict.AS_IS, "",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", SAID)
def test_what_follows_from_the_rules(name: str) -> None:
    old, new, verdict, words = SAID[name]
    said = loadable(old, new)
    assert said.verdict is verdict
    assert words in says(said) + " ".join(step.does + step.words for step in said.how)


SIZES = {
    "num_layers": 4, "hidden_size": 64, "ffn_hidden_size": 96, "num_attention_heads": 4, "seq_length": 64,
    "global_batch_size": 8, "tensor_model_parallel_size": 1, "pipeline_model_parallel_size": 1, "data_parallel_size": 2,
}  # fmt: skip


@pytest.mark.parametrize(
    ("said", "model", "verdict", "words"),
    [
        (None, dense(), Verdict.AS_IS, ""),
        (0, dense(), Verdict.AS_IS, ""),
        (4, dense(), Verdict.NO, ""),
        (None, experts(), Verdict.WEIGHTS, "every expert starts as a copy"),
    ],
)
def test_experts_of_a_checkpoint_are_those_of_the_plan_or_copies(
    tmp_path: Path, said: int | None, model: ModelDescriptor, verdict: Verdict, words: str
) -> None:
    folder = read(torch_dist(tmp_path / "it", inside=True, num_experts=said, **SIZES))
    found = of_folder(folder, plan(dp=2, model=model))
    assert found.verdict is verdict
    assert words in says(found)


def test_names_are_no_model() -> None:
    named = dense().model_copy(update={"name": "another", "source": "elsewhere", "notes": ("a note",)})
    assert loadable(plan(), plan(model=named)) == loadable(plan(), plan())


def test_between_the_frameworks_only_weights_go() -> None:
    megatron = sample_plan("llama2-13b")
    deepspeed = sample_plan("llama2-13b", backend="deepspeed", version="0.19.8")
    for pair in ((megatron, deepspeed), (deepspeed, megatron)):
        said = loadable(*pair)
        assert said.verdict is Verdict.WEIGHTS
        assert {step.run for step in said.how} == {"between", "new"}


@pytest.mark.parametrize(("kind", "sentence"), [
    ("deepspeed", "is no checkpoint of megatron core_v0.19.0"), ("zarr", "is no checkpoint of megatron core_v0.19.0"),
    ("torch_dist:fully_sharded_model_space", "need one of "), ("torch:whole", "need one of "),
])  # fmt: skip
def test_a_kind_that_cannot_be(kind: str, sentence: str) -> None:
    with pytest.raises(InputError, match=sentence):
        loadable(plan(), plan(), kind)


def test_json() -> None:
    data = loadable(plan(tp=2), plan(pp=2)).to_dict()
    assert data["verdict"] == "converted first"
    assert data["how"][0]["run"] == "old"
    assert replace(loadable(plan(), plan()), lost=()).to_dict()["lost"] == ()


@pytest.mark.parametrize("version", ["0.9.5", "0.10.3", "0.16.2+b344c04d", "0.19.8", "0.20.0", "master"])
def test_any_release_of_deepspeed(tmp_path: Path, version: str) -> None:
    """Also a source build's, and those that this project does not know."""
    folder = read(deepspeed(tmp_path / "it", dp=2, stage=1, ds_version=version))
    assert of_folder(folder, deepspeed_plan(dp=2, **ZERO[1])).verdict is Verdict.AS_IS


def test_the_page_is_what_its_script_writes() -> None:
    assert is_current("checkpoints"), "python -m tools generate checkpoints"


def test_every_case_was_done_and_was_as_said() -> None:
    seen = json.loads((Path(__file__).with_name("seen.json")).read_text(encoding="utf-8"))
    every = {**cases.CASES, **cases_deepspeed.CASES}
    assert set(seen) == set(every)
    assert {name: case["verdict"] for name, case in seen.items()} == {
        name: case.verdict for name, case in every.items()
    }
    assert not [name for name, case in seen.items() if case["wrong"]]


# Refused, then weights only; refused, then converted and loaded whole.
SHOWN = sampled(("ep 2 to 1", "tp 2 to pp 2"), 2)


def test_megatron_does_what_is_said_of_it() -> None:
    found = list(do({name: CASES[name] for name in SHOWN}, {"core_v0.19.0": source().root}))
    assert [case.name for case in found] == SHOWN
    assert {case.name: case.wrong for case in found if case.wrong} == {}
