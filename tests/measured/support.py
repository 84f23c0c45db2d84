"""Measurement files for tests: GPT-22B on eight A100, as arXiv 2205.05198 ran it; and the published runs."""

from __future__ import annotations

from pathlib import Path

import pytest

from symconfig.descriptor.measurements import load_measurements
from symconfig.measured.runs import Read, read
from symconfig.measured.score import Source, source

PUBLISHED = tuple(Path(__file__).parents[3] / "shared" / name for name in ("truth", "truth_more", "truth_next"))
HEAD = """\
schema: symconfig.measurements/1
source: {title: Table 5, paper: "arXiv:2205.05198"}
rows:
"""
GPT_22B = (
    "model: {name: GPT-22B, num_hidden_layers: 48, hidden_size: 6144, intermediate_size: 24576, "
    "num_attention_heads: 64, num_key_value_heads: 64, vocab_size: 51200, gated_mlp: false, position: learned}"
)
RUN = """\
- id: {id}
  sweep: s
  task: pretrain
  {model}
  cluster: {{gpu: {gpu}, gpus: 8, gpus_per_node: 8}}
  software: {{name: megatron}}
  parallel: {{tp: {tp}, pp: 1, dp: {dp}}}
  batch: {{micro: {micro}, global: 32, seq_length: 2048}}
  options: {{precision: fp16, sequence_parallel: true, recompute: {recompute}, attention_kernel: not flash}}
  measured: {measured}
  confidence: exact
"""


def run_text(name: str, measured: str, **fields: object) -> str:
    """One row."""
    known: dict[str, object] = {"gpu": "a100-sxm4-80gb", "tp": 8, "dp": 1, "micro": 4, "recompute": "selective"}
    return RUN.format(id=name, model=GPT_22B, measured=measured, **{**known, **fields})


def file_of(folder: Path, *rows: str, name: str = "korthikanti2022") -> Path:
    """A file of rows; its name says which assumptions hold."""
    path = folder / f"{name}.yaml"
    path.write_text(HEAD + "".join(rows), encoding="utf-8")
    return path


def score(path: Path) -> Source:
    """The scores of a measurement file by its stem."""
    return source(path.stem, load_measurements(path))


def published(name: str | None = None) -> Read:
    """Published runs of one source, or of all in the order of their names; they lie beside the checkout."""
    if missing := [str(folder) for folder in PUBLISHED if not folder.is_dir()]:
        pytest.skip(f"published measurements are not beside this checkout ({', '.join(missing)})")
    paths = sorted(
        (path for folder in PUBLISHED for path in folder.glob(f"{name or '*'}.yaml")), key=lambda at: at.stem
    )
    return read([str(path) for path in paths])
