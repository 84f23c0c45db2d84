"""What other packages add: an example package is installed and used; broken ones are named in a sentence."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from symconfig.cli.main import main
from symconfig.descriptor.load import plugged_models
from symconfig.descriptor.plugins import plugins
from symconfig.existing.rules.plugged import plugged
from symconfig.render import every_launcher, targets

ROOT = Path(__file__).resolve().parents[2]
EXAMPLE = Path(__file__).with_name("example")
JOB = ("--cluster", "h100", "--gpus", "8", "--global-batch-size", "64")


def symconfig(site: Path, *words: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run the program where the packages of a folder are installed."""
    return subprocess.run(
        [sys.executable, "-m", "symconfig", *words],
        cwd=site.parent,
        env={**os.environ, "PYTHONPATH": f"{ROOT}:{site}", **environment},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The example package as pip installs it, in a folder of its own."""
    pytest.importorskip("hatchling")
    room = tmp_path_factory.mktemp("plugins")
    source = shutil.copytree(EXAMPLE, room / "source")
    pip = (sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-index", "--no-build-isolation")
    subprocess.run([*pip, "--target", str(room / "site"), str(source)], check=True, capture_output=True, timeout=120)
    return room / "site"


def test_a_plan_of_an_added_model_for_an_added_target(site: Path) -> None:
    ended = symconfig(site, "plan", "--model", "example-7b", *JOB, "--target", "argument-list", "--out", "out")
    assert ended.returncode == 0, ended.stderr
    out = site.parent / "out"
    words = json.loads((out / "arguments.json").read_text(encoding="utf-8"))
    plan = json.loads((out / "plan.json").read_text(encoding="utf-8"))
    assert plan["inputs"]["model"]["name"] == "example-7b"
    tp = str(plan["best"]["parallel"]["tp"])
    assert words[words.index("--tensor-model-parallel-size") + 1] == tp
    checked = symconfig(site, "verify", "--frozen", "out")
    assert checked.returncode == 0, checked.stdout + checked.stderr
    made = symconfig(site, "render", "out", "--target", "megatron", "--launcher", "ssh:user=me", "--out", "ssh")
    assert made.returncode == 0, made.stderr
    assert '"me@$host"' in (site.parent / "ssh" / "ssh.sh").read_text(encoding="utf-8")


def test_an_added_rule_is_asked_and_listed(site: Path) -> None:
    line = "--num-layers 2 --hidden-size 64 --num-attention-heads 4 --seed 1"
    found = json.loads(symconfig(site, "audit", line, "--json").stdout)["findings"]
    assert [each["need"] for each in found if each["rule"] == "example-seed"] == ["17"]
    assert '"example-seed"' in symconfig(site, "list", "rules", "--json").stdout
    without = symconfig(site, "audit", line, "--json", SYMCONFIG_PLUGINS="none")
    assert "example-seed" not in without.stdout


def test_what_is_added_is_listed(site: Path) -> None:
    listed = symconfig(site, "list", "targets")
    assert "argument-list" in listed.stdout
    assert "ssh.sh: launch.sh on every host of a list" in listed.stdout
    assert "example-7b" in symconfig(site, "list", "models").stdout


def broken(site: Path, kind: str, name: str, code: str) -> Path:
    """Install a package with one entry point of a kind, whose module has this code."""
    (site / "bad-1.0.dist-info").mkdir(parents=True)
    (site / "bad-1.0.dist-info" / "METADATA").write_text("Metadata-Version: 2.1\nName: bad\nVersion: 1.0\n")
    (site / "bad-1.0.dist-info" / "entry_points.txt").write_text(f"[symconfig.{kind}]\n{name} = bad\n")
    (site / "bad.py").write_text(code)
    return site


PARTS = "from pathlib import Path\nTEMPLATES = Path('.')\nDOES = 'nothing'\n"
RULES = "from symconfig.existing.rules.rule import Rules\nMEGATRON = Rules()\n"
RULE = f"{RULES}@MEGATRON.rule('NAME', 'note', 't', 'w', 'e')\ndef _check(facts):\n    yield 1 / 0\n"
CASES = {
    "no import": ("targets", "x", "import nowhere", "bad cannot be loaded: ModuleNotFoundError: No module named"),
    "exit": ("models", "x", "raise SystemExit(3)", "bad cannot be loaded: SystemExit: 3"),
    "no part": ("targets", "x", "DOES = 'x'", "bad needs TEMPLATES of type Path, which is missing"),
    "no function": ("launchers", "x", PARTS, "bad has no function `variables`"),
    "own name": ("targets", "megatron", PARTS, "is the name of one of symconfig's own"),
    "a defect": ("targets", "x", f"{PARTS}def variables(plan):\n    {{}}['a']", "variables stopped with KeyError: 'a'"),
    "no rules": ("rules", "x", "", "bad has neither MEGATRON nor DEEPSPEED"),
    "a rule's name": ("rules", "x", RULE.replace("NAME", "missing-option"), "another rule of the name missing-option"),
    "a rule's defect": ("rules", "x", RULE.replace("NAME", "mine"), "_check stopped with ZeroDivisionError"),
}  # fmt: skip


@pytest.fixture
def anew(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Let nothing be remembered of plug-ins, before a test and after it."""
    kept = (plugins, plugged_models, targets, every_launcher, plugged)
    for function in kept:
        function.cache_clear()
    yield
    monkeypatch.undo()
    sys.modules.pop("bad", None)
    for function in kept:
        function.cache_clear()


@pytest.mark.usefixtures("anew")
@pytest.mark.parametrize("case", CASES)
def test_a_broken_plug_in_is_named_with_its_reason(
    case: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    kind, name, code, said = CASES[case]
    monkeypatch.syspath_prepend(broken(tmp_path / "site", kind, name, code))
    monkeypatch.chdir(tmp_path)
    command = {
        "targets": ("plan", "--model", "llama2-7b", *JOB, "--target", "x"),
        "launchers": ("plan", "--model", "llama2-7b", *JOB, "--launcher", "x", "--out", "out"),
        "rules": ("audit", "--num-layers 2 --hidden-size 64 --num-attention-heads 4 --seed 1"),
        "models": ("list", "models", "x"),
    }[kind]
    assert main(command) == 2
    text = " ".join(capsys.readouterr().err.split())
    assert said in text
    assert f"plug-in {name} (symconfig.{kind} of bad)" in text
    assert "pip uninstall bad, or SYMCONFIG_PLUGINS=none" in text


def test_no_plug_in_is_loaded_where_none_is_asked_for(tmp_path: Path) -> None:
    """A plan of the zoo, written with the usual launcher, does not import the packages that add to it."""
    site = broken(tmp_path / "site", "targets", "x", "raise SystemExit")
    with (site / "bad-1.0.dist-info" / "entry_points.txt").open("a") as file:
        file.write("[symconfig.launchers]\nx = bad\n[symconfig.models]\nx = bad\n[symconfig.rules]\nx = bad\n")
    ended = symconfig(site, "plan", "--model", "llama2-7b", *JOB, "--out", "out")
    assert ended.returncode == 0, ended.stderr
