"""What cannot be read is taken to set nothing to which the script gives a value; the figures say so."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest

from symconfig.api.existing import audit
from symconfig.existing.launch.read import read
from symconfig.existing.launch.reading import Hides, Reading

MODEL = (
    "--num-layers 32 --hidden-size 4096 --ffn-hidden-size 11008 --num-attention-heads 32 --seq-length 4096 "
    "--max-position-embeddings 4096 --position-embedding-type rope --normalization RMSNorm --swiglu "
    "--disable-bias-linear --untie-embeddings-and-output-weights --vocab-size 32000 --bf16 "
    "--use-distributed-optimizer"
)
RUN = f"torchrun --nproc_per_node 8 pretrain_gpt.py {MODEL} --global-batch-size 64 "


def script(folder: Path, text: str) -> Path:
    path = folder / "launch.sh"
    path.write_text(text)
    return path


def values(reading: Reading) -> dict[str, str | None]:
    """Each option's first value; None: not known."""
    return {
        setting.name: None if setting.values[0].unknown else setting.values[0].text
        for setting in reading.settings
        if setting.values
    }


@pytest.mark.parametrize(
    ("text", "known"),
    [
        ("TP=4\n. gone.sh\npython train.py --tp $TP --pp $PP", {"--tp": "4", "--pp": None}),
        (". gone.sh\npython train.py --tp ${TP:-4} --pp ${PP:=2}", {"--tp": "4", "--pp": "2"}),
        ("if [ -f gone.sh ]; then . gone.sh; else TP=4; fi\npython train.py --tp $TP", {"--tp": None}),
        ("TP=4\neval $(python make.py)\npython train.py --tp $TP", {"--tp": "4"}),
        ("A+=(--x 1)\n. gone.sh\npython train.py ${A[@]} --y 1", {"--x": "1", "--y": "1"}),
        ('. gone.sh\npython train.py "$(cat words.txt)" --y 1', {"--y": "1"}),
    ],
)
def test_what_a_file_may_set_is_as_the_script_says(tmp_path: Path, text: str, known: Mapping[str, str | None]) -> None:
    found = read(str(script(tmp_path, text)))
    assert values(found) == known
    assert found.complete
    assert {item.hides for item in found.assumptions} == {Hides.VARIABLES}
    assert not found.environment_known


@pytest.mark.parametrize(
    ("condition", "possible"),
    [
        ('if [ "$X" = 1 ]; then A+=(--x 1 --y); fi', ["--x", "--y"]),
        ('[ "$X" = 1 ] && A+=(--x 1) || A+=(--z 2)', ["--x", "--z"]),
        ('if [ "$X" = 1 ]; then A+=(--tp 2); else A+=(--tp 4); fi', ["--tp"]),
        ('case "$X" in a) A+=(--x 1);; b) A+=(--y);; esac', ["--x", "--y"]),
    ],
)
def test_options_under_unknown_conditions_are_known_by_name(
    tmp_path: Path, condition: str, possible: list[str]
) -> None:
    found = read(str(script(tmp_path, f'A=(--a 1)\n{condition}\npython train.py "${{A[@]}}" --b 2')))
    assert found.complete
    assert values(found) == {"--a": "1", "--b": "2"}
    assert [setting.name for setting in found.possible] == possible


def test_a_variable_that_an_unread_file_may_export_is_not_missed(tmp_path: Path) -> None:
    line = RUN + "--micro-batch-size 1 --tensor-model-parallel-size 2 --sequence-parallel"
    rules = [
        {finding.rule for finding in audit(script(tmp_path, text + line), "h100", plan=False).findings}
        for text in ("", ". gone.sh\n")
    ]
    assert {"environment-advised", "environment-missing"} <= rules[0]
    assert not {rule for rule in rules[1] if rule.startswith("environment")}
