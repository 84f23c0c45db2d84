"""What `symconfig audit --sarif` writes, held against the schema of SARIF 2.1.0."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from symconfig import audit
from symconfig.errors import SymconfigError
from symconfig.report.audit import sarif

jsonschema = pytest.importorskip("jsonschema")
HERE = Path(__file__).parent
CORPUS = HERE.parent / "existing" / "audit" / "corpus"
SCHEMA = json.loads((HERE / "sarif-2.1.0.schema.json").read_text(encoding="utf-8"))
VALIDATOR = jsonschema.Draft7Validator(SCHEMA)


def log(source: str) -> dict[str, Any]:
    """Audit without a prediction, and give what is written."""
    return json.loads(json.dumps(sarif([audit(source, None, None, plan=False)])))


def test_the_schema_is_one_and_refuses() -> None:
    jsonschema.Draft7Validator.check_schema(SCHEMA)
    good = log("--num-layers 0 --tensor-model-parallel-size 3 --hidden-size 4096")
    assert VALIDATOR.is_valid(good)
    good["runs"][0]["results"][0]["level"] = "fatal"
    assert [list(error.path)[-1] for error in VALIDATOR.iter_errors(good)] == ["level"]


@pytest.mark.parametrize("folder", ["broken", "megatron", "deepspeed", "yaml", "hidden"])
def test_every_audit_of_the_corpus_is_valid(folder: str) -> None:
    counted = 0
    for path in sorted(CORPUS.joinpath(folder).glob("*.*")):
        try:
            written = log(str(path))
        except SymconfigError:
            continue
        assert not list(VALIDATOR.iter_errors(written)), path
        counted += 1
    assert counted, folder
