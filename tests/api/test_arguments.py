"""Public functions that are called with anything at all: a sentence, or what was asked for, and never a traceback."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import pytest

import symconfig.deepspeed
import symconfig.megatron
from symconfig.api import existing as api_audit
from symconfig.api import fallback as api_fallback
from symconfig.api import frozen as api_frozen
from symconfig.api import mixed as api_mixed
from symconfig.api import partition as api_partition
from symconfig.api import pipeline as api_pipeline
from symconfig.api import planning as api
from symconfig.api import replan as api_replan
from symconfig.api import sweep as api_sweep
from symconfig.api.arguments import typed
from symconfig.api.planning import PlanResult
from symconfig.descriptor.job import Limits
from symconfig.descriptor.load import load_cluster
from symconfig.errors import InputError, SymconfigError
from tests.sample_plans import sample_plan

PLAN, DEEPSPEED = sample_plan(), sample_plan(backend="deepspeed")
MODEL = {"model": "llama2-7b", "cluster": "a100-80gb", "gpus": 8}
SWEEP = {"job": {"model": "llama2-7b", "cluster": "a100-80gb", "global_batch_size": 8}, "sweep": {"gpus": [8]}}
FUNCTIONS: Mapping[str, tuple[Callable[..., Any], Mapping[str, Any]]] = {
    "plan": (api.plan, {**MODEL, "global_batch_size": 8}),
    "plan_mixed": (
        api_mixed.plan_mixed,
        {"model": "llama2-7b", "cluster": "h100*8 + a100-80gb*8", "global_batch_size": 8},
    ),
    "write": (PlanResult(PLAN).write, {"out": "out"}),
    "timeline": (PlanResult(PLAN).timeline, {}),
    "replan": (api_replan.replan, {"plan": PLAN}),
    "diff": (api_replan.diff, {"before": PLAN, "after": PLAN}),
    "replan_lost_nodes": (api_fallback.replan_lost_nodes, {"plan": PLAN}),
    "verify_frozen": (api_frozen.verify_frozen, {"path": "args.txt"}),
    "audit": (api_audit.audit, {**MODEL, "source": "args.txt", "seq_length": 4096}),
    "adapt": (api_audit.adapt, {"source": "args.txt", "plan": PLAN}),
    "sweep": (api_sweep.sweep, {"source": SWEEP, "out": "x.csv"}),
    "size": (api_sweep.size, {"model": "llama2-7b", "deadline": "30d", "tokens": "2T", "clusters": "h100"}),
    "partition": (api_partition.partition, {**MODEL, "global_batch_size": 8}),
    "pipeline": (api_pipeline.pipeline, {**MODEL, "global_batch_size": 8}),
    "megatron.argv": (symconfig.megatron.argv, {"plan": PLAN}),
    "megatron.extra_args_provider": (symconfig.megatron.extra_args_provider, {"plan": PLAN}),
    "megatron.environment": (symconfig.megatron.environment, {"plan": PLAN}),
    "deepspeed.config": (symconfig.deepspeed.config, {"plan": DEEPSPEED}),
}
ANYTHING = ("ab", -1, True, None, float("nan"), [1], {1: 2}, (1, "a"), object(), b"x", "a\0b", 10**400)


class SearchedError(Exception):
    """What was given is good enough to be solved."""


@pytest.fixture(autouse=True)
def unsolved(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Nothing is searched, and files are written here."""

    def search(*_: object, **__: object) -> None:
        raise SearchedError

    for module in ("api.planning", "api.replan", "runs.replan.replanned", "runs.replan.fallback", "api.frozen"):
        monkeypatch.setattr(f"symconfig.{module}.best_plan", search)
    for name in (
        "api.existing.judge",
        "api.mixed.mixed_plan",
        "api.sweep.run",
        "api.sweep.run_size",
        "api.partition.solve",
        "api.pipeline.solve",
    ):
        monkeypatch.setattr(f"symconfig.{name}", search)
    monkeypatch.setenv("WORLD_SIZE", "1")  # a mismatch, which ends the functions of training scripts
    monkeypatch.chdir(tmp_path)
    (tmp_path / "args.txt").write_text("--num-layers 4 --hidden-size 64")


