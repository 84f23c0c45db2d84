"""Partitioned modules trained on two and four CPU ranks against the modules themselves on one."""

from __future__ import annotations

import ast
import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch", reason="modules run in torch")
pytest.importorskip("transformers", reason="the modules of these tests come from transformers")

from tests.solve.partition.executed_cases import CUT, FOUR, MODULES, NAMED, REAL, built, dtype, files, run, write

# Rounding of float32: sums in another order. ReLUs of a ResNet turn at zero, and it has no fp32 inside: in float64.
# Rounding of float32: sums in another order, which AdamW's epsilon of 1e-4 at a rate of 1e-2 makes up to 100 times as
# large in the weights. ReLUs of a ResNet turn at zero, and it has no fp32 inside: in float64.
TOLERANCE = {
    "float32": {"loss": 4e-6, "gradients": 1e-5, "state": 3e-5},
    "float64": {"loss": 1e-10, "gradients": 1e-10, "state": 1e-10},
}


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    return write(tmp_path_factory.mktemp("partitioned"))


@pytest.fixture(scope="module")
def ran(written: dict[str, Path]) -> dict[str, Any]:
    return run(written)


CASES = [
    *(f"{name}_solved_4" for name in REAL), *(f"{name}_random_4" for name in CUT), "llama_solved_2",
    *(f"{name}_{strategy.replace('-', '_')}_4" for name, strategy in NAMED.items()),
    *(f"rows_{seed}_4" for seed in range(8)), "odd_zero3_4", "odd_data_4",
]  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_a_step_is_that_of_one_rank(ran: Mapping[str, Any], case: str) -> None:
    factory, _, _ = files()[case]
    found = ran[case]
    assert found["ranks"] == found["replicas"] == 0.0
    for what, most in TOLERANCE[dtype(factory)].items():
        assert found[what] <= most, (what, found)


def test_dropout_draws_the_same_where_ranks_compute_the_same(ran: Mapping[str, Any]) -> None:
    found = ran["masked_0_4"]
    assert found["ranks"] == found["replicas"] == 0.0
    assert found["loss"] > 1e-3  # another mask than one rank draws


def test_each_operator_that_needs_all_ranks_was_cut_where_it_does() -> None:
    """Some strategy of the small module cuts what each of them sums over."""
    wanted = dict.fromkeys(("layer_norm", "rms_norm", "softmax", "_native_batch_norm_legit_functional"), "Shard(2)")
    wanted |= {"embedding": "Shard(0)", "cross_entropy_loss": "Shard(1)"}
    seen = set()
    for name, (_, _, one) in files().items():
        if name.startswith("rows_"):
            table = json.loads(one.table())
            for node, word in wanted.items():
                inputs = table["nodes"].get(node, {"inputs": []})["inputs"]
                if inputs and word in table["layouts"][inputs[0]]["placements"]:
                    seen.add(node)
    assert seen == set(wanted)


def test_inputs_of_another_shape_are_refused_with_both(ran: Mapping[str, Any]) -> None:
    assert "traced with the inputs {'input_ids': [4, 32], 'labels': [4, 32]}" in ran["llama_solved_2"]["refused"]
    assert "called with [1, 32], [1, 32]" in ran["llama_solved_2"]["refused"]


def test_the_file_needs_torch_alone_and_the_table_is_words_and_numbers(written: Mapping[str, Path]) -> None:
    path = written["mixtral_solved_4"]
    nodes = list(ast.walk(ast.parse(path.read_text())))
    roots = {
        (node.module or "" if isinstance(node, ast.ImportFrom) else node.names[0].name).split(".")[0]
        for node in nodes
        if isinstance(node, (ast.Import, ast.ImportFrom))
    }
    assert roots - set(sys.stdlib_module_names) == {"torch"}
    assert not {"pickle", "eval", "exec"} & {
        node.id for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Name)
    }
    table = json.loads(path.with_suffix(".json").read_text())
    words = {word for layout in table["layouts"] for key in ("placements", "gradient") for word in layout.get(key, [])}
    assert words <= {"Replicate()", "Partial()", *(f"Shard({dim})" for dim in range(5))}


def test_what_runs_whole_is_said_with_its_reason_and_bytes() -> None:
    name = MODULES + "wide_resnet"
    one = built(name, "spatial", FOUR)
    first, *rest = one.sentences()
    gathered = one.executed.gathered
    assert f"{len({each.node for each in gathered})} of " in first
    assert any("windows reach into the next part" in line for line in rest)
    stem = next(each for each in gathered if each.node == "conv2d" and each.mesh == "rail")
    assert stem.bytes_each == 0  # every rank is given the images
    later = next(each for each in gathered if each.node == "max_pool2d" and each.mesh == "rail")
    assert later.bytes_each in (8 * 64 * 32 * 32 * 4 / 2, 8 * 64 * 32 * 32 * 4 / 4)


def test_what_parameters_cannot_be_is_said() -> None:
    states = built(MODULES + "gpt2_plain", "zero1", FOUR).sentences()
    assert states[0] == "Every operator runs as the solver split it."
    # Of 28: all but the table of positions, whose ids are the same on every rank.
    assert states[1].startswith("The optimizer's states of 27 parameters lie as the weights do")
