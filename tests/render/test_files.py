"""Files are written whole, whatever lies in the way, and whenever the writer is killed."""

from __future__ import annotations

import json
import os
import stat
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from symconfig.descriptor.document import Document
from symconfig.descriptor.load import load_model
from symconfig.descriptor.strict import validate
from symconfig.descriptor.training import Training
from symconfig.errors import InputError
from symconfig.render import render, targets
from symconfig.render.files import File, Files, line, sh, slug, write
from symconfig.resources import MARKER
from symconfig.verify import shell
from tests.render.killed import NEW, inodes, older, state
from tests.sample_plans import sample_plan

TWO = Files((File("a.sh", "#!/bin/sh\n", executable=True), File("sub/b.txt", "ü\n")))


def test_writes_a_new_folder_in_utf8(tmp_path: Path) -> None:
    written = write(TWO, tmp_path / "deep" / "out")
    assert [path.read_text(encoding="utf-8") for path in written] == ["#!/bin/sh\n", "ü\n"]
    assert os.listdir(tmp_path / "deep") == ["out"]


@pytest.mark.parametrize("mask", [0o022, 0o002, 0o077])
def test_the_modes_are_those_that_the_umask_leaves(tmp_path: Path, mask: int) -> None:
    before = os.umask(mask)
    try:
        written = write(TWO, tmp_path / "out")
    finally:
        os.umask(before)
    found = [stat.S_IMODE(path.stat().st_mode) for path in (*written, tmp_path / "out")]
    assert found == [0o777 & ~mask, 0o666 & ~mask, 0o777 & ~mask]


def test_a_folder_with_something_in_it_is_refused_untouched(tmp_path: Path) -> None:
    out = tmp_path / "out"
    out.mkdir()
    (out / "mine").write_text("x")
    with pytest.raises(InputError, match="--force"):
        write(TWO, out)
    assert os.listdir(out) == ["mine"]
    assert os.listdir(tmp_path) == ["out"]


def test_force_replaces_ours_and_keeps_the_rest(tmp_path: Path) -> None:
    out = tmp_path / "out"
    write(TWO, out)
    (out / "mine").write_text("x")
    write(Files((File("a.sh", "new\n"),)), out, force=True)
    assert (out / "a.sh").read_text() == "new\n"
    assert (out / "mine").read_text() == "x"
    assert (out / "sub" / "b.txt").exists()
    assert os.listdir(tmp_path) == ["out"]


@pytest.mark.parametrize("where", ["out", "out/a.sh", "out/sub"])
def test_links_in_the_way_are_refused(tmp_path: Path, where: str) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "keep").write_text("x")
    (tmp_path / "out").mkdir(exist_ok=True)
    link = tmp_path / where
    if where == "out":
        link.rmdir()
    link.symlink_to(elsewhere)
    with pytest.raises(InputError, match="symbolic link"):
        write(TWO, tmp_path / "out", force=True)
    assert os.listdir(elsewhere) == ["keep"]


def test_a_file_or_a_folder_in_the_way_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    with pytest.raises(InputError, match="output folder is a file"):
        write(TWO, tmp_path / "file", force=True)
    (tmp_path / "out" / "a.sh").mkdir(parents=True)
    with pytest.raises(InputError, match="folder where a file"):
        write(TWO, tmp_path / "out", force=True)


def test_a_full_disk_leaves_everything_as_it_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    out = tmp_path / "out"
    write(Files((File("a.sh", "old a\n"), File("b.sh", "old b\n"))), out)
    real, calls = os.write, []

    def failing(handle: int, data: bytes) -> int:
        calls.append(handle)
        if len(calls) > 2:
            raise OSError(28, "disk full")
        return real(handle, data)

    monkeypatch.setattr(os, "write", failing)
    with pytest.raises(InputError, match="disk full"):
        write(Files((File("a.sh", "new a\n"), File("b.sh", "new b\n"), File("c.sh", "new c\n"))), out, force=True)
    assert (out / "a.sh").read_text() == "old a\n"
    assert sorted(os.listdir(out)) == ["a.sh", "b.sh"]
    with pytest.raises(InputError, match="disk full"):
        write(Files((File("a.sh", "a\n"),)), tmp_path / "new")
    assert os.listdir(tmp_path) == ["out"]


def test_text_that_is_not_unicode_writes_nothing(tmp_path: Path) -> None:
    with pytest.raises(InputError):
        write(Files((File("a", "fine"), File("b", "\ud800"))), tmp_path / "out")
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize("path", ["/etc/x", "../x", "a/../../x", ""])
def test_no_file_outside_the_folder(path: str) -> None:
    with pytest.raises(ValueError, match="inside"):
        File(path, "")


@given(st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"])))
def test_sh_survives_any_text(text: str) -> None:
    done = subprocess.run(
        ["bash", "-c", f"words=({sh(text)}); printf '%s\\0' \"${{words[@]}}\""], capture_output=True, check=True
    )
    assert done.stdout.decode() == text + "\0"


@given(st.text(st.sampled_from("a'\\ $\n\u202e\u2066\x1b\x07\x7f\u0085\xe90f"), max_size=12))
def test_sh_shows_every_control_and_bidi_character_and_each_reader_agrees(text: str) -> None:
    assert sh(text).replace("\n", "").isprintable()
    script = f"words=({sh(text)}); printf '%s\\0' \"${{words[@]}}\""
    done = subprocess.run(["bash", "-c", script], capture_output=True, check=True, env={"LC_ALL": "C", "PATH": "/bin"})
    assert done.stdout.decode() == text + "\0"  # in the locale of a bare container, too
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, shell.ARGUMENTS).write_text(f"--save {sh(text)}\n", encoding="utf-8")
        assert shell.arguments(Path(folder)) == ["--save", text]


