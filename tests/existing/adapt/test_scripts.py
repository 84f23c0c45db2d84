"""Shell scripts with a plan's values in them: what changes is what the plan decides, and every other byte stays."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from symconfig.errors import InputError
from symconfig.existing.adapt.files import adapted
from symconfig.existing.adapt.megatron import Goal
from symconfig.existing.launch.read import read
from symconfig.plans.plan import Plan
from symconfig.render import render
from tests.existing.adapt.scripts import STYLES, adapt, array, lines, new, options, plan, written
from tests.sample_plans import sample_plan

FULL: dict[str, Any] = {"recompute": "full", "recompute_method": "uniform"}


@pytest.mark.parametrize("style", STYLES)
@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"tp": 1, "pp": 1, "dp": 8, "zero_stage": 3},
        {"pp": 4, "vpp": 5, **FULL},
        {"model": "mixtral-8x7b", "tp": 2, "pp": 4, "ep": 4, "dp": 4},
        {"cluster": "h100", "precision": "fp8"},
    ],
)
def test_a_script_that_says_the_plan_already_is_left_as_it_is(
    tmp_path: Path, style: str, fields: dict[str, Any]
) -> None:
    mine = plan(**fields)
    outcome = adapt(tmp_path, STYLES[style](mine, options(mine)), mine)
    assert (outcome.files, outcome.changes, outcome.unplaced, outcome.diff) == ({}, (), (), "")


@pytest.mark.parametrize(
    "model",
    [
        "llama2-13b",
        "llama3.1-70b",
        "qwen3-30b-a3b",
        "mixtral-8x7b",
        "deepseek-v3",
        "gpt-oss-120b",
        "gpt3-175b",
        "qwen2.5-7b",
    ],
)
def test_so_is_what_was_rendered_from_it(tmp_path: Path, model: str) -> None:
    mine = sample_plan(model, "h100")
    outcome = adapt(tmp_path, render(mine, "megatron")["launch.sh"], mine)
    assert (outcome.files, outcome.unplaced) == ({}, ())


@pytest.mark.parametrize("style", STYLES)
def test_another_plan_changes_its_own_values_only(tmp_path: Path, style: str) -> None:
    mine, goal = plan(), plan(tp=2, dp=4, **FULL)
    outcome = adapt(tmp_path, STYLES[style](mine, options(mine)), goal)
    assert not outcome.unplaced
    assert {change.option: (change.was, change.now) for change in outcome.changes} == {
        "--tensor-model-parallel-size": ("4", "2"),
        "--recompute-granularity": (None, "full"),
        "--recompute-method": (None, "uniform"),
        "--recompute-num-layers": (None, "1"),
    }
    before, after = (text.split() for text in (STYLES[style](mine, options(mine)), new(outcome)))
    assert len(after) - len(before) in range(3, 10)


def test_the_diff_is_that_of_a_careful_person(tmp_path: Path) -> None:
    mine = plan()
    source = array(mine, options(mine)).replace("size 4\n", "size 4  # one node\n")
    goal = plan(tp=8, dp=1, zero_stage=0, overlap_param_gather=False, recompute="selective", recompute_modules=("mlp",))
    assert lines(adapt(tmp_path, source, goal)) == [
        "-    --tensor-model-parallel-size 4  # one node",
        "+    --tensor-model-parallel-size 8  # one node",
        "-    --use-distributed-optimizer",
        "-    --overlap-grad-reduce",
        "-    --overlap-param-gather",
        "+    --recompute-granularity selective",
        "+    --recompute-modules mlp",
    ]


def test_values_in_variables_are_changed_where_they_are_set(tmp_path: Path) -> None:
    mine = plan()
    goal = plan(tp=2, dp=4, micro=2)
    assert lines(adapt(tmp_path, STYLES["variables"](mine, options(mine)), goal)) == [
        "-MICRO_BATCH_SIZE=1",
        "+MICRO_BATCH_SIZE=2",
        "-TENSOR_MODEL_PARALLEL_SIZE=4",
        "+TENSOR_MODEL_PARALLEL_SIZE=2",
    ]
    assert "PIPELINE_MODEL_PARALLEL_SIZE:-4" in new(
        adapt(tmp_path, STYLES["variables"](mine, options(mine)), plan(tp=2, pp=4))
    )


def test_a_variable_that_says_something_else_as_well_stays(tmp_path: Path) -> None:
    mine = plan(tp=8, pp=2, dp=2)
    source = array(mine, options(mine)).replace("ARGS=(", "GPUS_PER_NODE=8\nARGS=(")
    source = source.replace("-size 8", "-size $GPUS_PER_NODE").replace("_node 8", "_node $GPUS_PER_NODE")
    assert lines(adapt(tmp_path, source, plan(tp=4, pp=2, dp=4))) == [
        "-    --tensor-model-parallel-size $GPUS_PER_NODE",
        "+    --tensor-model-parallel-size 4",
    ]


def test_what_is_said_in_another_way_is_left_as_it_is_said(tmp_path: Path) -> None:
    goal = plan(pp=4, vpp=5, dp=1, recompute="selective", recompute_modules=("core_attn",))
    source = array(goal, options(goal))
    source = source.replace(
        "    --recompute-granularity selective\n    --recompute-modules core_attn\n", "    --recompute-activations\n"
    )
    source = source.replace("--num-virtual-stages-per-pipeline-rank 5", "--num-layers-per-virtual-pipeline-stage 2")
    source = source.replace("    --context-parallel-size 1\n", "")
    assert adapt(tmp_path, source, goal).files == {}
    more = adapt(tmp_path, source, plan(pp=4, vpp=2, dp=1, recompute="selective", recompute_modules=("core_attn",)))
    assert lines(more) == [
        "+    --num-virtual-stages-per-pipeline-rank 2",
        "-    --num-layers-per-virtual-pipeline-stage 2",
    ]


def test_a_default_that_follows_another_option_is_held(tmp_path: Path) -> None:
    mine = plan("mixtral-8x7b", tp=2, etp=2, pp=2, ep=2, dp=4)
    source = array(mine, options(mine)).replace("    --expert-tensor-parallel-size 2\n", "")  # then it is tp
    assert adapt(tmp_path, source, mine).files == {}
    goal = plan("mixtral-8x7b", tp=4, etp=2, pp=2, ep=2, dp=2)
    assert lines(adapt(tmp_path, source, goal)) == [
        "-    --tensor-model-parallel-size 2",
        "+    --tensor-model-parallel-size 4",
        "+    --expert-tensor-parallel-size 2",
    ]


def test_a_variable_that_keeps_the_plan_from_starting_is_changed(tmp_path: Path) -> None:
    mine = plan(tp=2, pp=1, dp=8)
    goal = plan(tp=2, pp=1, dp=8, zero_stage=3)
    outcome = adapt(tmp_path, array(mine, options(mine)), goal)
    assert "+export CUDA_DEVICE_MAX_CONNECTIONS=8" in lines(outcome)
    assert "+    --use-megatron-fsdp" in lines(outcome)
    without = adapt(tmp_path, array(goal, options(goal)).replace("export CUDA", "# export CUDA"), goal)
    assert not without.files
    assert any("CUDA_DEVICE_MAX_CONNECTIONS=8" in note for note in without.notes)


def test_a_variable_that_is_missing_is_exported_beside_the_others(tmp_path: Path) -> None:
    mine, goal = plan(tp=1, pp=2, dp=8), plan(tp=2, pp=2, dp=4)
    source = array(mine, options(mine)).replace("#!/bin/bash\n", "#!/bin/bash\nexport OMP_NUM_THREADS=1\n")
    assert "CUDA_DEVICE_MAX_CONNECTIONS" not in source
    outcome = adapt(tmp_path, source, goal)
    assert "+export CUDA_DEVICE_MAX_CONNECTIONS=1" in lines(outcome)
    assert new(outcome).startswith("#!/bin/bash\nexport OMP_NUM_THREADS=1\nexport CUDA_DEVICE_MAX_CONNECTIONS=1\n")


def test_another_model_is_refused_with_what_differs(tmp_path: Path) -> None:
    mine = plan()
    source = array(mine, options(mine)).replace("--hidden-size 5120", "--hidden-size 4096")
    source = source.replace("--seq-length 4096", "--seq-length 2048").replace("--num-layers 40", "--num-layers 32")
    with pytest.raises(InputError) as caught:
        adapt(tmp_path, source, mine)
    assert {problem.field for problem in caught.value.problems} >= {"--seq-length"}
    assert len(caught.value.problems) >= 3
    assert not list(tmp_path.glob(".*"))


DEGREES = st.fixed_dictionaries(
    {
        "tp": st.sampled_from([1, 2, 4]),
        "pp": st.sampled_from([1, 2, 4]),
        "vpp": st.sampled_from([1, 5]),
        "dp": st.sampled_from([1, 2]),
        "cp": st.sampled_from([1, 2]),
        "micro": st.sampled_from([1, 2]),
        "zero_stage": st.sampled_from([0, 1]),
        "overlap_grad_reduce": st.booleans(),
        "overlap_pp_p2p": st.booleans(),
        "recompute": st.sampled_from(
            [
                FULL,
                {"recompute": "none"},
                {"recompute": "selective", "recompute_modules": ("core_attn", "mlp")},
                {"recompute": "full", "recompute_method": "block", "recompute_layers": 3},
            ]
        ),
        "optimizer_offload": st.sampled_from([0.0, 0.5]),
        "grad_bytes": st.sampled_from([2, 4]),
    }
)


def sensible(fields: dict[str, Any]) -> Plan:
    """The plan of such degrees, less what goes together with none of them."""
    fields = dict(fields)
    if fields["pp"] == 1:
        fields = {**fields, "vpp": 1}
    if fields["zero_stage"] == 0:
        fields = {**fields, "optimizer_offload": 0.0, "overlap_param_gather": False}
    recompute = fields.pop("recompute")
    return plan(**fields, **recompute, global_batch=64)


@settings(deadline=None, max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(DEGREES.map(sensible), DEGREES.map(sensible), st.sampled_from(sorted(STYLES)))
def test_what_is_written_is_the_plan_or_is_said_not_to_be(tmp_path: Path, mine: Plan, goal: Plan, style: str) -> None:
    outcome = adapt(tmp_path, STYLES[style](mine, options(mine)), goal)
    path = written(tmp_path, new(outcome))
    reading = read(path)
    aim = Goal.of(goal)
    assert not outcome.unplaced
    assert not aim.differing(aim.names(reading), aim.gpus)
    decided = {setting.name for each in (aim.settings, Goal.of(mine).settings) for setting in each}
    before, after = (
        {
            setting.name: [word.text for word in setting.values]
            for setting in each.settings
            if setting.name not in decided
        }
        for each in (outcome.reading, reading)
    )
    assert before == after
    assert adapted(path, goal, {}).files == {}


DENSE: dict[str, Any] = {"model": "llama2-13b", "cluster": "h100", "tp": 4, "pp": 2, "dp": 2, "global_batch": 32}
EXPERTS = DENSE | {"model": "mixtral-8x7b", "tp": 2, "ep": 4, "dp": 4, "overlap_tp_comm": False}
FLEX = {"moe_dispatcher": "flex", "moe_flex_backend": "hybridep"}
GRAPHS = {"--cuda-graph-impl": "transformer_engine", "--te-rng-tracker": ""}
CASES: dict[str, tuple[dict[str, Any], dict[str, Any], dict[str, str]]] = {
    "graphs": (DENSE, {"cuda_graphs": "all"}, GRAPHS | {"--cuda-graph-modules": "attn mlp"}),
    "the router's graphs": (
        EXPERTS,
        {"cuda_graphs": "router"},
        GRAPHS | {"--cuda-graph-modules": "moe_router moe_preprocess"},
    ),
    "weights in 8 bits": (DENSE | {"precision": "fp8"}, {"fp8_param_gather": True}, {"--fp8-param-gather": ""}),
    "weight shards": (DENSE, {"gtp": 2}, {"--tensor-parallel-num-weight-shards": "8"}),
    "fused loss": (
        DENSE | {"version": "core_v0.17.1"},
        {"fused_loss": True},
        {"--cross-entropy-loss-fusion": "", "--cross-entropy-fusion-impl": "te"},
    ),
    "hybridep": (
        EXPERTS,
        FLEX,
        {"--moe-token-dispatcher-type": "flex", "--moe-flex-dispatcher-backend": "hybridep"},
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_an_option_is_put_in_and_taken_out(tmp_path: Path, name: str) -> None:
    base, more, said = CASES[name]
    without, having = sample_plan(**base), sample_plan(**base, **more)
    put = adapt(tmp_path, array(without, options(without)), having)
    assert {change.option: change.now for change in put.changes if change.option.startswith("--")} == said
    assert not put.unplaced
    out = adapt(tmp_path, array(having, options(having)), without)
    assert said.keys() - {"--moe-token-dispatcher-type"} <= {change.option for change in out.changes}
    assert not out.unplaced


@pytest.mark.parametrize(
    ("base", "more", "line"),
    [
        (DENSE, {"cuda_graphs": "all"}, "--cuda-graph-impl local"),
        (DENSE, {}, "--cuda-graph-impl local\n    --cuda-graph-modules attn"),  # of which nothing is predicted
        (DENSE, {}, "--cross-entropy-loss-fusion"),
        (EXPERTS, {"moe_dispatcher": "flex", "moe_flex_backend": "deepep"}, "--moe-enable-deepep"),
    ],
)
def test_what_is_said_in_another_way_stays(
    tmp_path: Path, base: dict[str, Any], more: dict[str, Any], line: str
) -> None:
    goal = sample_plan(**base, **more)
    mine = [option for option in options(goal) if not option.startswith(("--cuda-graph", "--moe-flex"))]
    outcome = adapt(tmp_path, array(goal, [*mine, line]), goal)
    assert (outcome.changes, outcome.unplaced) == ((), ())
