"""`symconfig import`: a file whose code lies beside its weights, read as one of a family."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from symconfig.cli.main import main

OWN = {
    "model_type": "own7",
    "auto_map": {"AutoModelForCausalLM": "modeling.Own"},
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 80,
}


@pytest.fixture
def config(tmp_path: Path) -> Path:
    (tmp_path / "config.json").write_text(json.dumps(OWN))
    return tmp_path / "config.json"


def test_a_file_is_read_as_one_of_a_family(config: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["import", str(config), "--like", "mistral", "--json"]) == 0
    made = json.loads(capsys.readouterr().out)
    assert (made["model_type"], made["hidden_size"], made["num_key_value_heads"]) == ("mistral", 64, 2)


@pytest.mark.parametrize(("more", "said"), [([], "--like FAMILY"), (["--like", "mistrall"], "Try: mistral")])
def test_without_a_family_or_with_an_unknown_one_it_says_what_to_give(
    config: Path, capsys: pytest.CaptureFixture[str], more: list[str], said: str
) -> None:
    assert main(["import", str(config), *more]) == 2
    assert said in capsys.readouterr().err