@pytest.mark.parametrize("name", FUNCTIONS)
def test_anything_in_the_place_of_an_argument_is_a_sentence_or_good(name: str) -> None:
    function, good = FUNCTIONS[name]
    kinds = inspect.Parameter.VAR_KEYWORD, inspect.Parameter.VAR_POSITIONAL
    for parameter in inspect.signature(function).parameters.values():
        for value in ANYTHING if parameter.kind not in kinds else ():
            try:
                function(**{**good, parameter.name: value})
            except (SymconfigError, SearchedError):
                continue


def test_every_wrong_argument_is_named_with_what_it_may_be() -> None:
    with pytest.raises(InputError) as error:
        symconfig.replan_lost_nodes(PLAN, lose_nodes="ab", top="5")  # type: ignore[arg-type]
    assert [str(problem) for problem in error.value.problems] == [
        "lose_nodes: wrong value (got 'ab', need int or tuple of int, int).",
        "top: wrong value (got '5', need int).",
    ]


def test_an_argument_is_what_a_job_says() -> None:
    given = (load_cluster("h100"), Limits(memory_margin=0.1), Path("x/y"), {"a": 1}, 8)
    assert [api.as_field(each) for each in given] == ["h100", {"memory_margin": 0.1}, "x/y", {"a": 1}, 8]


@typed
def function(
    whole: int = 0,
    share: float = 0.0,
    path: str | Path | None = None,
    names: Iterable[str] = (),
    words: Sequence[str] = (),
    pair: tuple[int, int] = (1, 2),
    values: Mapping[str, int | str] | None = None,
    mode: Literal["a", "b"] = "a",
    call: Callable[[int], None] | None = None,
    **more: int,
) -> str:
    """Of every kind of annotation that public functions have."""
    return "called"


@pytest.mark.parametrize(("name", "good", "bad", "need"), [
    ("whole", [0, -1], [True, 1.5, "1", None], "int"),
    ("share", [0, 0.5], [True, "0.5"], "float"),
    ("path", ["x", Path("x"), None], [1, b"x"], "str or Path"),
    ("names", [[], ["a"], ("a",), {"a"}, iter("a")], ["a", [1], 1, {"a": 1}], "list of str"),
    ("words", [["a"]], ["a", {"a"}, b"a"], "list of str"),
    ("pair", [(3, 4)], [[3, 4], (3,), (3, "a")], "tuple of int, int"),
    ("values", [{}, {"a": 1, "b": "c"}], [{1: 1}, {"a": None}, []], "mapping of str to int or str"),
    ("mode", ["a", "neither, which the function says itself"], [1], "'a' or 'b'"),
    ("call", [print, None], [1], "a function"),
    ("more", ["is not looked at"], [], ""),
])  # fmt: skip
def test_types_are_those_of_the_annotation(name: str, good: list[Any], bad: list[Any], need: str) -> None:
    for value in good:
        assert function(**{name: value}) == "called"
    for value in bad:
        with pytest.raises(InputError) as error:
            function(**{name: value})
        assert error.value.problems[0].field == name
        assert error.value.problems[0].need == need


def test_a_result_shows_itself_in_a_line() -> None:
    shown = repr(PlanResult(PLAN))
    assert shown.startswith(f"<PlanResult of {PLAN.model.name} on ")
    assert "s a step" in shown
    assert len(shown) < 300


def test_a_name_that_no_argument_has_comes_with_the_nearest_one() -> None:
    with pytest.raises(
        TypeError, match=r"plan\(\) got an unexpected keyword .*'global_batch'\. Try: global_batch_size"
    ):
        symconfig.plan(model="llama2-7b", cluster="h100", gpus=8, global_batch=8)  # type: ignore[call-arg]
