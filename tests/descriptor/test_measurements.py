"""The schema of measurement files: what is known is typed, what is misspelt is an error with its place."""

from __future__ import annotations

from pathlib import Path

import pytest

from symconfig.descriptor.measurements import load_measurements
from symconfig.errors import InputError

FILE = """\
schema: symconfig.measurements/1
source: {title: a page}
notes: [one]
rows:
- id: a
  task: pretrain
  model: {name: Llama2-7B, num_hidden_layers: 32, vocab_size: 32000}
  cluster: {gpu: a100-sxm4-80gb, gpus: 8}
  parallel: {tp: 2, pp: 1, dp: 4}
  batch: {micro: 1, global: 8, seq_length: 4096}
  options: {precision: bf16, zero_stage: 1, something_new: 3}
  measured: {step_s: 1.5}
  confidence: exact
"""


def _write(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "source.yaml"
    path.write_text(text, encoding="utf-8")
    return path


def test_reads_a_row_and_keeps_options_that_it_does_not_know(tmp_path: Path) -> None:
    file = load_measurements(_write(tmp_path, FILE))
    row = file.rows[0]
    assert (row.parallel["tp"], row.batch.global_, row.measured.step_s) == (2, 8, 1.5)
    assert row.options.model_dump(exclude_none=True)["something_new"] == 3
    assert file.validated


@pytest.mark.parametrize(
    ("right", "wrong", "field"),
    [
        ("tp: 2", "tp: two", "rows[0].parallel.tp"),
        ("step_s: 1.5", "step_s: -1.5", "rows[0].measured.step_s"),
        ("step_s: 1.5", "steps: 1.5", "rows[0].measured.steps"),
        ("step_s: 1.5", "oom: false", "rows[0].measured.oom"),
        ("precision: bf16", "precision: bf17", "rows[0].options.precision"),
        ("measurements/1", "measurements/2", "schema"),
    ],
)
def test_mistakes_are_named(tmp_path: Path, right: str, wrong: str, field: str) -> None:
    with pytest.raises(InputError) as caught:
        load_measurements(_write(tmp_path, FILE.replace(right, wrong)))
    assert [problem.field for problem in caught.value.problems] == [field]
    assert all(problem.line for problem in caught.value.problems)


def test_targets_are_not_validated(tmp_path: Path) -> None:
    assert not load_measurements(_write(tmp_path, FILE.replace("source:", "validate: false\nsource:"))).validated
