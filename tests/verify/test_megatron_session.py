"""Megatron in a subprocess: neither crash nor hang gets out, what it refuses is said in its words, and in UTF-8."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

import pytest

from symconfig.verify import megatron, megatron_session
from symconfig.verify.conversation import Json, converse
from symconfig.verify.megatron_session import Job, Result
from symconfig.verify.megatron_source import MegatronSource
from tests.verify.megatron_support import LIMIT_S, rendered, replaced, source

ARGUMENTS = """
import os, sys, time
def parse_args():
    what = sys.argv[1]
    print("parsing " + what)
    if what == "dies":
        os.abort()
    if what == "hangs":
        time.sleep(600)
    if what == "exits":
        print("pretrain_gpt.py: error: no such option", file=sys.stderr)
        sys.exit(2)
    if what == "fails":
        raise ValueError("because of   " + os.environ.get("SECRET", "nothing"))
    assert what != "asserts"
    raise KeyError("ended")
"""


@pytest.fixture
def pretender(tmp_path: Path) -> MegatronSource:
    """A folder that is imported as Megatron and does as it is told."""
    for name in (
        "training/arguments.py", "training/training.py", "core/__init__.py", "core/models/__init__.py",
        "core/models/gpt.py", "core/models/common/embeddings/rope_utils.py", "core/transformer/moe/moe_utils.py",
        "core/utils.py",
    ):  # fmt: skip
        path = tmp_path / "megatron" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(ARGUMENTS if name.endswith("arguments.py") else "")
    pytest.importorskip("torch")
    return MegatronSource(tmp_path, "0.19.0", "a pretender", chosen=True)


def test_a_crash_or_a_hang_of_one_list_is_reported_and_the_others_are_still_judged(
    pretender: MegatronSource, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SECRET", "the shell's own environment")
    names = ("dies", "fails", "hangs", "exits", "asserts")
    start = time.perf_counter()
    found = megatron_session.run(pretender, [Job(name, (name,), 8) for name in names], timeout_s=4.0)
    assert time.perf_counter() - start < 500  # the hang is not waited for, however slow the machine is
    errors = {name: str(found[name].error) for name in names}
    assert "ended with status -6" in errors["dies"]
    assert "parsing dies" in errors["dies"]
    assert "did not end within 4 s" in errors["hangs"]
    assert "ValueError: because of nothing" in errors["fails"]
    assert "exits with status 2; pretrain_gpt.py: error: no such option" in errors["exits"]
    assert 'assert what != "asserts"' in errors["asserts"]
    assert not any(found[name].ok for name in names)


def test_a_megatron_that_cannot_be_imported_fails_every_list_with_its_last_lines(pretender: MegatronSource) -> None:
    (pretender.root / "megatron/training/arguments.py").write_text("raise RuntimeError('broken checkout')")
    found = megatron_session.run(pretender, [Job(name, (name,), 8) for name in "ab"], timeout_s=5.0)
    assert all("broken checkout" in str(found[name].error) for name in "ab")


# What Megatron's own code must refuse (core_v0.19): an option, its values, words of the refusal.
REFUSED = {
    "world": ("--tensor-model-parallel-size", ["5"], "world size"),
    "batch": ("--global-batch-size", ["100"], "eval_global_batch_size"),
    "layers": ("--num-layers", ["41"], "divisible by the pipeline-model-parallel size"),
    "layout with other layers": ("--seq-length", ["4096", "--pipeline-model-parallel-layout", "Et*20|t*19L"], "layers"),
    "unknown option": ("--seq-length", ["4096", "--sequence-paralel"], "unrecognized arguments: --sequence-paralel"),
    "a list that fills the memory": ("--seq-length", ["4096", "--moe-layer-freq", "([1]*9999999999)"], "MemoryError"),
}


@pytest.fixture(scope="module")
def answers() -> dict[str, Result]:
    """Of one process, which takes seconds to import Megatron: refused lists among others, in a shell with settings."""
    good, other = rendered(), rendered("mixtral-8x7b")
    items = {name: replaced(good, option, *values) for name, (option, values, _) in REFUSED.items()}
    items["no connection limit"] = megatron.Rendered(good.plan, good.args, {})
    items |= {"a": good, "b": replaced(good, "--num-layers", "41"), "c": other, "d": good}
    with pytest.MonkeyPatch.context() as monkeypatch:
        monkeypatch.setenv("CUDA_DEVICE_MAX_CONNECTIONS", "1")
        monkeypatch.setenv("PYTHONPATH", os.getcwd())
        found = source()
        jobs = [megatron_session.job(id, item.plan, item.args, item.env, found) for id, item in items.items()]
        return megatron_session.run(found, jobs, LIMIT_S)


@pytest.mark.parametrize("name", REFUSED)
def test_megatrons_own_refusals_come_through_in_its_words(name: str, answers: dict[str, Result]) -> None:
    assert REFUSED[name][2] in str(answers[name].error)


def test_the_fork_server_keeps_lists_apart_and_order_does_not_matter(answers: dict[str, Result]) -> None:
    assert [answers[name].ok for name in "abcd"] == [True, False, True, True]
    assert answers["a"].config == answers["d"].config
    assert answers["c"].config["num_moe_experts"] == 8


def test_the_subprocess_hears_nothing_of_this_shell(answers: dict[str, Result]) -> None:
    """A plan whose launcher exports no limit of connections is refused, though this shell has one."""
    assert "CUDA_DEVICE_MAX_CONNECTIONS" in str(answers["no connection limit"].error)


# Fails in an ASCII locale, as torch does, which reads files of its own in the locale's encoding.
SCRIPT = """
import json, sys
print(json.dumps({"ok": True, "read": open("text").read(), "asked": json.load(sys.stdin)["text"]}))
print("of a compiler: \\udce9", file=sys.stderr)
"""
ASCII = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}


@pytest.fixture
def in_ascii(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "text").write_text("größe", encoding="utf-8")
    (tmp_path / "reading.py").write_text(SCRIPT, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    for name, value in ASCII.items():
        monkeypatch.setenv(name, value)


def test_a_conversation(in_ascii: None) -> None:
    heard: list[Json] = []
    how, _ = converse([sys.executable, "reading.py"], {"text": "模型"}, dict(os.environ), (60, 60), heard.append)
    assert (heard, how) == ([{"ok": True, "read": "größe", "asked": "模型"}], "ended with status 0")


def test_a_process_that_says_nothing_is_stopped(in_ascii: None, tmp_path: Path) -> None:
    (tmp_path / "sleeping.py").write_text("import time\ntime.sleep(600)\n")
    how, _ = converse([sys.executable, "sleeping.py"], {}, dict(os.environ), (0.5, 60), lambda line: None)
    assert how == "did not answer within 0.5 s"
