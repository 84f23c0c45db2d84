"""The parts of the training scripts that need no run: packing of documents, and the learning rate's schedule."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from symconfig.resources import data_dir

SCRIPTS = data_dir("templates") / "deepspeed"


@pytest.fixture(scope="module")
def sequences() -> ModuleType:
    pytest.importorskip("torch")
    return _script("sequences")


def _script(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(f"deepspeed_{name}", SCRIPTS / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_a_universal_checkpoint_is_loaded_until_a_later_one_is_saved(tmp_path: Path) -> None:
    pytest.importorskip("deepspeed")
    saving = _script("saving")
    assert saving.universal_is_latest(tmp_path)  # and DeepSpeed says that there is none
    (tmp_path / "latest_universal").write_text("step-2_universal")
    assert saving.universal_is_latest(tmp_path)
    for latest, is_latest in (("step-2", True), ("step-4", False), ("step-20", False)):
        (tmp_path / "latest").write_text(latest)
        assert saving.universal_is_latest(tmp_path) is is_latest


def _file(folder: Path, *documents: dict[str, Any]) -> str:
    path = folder / "data.jsonl"
    lines = [json.dumps(document, ensure_ascii=False) + "\n" for document in documents]
    path.write_text("".join(lines), encoding="utf-8")
    return str(path)


def test_documents_follow_each_other_and_labels_are_the_next_token(sequences: ModuleType, tmp_path: Path) -> None:
    path = _file(tmp_path, {"input_ids": [1, 2, 3]}, {"input_ids": [4, 5, 6, 7]}, {"input_ids": [8, 9]})
    ids, labels = sequences.Sequences(4, 0, 10, [path]).batch(0, 2)
    assert ids.tolist() == [[1, 2, 3, 4], [5, 6, 7, 8]]
    # no document predicts the first token of the next one
    assert labels.tolist() == [[2, 3, -100, 5], [6, 7, -100, 9]]


@pytest.mark.parametrize(
    ("document", "said"),
    [
        ({"foo": "x"}, "needs one of text, or messages, or prompt with response, or input_ids"),
        ({"prompt": "x"}, "needs one of text"),
        ([1, 2], "needs one of text"),
        ({"input_ids": ["a"]}, "must be lists of whole numbers"),
        ({"input_ids": [1, 2], "labels": [1]}, "2 input_ids have 1 labels"),
        ({"input_ids": [3, 100]}, "tokens 3 to 100 are not within the model's vocabulary of 100"),
    ],
)
def test_a_document_that_cannot_be_trained_on_is_named(
    document: Any, said: str, sequences: ModuleType, tmp_path: Path
) -> None:
    with pytest.raises(SystemExit, match=f"data.jsonl:2: ValueError: .*{said}"):
        sequences.read([_file(tmp_path, {"input_ids": [1, 2]}, document)], 2, None, False, 100)


def test_every_rank_and_every_restart_sees_the_same_numbers(sequences: ModuleType, tmp_path: Path) -> None:
    path = _file(tmp_path, *({"input_ids": [i, i + 1, i + 2, i + 3]} for i in range(0, 80, 4)))
    first, second = (sequences.Sequences(8, 3, 100, [path]) for _ in range(2))
    count = len(first.rows)
    assert [first.row(i) for i in range(3 * count)] == [second.row(i) for i in range(3 * count)]
    epochs = [sorted(first.row(i)[0] for i in range(e * count, (e + 1) * count)) for e in range(3)]
    assert epochs[0] == epochs[1] == epochs[2]  # each epoch is the same sequences …
    assert [first.row(i) for i in range(count, 2 * count)] != first.rows  # … in another order
    drawn = sequences.Sequences(8, 3, 100, [])
    assert drawn.row(5) == drawn.row(5) != drawn.row(6)