@pytest.mark.parametrize("target", ["megatron", "deepspeed", "transformers"])
def test_no_file_of_any_target_hides_a_character(target: str) -> None:
    """Trojan Source (CVE-2021-42574): what a reviewer sees is what runs."""
    odd = {
        "save": "/s\u202eb\x07",
        "data_path": "/d\u2066x",
        "tokenizer_model": "t\x1b[2J\u202d",
        "wandb_project": "p\u202e",
    }
    backend = "deepspeed" if target in ("deepspeed", "transformers") else "megatron"
    plan = sample_plan(load_model("llama3.1-8b"), backend=backend, training=odd)
    for item in render(plan, target):
        assert item.text.replace("\n", "").replace("\t", "").isprintable(), item.path


@pytest.mark.parametrize("field", ["save", "data_path", "tokenizer_model", "hf_weights"])
def test_a_nul_is_refused_by_field_before_any_backend(field: str) -> None:
    with pytest.raises(InputError, match=rf"{field}.*NUL"):
        validate(Document({field: "/a\0b"}, "JOB.yaml"), Training)


@given(st.text(st.characters(exclude_categories=["Cs"])))
def test_line_is_one_printable_line_and_slug_is_tame(text: str) -> None:
    assert line(text).isprintable()
    assert len(line(text).splitlines()) <= 1
    assert slug(text) == "".join(c for c in slug(text) if c.isascii() and (c.isalnum() or c in "._-"))


def test_a_target_is_one_entry_of_a_module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import symconfig.render as package

    (tmp_path / "toy_target.py").write_text(
        "from symconfig.render.files import File\nfrom symconfig.render.target import Target\n"
        "def texts(plan):\n    yield File('toy.txt', plan.model.name)\n"
        "TARGETS = (Target(name='toy', does='a toy', variables=lambda plan: {}, texts=texts),)\n"
    )
    monkeypatch.setattr(package, "__path__", [*package.__path__, str(tmp_path)])
    monkeypatch.setattr(package, "MODULES", {**package.MODULES, "toy": "toy_target"})
    targets.cache_clear()
    try:
        assert render(sample_plan(), "toy")["toy.txt"] == "llama2-13b"
    finally:
        monkeypatch.undo()
        targets.cache_clear()


ROOT = Path(__file__).resolve().parents[2]


def test_a_writer_that_is_killed_leaves_whole_files_and_the_marker(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "tests.render.killed", str(tmp_path)]
    said = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True).stdout
    *kills, lived = map(json.loads, said.splitlines())
    assert not lived["killed"]
    assert (lived["state"], lived["marked"], lived["left"]) == ("new", False, [])
    assert len(kills) > 40
    for one in kills:
        assert one["killed"]
        assert one["same"], "the folder or a file of others' was replaced"
        assert one["beside"] == ["out"]
        assert one["next"] == "new"
        assert MARKER not in one["left"]
        assert one["marked"] or one["state"] != "mixed"
    states = [one["state"] for one in kills]
    assert states[0] == "old"
    assert set(states) == {"old", "mixed", "new"}


def test_two_writers_at_once_end_with_one_whole_result(tmp_path: Path) -> None:
    folder, other = tmp_path / "out", Files((*(File(item.path, "other\n") for item in NEW),))
    older(folder)
    with ThreadPoolExecutor(8) as threads:
        list(threads.map(lambda files: write(files, folder, force=True), [other, NEW] * 12))
    assert len({(folder / path).read_text() for path in NEW.paths()}) == 1
    assert os.listdir(tmp_path) == ["out"]
    assert not [path for path in folder.rglob("*") if path.name.startswith(".symconfig-")]


def test_a_run_in_the_folder_goes_on(tmp_path: Path) -> None:
    """What a job has open, its log and its checkpoints, stays where it is while the files are replaced."""
    folder = tmp_path / "out"
    older(folder)
    before = inodes(folder)
    code = "import sys\nwith open('events.log', 'w') as log:\n    print(flush=True)\n    log.write(sys.stdin.read())\n"
    job = subprocess.Popen([sys.executable, "-c", code], cwd=folder, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    job.stdout.readline()
    write(NEW, folder, force=True)
    job.communicate(b"loss 2.5\n")
    assert (folder / "events.log").read_text() == "loss 2.5\n"
    assert before.items() <= inodes(folder).items()
    assert state(folder) == "new"


def test_planted_names_are_neither_followed_nor_touched(tmp_path: Path) -> None:
    secret, folder = tmp_path / "authorized_keys", tmp_path / "out"
    secret.write_text("mine\n")
    older(folder)
    staging = tmp_path / ".out.symconfig-new.1"
    staging.mkdir()
    (staging / ".journal").write_text("")
    for name in (".plan.json.part", "plan.json.part"):
        (folder / name).symlink_to(secret)
    write(NEW, folder, force=True)
    write(NEW, tmp_path / "*")
    assert secret.read_text() == "mine\n"
    assert sorted(os.listdir(staging)) == [".journal"]


def test_a_planted_marker_is_not_followed(tmp_path: Path) -> None:
    folder, elsewhere = tmp_path / "out", tmp_path / "elsewhere"
    older(folder)
    (folder / MARKER).symlink_to(elsewhere)
    with pytest.raises(InputError, match="is a symbolic link in the way"):
        write(NEW, folder, force=True)
    assert not elsewhere.exists()
    assert state(folder) == "old"
