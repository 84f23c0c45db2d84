"""Two people with the same folders: one plans, replans, renders, adapts and checks; a colleague writes over it with
--force and edits what lies there. Held after every step: what no step may do, whoever was there before.

More examples: pytest tests/cli/test_two_actors.py --hypothesis-profile thorough.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from symconfig.cli.main import main
from symconfig.render import files
from tests.sample_plans import signed

FOLDERS = st.sampled_from(["a", "b"])
TARGETS = st.sampled_from(["megatron", "deepspeed", "bridge", "transformers"])
MINE = b"# my line"
LATER = MINE + b" meanwhile\n"
JOB: dict[str, Any] = {
    "model": "llama2-7b", "cluster": "a100-80gb", "gpus": 8, "global_batch_size": 32, "pins": {"pp": 1},
}  # fmt: skip
# Values of a job that are planned, that nothing fits, and that are none.
VALUES = st.sampled_from(
    [
        *(("gpus", value) for value in (8, 16, 1, 7, "many")),
        *(("global_batch_size", value) for value in (32, 64, 33, -1)),
        *(("seq_length", value) for value in (2048, 4096, 10**9)),
        *(("backend", value) for value in ("megatron", "deepspeed", "cobol")),
        *(("pins", value) for value in ({"pp": 1}, {"tp": 4, "pp": 1}, {"tp": 3}, {"pp": "1", "recompute": "full"})),
    ]
)
Entry = tuple[str, object]  # its kind, and what it holds


@dataclass(frozen=True, slots=True)
class Ended:
    """What a command did."""

    code: int
    out: str
    err: str


def call(*words: object) -> Ended:
    """Run a command, which may say what is wrong, and not break."""
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        code = main([str(word) for word in words])
    assert code in (0, 1, 2), (words, err.getvalue())
    assert "Traceback" not in err.getvalue()
    assert code == 0 or (code == 1 and words[0] in ("verify", "adapt")) or "error: " in err.getvalue()
    return Ended(code, out.getvalue(), err.getvalue())


def entries(folder: Path) -> dict[str, Entry]:
    """Look at all that a folder has."""
    return dict(_entries(folder)) if folder.is_dir() else {}


def _entries(folder: Path) -> Iterator[tuple[str, Entry]]:
    for path in sorted(folder.rglob("*")):
        name = str(path.relative_to(folder))
        if path.is_symlink():
            yield name, ("link", os.readlink(path))
        elif path.is_dir():
            yield name, ("folder", None)
        else:
            yield name, ("program" if os.access(path, os.X_OK) else "file", path.read_bytes())


class TwoActors(RuleBasedStateMachine):
    """Folders, what symconfig wrote into each last, and what it answers to the same question."""

    def __init__(self) -> None:
        super().__init__()
        self.root = Path(tempfile.mkdtemp(prefix="two-actors"))
        self.written: dict[str, dict[str, Entry]] = {"a": {}, "b": {}}
        self.answers: dict[object, dict[str, Entry]] = {}
        self.job = dict(JOB)
        self.number = 0
        self.meanwhile = False
        self.patch = pytest.MonkeyPatch()
        self.patch.setenv("SYMCONFIG_DEBUG", "1")  # a defect is raised, with where it is
        written = files.write_folder

        def interrupted(out: Path, *given: Any) -> None:
            """The colleague is there between the work and the moment when it is put in its place."""
            if self.meanwhile and (path := out / "launch.sh").is_file() and not path.is_symlink():
                path.write_bytes(path.read_bytes() + LATER)
                self.meanwhile = False
            written(out, *given)

        self.patch.setattr(files, "write_folder", interrupted)

    def teardown(self) -> None:
        self.patch.undo()
        shutil.rmtree(self.root)

    @initialize()
    def first(self) -> None:
        self.plan("a", True, False)

    # What both do.

    @rule(folder=FOLDERS, force=st.booleans(), meanwhile=st.booleans())
    def plan(self, folder: str, force: bool, meanwhile: bool) -> None:
        job = self.root / "JOB.yaml"
        job.write_text(yaml.safe_dump(self.job))
        self._writes(folder, force, meanwhile, ("plan", job, "--top", "1"), yaml.safe_dump(self.job))

    @rule(source=FOLDERS, folder=FOLDERS, force=st.booleans(), batch=st.sampled_from([32, 64]), accept=st.booleans())
    def replan(self, source: str, folder: str, force: bool, batch: int, accept: bool) -> None:
        plan = self.root / source / "plan.json"
        key = (plan.read_bytes() if plan.is_file() else None, batch, accept)
        words = ("replan", plan, "--global-batch-size", batch, "--top", "1", *(["--accept-edits"] if accept else []))
        self._writes(folder, force, False, words, key)

    @rule(source=FOLDERS, folder=FOLDERS, force=st.booleans(), form=TARGETS, meanwhile=st.booleans())
    def render(self, source: str, folder: str, force: bool, form: str, meanwhile: bool) -> None:
        plan = self.root / source / "plan.json"
        key = (plan.read_bytes() if plan.is_file() else None, form)
        self._writes(folder, force, meanwhile, ("render", plan, "--target", form), key)

    def _writes(self, name: str, force: bool, meanwhile: bool, words: tuple[object, ...], key: object) -> None:
        """Run what writes a folder: all of it or nothing, what is others' stays, and edits go only where it is said."""
        folder = self.root / name
        before, there = entries(folder), folder.is_dir()
        self.meanwhile = meanwhile
        ended = call(*words, "--out", folder, *(["--force"] if force else []))
        if meanwhile and not self.meanwhile:
            before["launch.sh"] = (before["launch.sh"][0], _content(before["launch.sh"]) + LATER)
        self.meanwhile = False
        after = entries(folder)
        assert {path.name for path in self.root.iterdir()} <= {"a", "b", "JOB.yaml"}
        assert ended.code == 2 or force or not there
        if ended.code:
            assert after == before
            return
        manifest = json.loads((folder / "manifest.json").read_text())
        new = {path: after[path] for path in (*manifest["files"], "manifest.json")}
        assert not [path for path in new if MINE in _content(new[path])]
        assert self.answers.setdefault((words[0], key), new) == new
        assert [path for path in before if path not in new and after.get(path) != before[path]] == []
        was = self.written[name]
        for path in set(before) & set(new):
            content = _content(before[path])
            mine = content not in (_content(new[path]), _content(was.get(path, new[path])))
            assert not mine or path in ended.err, (path, ended.err)
        self.written[name] = new

    @rule(place=st.sampled_from(["launch.sh", "ds_config.json"]), folder=FOLDERS, plan=FOLDERS, partial=st.booleans())
    def adapt(self, place: str, folder: str, plan: str, partial: bool) -> None:
        before = entries(self.root / folder)
        words = ("adapt", self.root / folder / place, "--plan", self.root / plan, "--in-place")
        ended = call(*words, *(["--partial"] if partial else []))
        after = entries(self.root / folder)
        changed = {path for path in {*before, *after} if before.get(path) != after.get(path)}
        assert not changed or "Wrote" in ended.err
        assert all(path in " ".join(ended.err.split()) for path in changed)
        for path in changed:  # the lines of others are still there
            lines = _content(after[path]).splitlines()
            assert [line for line in _content(before[path]).splitlines() if MINE in line and line not in lines] == []

    # What the colleague does by hand.

    @rule(value=VALUES)
    def another_job(self, value: tuple[str, Any]) -> None:
        self.job = {**JOB, value[0]: value[1]}

    @rule(folder=FOLDERS, pick=st.integers(0, 9), how=st.sampled_from(
        ["line", "value", "delete", "folder", "link", "mode", "empty", "ends", "same"]))  # fmt: skip
    def edit(self, folder: str, pick: int, how: str) -> None:
        names = sorted(self.written[folder])
        if not names or not (path := self.root / folder / names[pick % len(names)]).is_file() or path.is_symlink():
            return
        content = path.read_bytes()
        self.number += 1
        if how in ("delete", "folder", "link"):
            path.unlink()
        if how == "folder":
            path.mkdir()
        elif how == "link":
            (self.root / folder / "elsewhere").write_bytes(content)
            path.symlink_to("elsewhere")
        elif how == "mode":
            path.chmod(0o644)
        elif how != "delete":
            edits = {"line": content + MINE + b" %d\n" % self.number, "value": content.replace(b"32", b"48", 1)}
            path.write_bytes(edits.get(how, {"empty": b"", "ends": content.replace(b"\n", b"\r\n")}.get(how, content)))

    @rule(folder=FOLDERS)
    def own_file(self, folder: str) -> None:
        if (self.root / folder).is_dir():
            (self.root / folder / "notes.txt").write_text(f"note {self.number}\n")
            (self.root / folder / "logs").mkdir(exist_ok=True)
            (self.root / folder / "logs" / "1.log").write_text("loss 2.5\n")

    @rule(folder=FOLDERS, how=st.sampled_from(["batch", "figure", "cut", "laid out", "signed", "other"]))
    def edit_plan(self, folder: str, how: str) -> None:
        path = self.root / folder / "plan.json"
        with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
            data = json.loads(path.read_bytes())
            if how == "batch":
                data["inputs"]["job"]["global_batch_size"] = 64
            elif how == "figure":
                data["best"]["predicted"]["step_s"] /= 2
            elif how == "signed":
                data["inputs"]["job"]["training"]["lr"] = 0.5
            text = signed(data) if how == "signed" else json.dumps(data, indent=1)
            if how == "other":
                text = (self.root / ("b" if folder == "a" else "a") / "plan.json").read_text()
            path.write_text(text[: len(text) // 2] if how == "cut" else text)

    # What check says, against what lies there.

    @invariant()
    def check_says_what_was_edited(self) -> None:
        for folder in ("a", "b"):
            if self.written[folder]:
                self._check(folder)

    def _edited(self, name: str) -> set[str]:
        """Name the files that are there, and not as they were written last."""
        now = entries(self.root / name)
        return {path for path, entry in self.written[name].items() if path in now and now[path] != entry}

    def _check(self, name: str) -> None:
        folder = self.root / name
        ended = call("verify", "--frozen", folder, "--json")
        was, now = self.written[name], entries(folder)
        found = {each["path"]: each["kind"] for each in json.loads(ended.out)["findings"]} if ended.code < 2 else {}
        failing = {path: kind for path, kind in found.items() if kind != "left over"}
        assert ended.code == (2 if ended.code == 2 else 1 if failing else 0)
        if now == was or {**now, **was} == now:
            assert ended.code == 0
        if ended.code == 2:  # a plan or a manifest that cannot be read
            assert any(now.get(path) != was[path] for path in ("plan.json", "manifest.json"))
            return
        if now.get("manifest.json") != was["manifest.json"]:
            return  # whoever changes it changes what was written
        resolved = {path: _read(folder / path) for path in was}
        for path, (kind, content) in was.items():
            if path == "manifest.json":
                continue
            if resolved[path] is None:
                assert found.get(path) == "missing", path
            elif resolved[path] != content:
                fresh = self._fresh(folder) if now.get("plan.json") != was["plan.json"] else {}
                assert found.get(path) == "edited" or fresh.get(path) == resolved[path], (path, found)
            elif kind == "program" and not os.access(folder / path, os.X_OK):
                assert path in found, path
            elif now.get("plan.json") == was["plan.json"]:
                assert path not in found, (path, found)
        assert all(kind == "stale" for path, kind in failing.items() if path not in was)

    def _fresh(self, folder: Path) -> Mapping[str, bytes]:
        """What would be written from the plan that lies there now, if it is one."""
        manifest = json.loads((folder / "manifest.json").read_text())
        with tempfile.TemporaryDirectory() as place:
            out = Path(place, "out")
            launchers = [word for name in manifest["launchers"] for word in ("--launcher", name)]
            call("render", folder / "plan.json", "--target", manifest["target"], *launchers, "--out", out)
            return {name: content for name, (_, content) in entries(out).items() if isinstance(content, bytes)}


def _content(entry: Entry) -> bytes:
    return entry[1] if isinstance(entry[1], bytes) else b""


def _read(path: Path) -> bytes | None:
    return path.read_bytes() if path.is_file() else None


TestTwoActors = TwoActors.TestCase
TestTwoActors.settings = settings(max_examples=settings.default.max_examples // 16, stateful_step_count=12)
