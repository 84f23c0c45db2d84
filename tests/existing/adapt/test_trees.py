"""Edits of JSON: the data become what they should, and every other byte stays."""

from __future__ import annotations

import copy
import json
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from symconfig.descriptor.document import KeyPath
from symconfig.existing.adapt import trees
from symconfig.existing.launch.reading import Tree
from symconfig.existing.launch.text import Text, edited
from symconfig.existing.launch.trees import parse_json

COMMENTED = """{
    // what one GPU takes
    "train_micro_batch_size_per_gpu": 4,  // sequences
    "zero_optimization": { "stage": 2, "overlap_comm": true },
    "bf16": {
        "enabled": true
    }  # the last one
}
"""


def json_tree(text: str) -> Tree:
    return parse_json(Text("ds.json", text.encode()))


def after(tree: Tree, way: trees.Edits) -> str:
    return edited(tree.text, way).decode()


def test_a_value_changes_and_its_comment_stays() -> None:
    tree = json_tree(COMMENTED)
    new = after(tree, trees.changed(tree, ("train_micro_batch_size_per_gpu",), 8))
    assert new == COMMENTED.replace('_gpu": 4,', '_gpu": 8,')


def test_a_key_is_added_in_the_style_of_its_neighbours() -> None:
    tree = json_tree(COMMENTED)
    inside = after(tree, trees.inserted(tree, ("zero_optimization",), "reduce_scatter", True))
    assert inside == COMMENTED.replace('comm": true }', 'comm": true, "reduce_scatter": true }')
    behind = after(tree, trees.inserted(tree, (), "sequence_parallel_size", 2))
    assert behind == COMMENTED.replace("}  # the last one\n", '},  # the last one\n    "sequence_parallel_size": 2\n')


def test_a_key_goes_with_its_line_and_its_comma() -> None:
    tree = json_tree(COMMENTED)
    assert after(tree, trees.removed(tree, ("zero_optimization",))) == COMMENTED.replace(
        '    "zero_optimization": { "stage": 2, "overlap_comm": true },\n', ""
    )
    assert after(tree, trees.removed(tree, ("zero_optimization", "overlap_comm"))) == COMMENTED.replace(
        ', "overlap_comm": true', ""
    )
    last = after(tree, trees.removed(tree, ("bf16",)))
    assert json_tree(last).data == {
        "train_micro_batch_size_per_gpu": 4,
        "zero_optimization": {"stage": 2, "overlap_comm": True},
    }
    assert "# the last one" in last


def test_line_ends_are_those_of_the_file() -> None:
    tree = json_tree(COMMENTED.replace("\n", "\r\n"))
    new = after(tree, trees.inserted(tree, (), "a", 1))
    assert new.count("\r\n") == new.count("\n") == COMMENTED.count("\n") + 1
    gone = after(tree, trees.removed(tree, ("zero_optimization",)))
    assert gone.count("\r\n") == gone.count("\n") == COMMENTED.count("\n") - 1


KEYS = st.sampled_from(["a", "b", "c", "d"])
DATA = st.recursive(
    st.integers(0, 9) | st.booleans() | st.sampled_from(["x", "yes", "1e3"]),
    lambda inner: st.dictionaries(KEYS, inner, min_size=1, max_size=3),
    max_leaves=8,
)


@given(st.dictionaries(KEYS, DATA, min_size=1, max_size=3), st.sampled_from([2, None]), st.data())
def test_an_edit_makes_of_the_data_what_it_should(
    data: dict[str, Any], indent: int | None, draw: st.DataObject
) -> None:
    tree = json_tree(json.dumps(data, indent=indent))
    path: KeyPath = draw.draw(st.sampled_from([path for path in tree.spans if path]))
    done = copy.deepcopy(data)
    inner: Any = done
    for key in path[:-1]:
        inner = inner[key]
    parent = path[:-1]
    match draw.draw(st.sampled_from(["change", "add", "remove"])):
        case "change":
            way, inner[path[-1]] = trees.changed(tree, path, 77), 77
        case "add":
            way, inner["new"] = trees.inserted(tree, parent, "new", {"deep": 1}), {"deep": 1}
        case _:
            way = trees.removed(tree, path)
            del inner[path[-1]]
    assert json_tree(after(tree, way)).data == done
