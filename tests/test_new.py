"""`python -m tools new KIND`: what it writes imports, is clean, and fails with what is to be filled in."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree

import pytest
import yaml

from tools import new

ROOT = Path(__file__).resolve().parent.parent
NAMES = {
    "block": "own_block_" + "x" * 22, "model": "own-model-1.5b", "cluster": "own-cluster",
    "target": "own-target-" + "x" * 21, "rule": "own-rule-" + "x" * 23,
}  # fmt: skip
# Tests that ask every model, cluster and rule, of which each addition has a case.
OTHERS = (
    f"tests/descriptor/test_load.py::test_every_zoo_model_loads_under_its_own_name_with_a_source[{NAMES['model']}]",
    f"tests/descriptor/test_parameter_counts.py::test_our_count_is_the_recorded_one[{NAMES['model']}]",
    f"tests/descriptor/test_clusters.py::test_gpu_agrees_with_its_data_sheet[{NAMES['cluster']}]",
    f"tests/existing/rules/test_megatron_rules.py::test_an_example_breaks_its_rule_and_no_other[{NAMES['rule']}]",
)


def linked(source: str, copy: str) -> None:
    """Give a file a second name, or copy it to another file system."""
    try:
        os.link(source, copy)
    except OSError:
        shutil.copyfile(source, copy)


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a copy of what additions are written into, with one of each kind."""
    copy = tmp_path_factory.mktemp("new") / "tree"
    left = shutil.ignore_patterns("__pycache__", "golden*", "corpus", "corpora")
    for name in ("symconfig", "templates", "model_zoo", "tests", "tools", "benchmarks"):
        shutil.copytree(ROOT / name, copy / name, ignore=left, copy_function=linked)
    shutil.copy(ROOT / "pyproject.toml", copy)
    for kind, name in NAMES.items():
        new.add(kind, name, root=copy)
    return copy


def ran(tree: Path, *words: str) -> str:
    """Return what a module of Python prints in the copy."""
    done = subprocess.run([sys.executable, "-m", *words], cwd=tree, capture_output=True, text=True, check=False)
    return done.stdout + done.stderr


def written(kind: str) -> list[str]:
    """Return the paths of an addition's files."""
    words = new.named(kind, NAMES[kind], None)
    return [new.spelled(path.relative_to(new.PARTS / kind).with_suffix("").as_posix(), words)
            for path in (new.PARTS / kind).rglob("*") if path.is_file()]  # fmt: skip


def test_what_is_written_is_clean(tree: Path) -> None:
    pytest.importorskip("ruff")
    paths = [path for kind in NAMES for path in written(kind) if path.endswith(".py")]
    assert ran(tree, "ruff", "check", *paths).strip() == "All checks passed!"
    assert "would" not in ran(tree, "ruff", "format", "--check", *paths)


def test_every_test_of_an_addition_fails_with_what_is_to_be_filled_in(tree: Path) -> None:
    paths = [path for kind in NAMES for path in written(kind) if "/test_" in path and not (ROOT / path).exists()]
    text = ran(tree, "pytest", "-p", "no:cacheprovider", f"--junitxml={tree / 'ran.xml'}", *paths, *OTHERS)
    cases = list(ElementTree.parse(tree / "ran.xml").iter("testcase"))
    assert len(cases) == 3 + 2 + 2 + len(OTHERS), text
    for case in cases:
        (wrong,) = case
        assert wrong.tag in ("failure", "error"), text
        assert "fill in" in wrong.attrib["message"], text
        assert "missing" not in wrong.attrib["message"], "every field that is needed is to be filled in"


@pytest.mark.parametrize("kind", NAMES)
def test_what_is_to_be_filled_in_is_listed_with_its_line(kind: str, tmp_path: Path) -> None:
    copy = tmp_path / "tree"
    for path in written(kind):  # those that parts are put into
        if (ROOT / path).exists():
            (copy / path).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / path, copy / path)
    lines = new.add(kind, NAMES[kind], root=copy)
    places = re.findall(r"^  (\S+):(\d+)(?:$|: )", "\n".join(lines), re.MULTILINE)
    assert {path for path, _ in places} <= set(written(kind))
    for path, line in places:
        assert "fill in" in (copy / path).read_text(encoding="utf-8").splitlines()[int(line) - 1]


@pytest.mark.parametrize(
    ("kind", "name", "inside", "sentence"),
    [
        ("block", "short_conv", None, "there is a block short_conv already"),
        ("model", "llama2-13b", None, "there is a model llama2-13b already"),
        ("cluster", "h100", None, "there is a cluster h100 already"),
        ("target", "megatron", None, "there is a target megatron already"),
        ("target", "files", None, "there is a file symconfig/render/files.py already"),
        ("rule", "heads-over-tp", None, "there is a rule heads-over-tp already"),
        ("rule", "own-rule", "megatron_colours", "--in megatron_colours is no file for a rule"),
        ("model", "own", "megatron_sizes", "--in megatron_sizes is no file for a model"),
        ("block", "own-block", None, "'own-block' cannot name a block"),
        ("block", "class", None, "'class' cannot name a block"),
        ("model", "../own", None, r"'\.\./own' cannot name a model"),
        ("rule", "", None, "'' cannot name a rule"),
        ("cluster", "x" * 33, None, "cannot name a cluster"),
    ],
)
def test_what_cannot_be_added_is_refused_and_writes_nothing(
    kind: str, name: str, inside: str | None, sentence: str, tmp_path: Path
) -> None:
    shutil.copytree(ROOT / "symconfig" / "render", tmp_path / "symconfig" / "render")
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises(new.RefusedError, match=sentence):
        new.add(kind, name, inside, root=tmp_path)
    assert sorted(tmp_path.rglob("*")) == before


def test_a_model_is_filled_in_from_its_config(tmp_path: Path) -> None:
    for path in ("tests/published/parameter_counts.yaml", "tools/verify/real.yaml"):
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / path, tmp_path / path)
    config = ROOT / "tests" / "descriptor" / "configs" / "llama2-13b.json"
    new.add("model", "own-13b", config=str(config), root=tmp_path)
    text = (tmp_path / "model_zoo" / "models" / "own-13b.yaml").read_text(encoding="utf-8")
    assert text.splitlines()[1:3] == ["name: own-13b", "source: 'fill in: the address of its config.json'"]
    assert "hidden_size: 5120" in text
    with pytest.raises(new.RefusedError, match="no such file"):
        new.add("model", "own-14b", config=str(tmp_path / "none.json"), root=tmp_path)


@pytest.mark.parametrize("name", new.files_of_rules())
def test_a_rule_can_be_put_into_every_file_of_rules(name: str) -> None:
    text = (ROOT / "symconfig" / "existing" / "rules" / "rows" / f"{name}.yaml").read_text(encoding="utf-8")
    part = new.spelled((new.PARTS / "rule/symconfig/existing/rules/rows/NEW_FILE.yaml.insert").read_text("utf-8"), {})
    assert [*yaml.safe_load(text), "NEW_NAME"] == [*yaml.safe_load(new.inserted(text, part, name))]
