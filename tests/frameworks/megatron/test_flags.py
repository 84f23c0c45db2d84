from __future__ import annotations

import json
from pathlib import Path

import pytest

from symconfig.errors import InputError
from symconfig.frameworks.megatron.flags import DATA, first_with, flags, resolve, versions
from tools import flags as module


def test_the_table_is_small_and_covers_the_versions() -> None:
    assert DATA.stat().st_size < 300_000
    assert versions()[1:] == (
        "core_v0.12.1",
        "core_v0.13.0",
        "core_v0.14.0",
        "core_v0.15.0",
        "core_v0.16.1",
        "core_v0.17.1",
        "core_v0.18.2",
        "core_v0.19.0",
        "main",
    )


@pytest.mark.parametrize(
    ("flag", "first", "last"),
    [
        ("--use-custom-fsdp", "core_v0.12.1", "core_v0.13.0"),
        ("--use-megatron-fsdp", "core_v0.14.0", "main"),
        ("--recompute-modules", "core_v0.12.1", "main"),
        ("--fp8-recipe", "core_v0.12.1", "main"),
        ("--mtp-num-layers", "core_v0.12.1", "main"),
        ("--pipeline-model-parallel-layout", "core_v0.13.0", "main"),
        ("--overlap-moe-expert-parallel-comm", "core_v0.14.0", "main"),
        ("--fine-grained-activation-offloading", "core_v0.16.1", "main"),
        ("--tensor-model-parallel-size", "core_v0.11.0", "main"),
    ],
)
def test_options_come_and_go(flag: str, first: str, last: str) -> None:
    have = [version for version in versions() if flags(version).known(flag)]
    assert (have[0], have[-1]) == (first, last)
    assert first_with(flag) == first


@pytest.mark.parametrize(
    ("given", "found"),
    [
        ("core_v0.19", "core_v0.19.0"),
        ("core_v0.19.2", "core_v0.19.0"),
        ("0.16", "core_v0.16.1"),
        ("core_v0.20", "main"),
        ("0.20.0rc0", "main"),
        ("core_r0.13.0", "core_v0.13.0"),
        ("main", "main"),
    ],
)
def test_spellings_of_a_version(given: str, found: str) -> None:
    assert resolve(given) == found


@pytest.mark.parametrize("given", ["core_v0.99", "", "latest", "core_v0.1", "0", "core_v0.19.0; rm -rf ~"])
def test_an_unknown_version_is_refused_with_the_known_ones(given: str) -> None:
    with pytest.raises(InputError, match=r"core_v0\.19\.0"):
        resolve(given)


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (["--tensor-model-paralel-size", "2"], "Try: --tensor-model-parallel-size"),
        (["--use-custom-fsdp"], "core_v0.12.1 to core_v0.13.0"),
        (["--bf16", "yes"], "need no value"),
        (["--bf16=yes"], "need no value"),
        (["--num-layers"], "need one value"),
        (["--num-layers", "2", "3"], "need one value"),
        (["--num-layers", "2.5"], "need a whole number"),
        (["--lr", "fast"], "need a number"),
        (["--normalization", "rms"], "one of LayerNorm, RMSNorm"),
        (["--window-size", "128"], None),
        (["--window-size", "a,b"], "whole numbers with commas"),
        (["--moe-layer-freq", "__import__('os')"], "a list expression"),
        (["stray", "--bf16"], "belongs to no option"),
        (["--save", "-x"], "need one value"),
        (["--save=-x"], None),
        (["--lr", "-1e-5"], None),
        (["--recompute-modules"], "at least one value"),
        (["--data-path", "a", "b", "--bf16"], None),
        (["--attention-backend", "flash"], None),
        (["--attention-backend", "flashy"], "one of flash"),
        (["--exit-signal", "SIGUSR2"], None),
    ],
)
def test_check_says_what_the_parser_would_refuse(args: list[str], said: str | None) -> None:
    problems = flags("core_v0.19.0").check(args)
    assert bool(problems) == (said is not None)
    assert said is None or said in str(problems[0])


def test_build_shares_specs_between_versions_and_keeps_what_differs() -> None:
    entry = {"default": "1", "dest": "x", "kind": "_StoreAction", "type": "int"}
    text = module.build(
        {
            "v1": {"--x": entry},
            "v2": {"--x": {**entry, "default": "2"}, "--y": {**entry, "dest": "x"}},
            "v3": {"--x": entry},
        }
    )
    data = json.loads(text)
    assert data["specs"] == [["store", "int", None, []]]
    assert data["flags"] == {"--x": [[0b101, 0, "1"], [0b010, 0, "2"]], "--y": [[0b010, 0, "1", "x"]]}


def test_the_table_is_rebuilt_from_dumps_in_the_order_of_their_releases(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    entry = {"default": "1", "dest": "x", "kind": "_StoreAction", "type": "int"}
    names = ["core_v0.9.0", "core_v0.10.0", "core_v0.10.1", "main"]
    for number, name in enumerate(names):
        text = json.dumps({"--x": {**entry, "default": str(number)}})
        (tmp_path / f"{name}.json").write_text(text, encoding="utf-8")
    data = tmp_path / "flags.table"
    monkeypatch.setattr(module, "DATA", data)
    monkeypatch.setattr("sys.argv", ["flags", str(tmp_path)])
    module.main()
    written = json.loads(data.read_text(encoding="utf-8"))
    assert written["versions"] == names
    assert written["flags"] == {"--x": [[1 << bit, 0, str(bit)] for bit in range(4)]}
    assert "4 versions" in capsys.readouterr().out
