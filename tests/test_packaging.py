"""The wheel: it holds the data, and works installed in a fresh virtual environment, away from the checkout."""

from __future__ import annotations

import ast
import importlib.util
import json
import os
import re
import subprocess
import sys
import sysconfig
import tomllib
import venv
import zipfile
from email import message_from_bytes
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest
import yaml
from packaging.requirements import Requirement

ROOT = Path(__file__).resolve().parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel as pip builds it; with the hatchling that is installed, else with one from the index."""
    out = tmp_path_factory.mktemp("wheel")
    isolation = ["--no-build-isolation"] if importlib.util.find_spec("hatchling") else []
    command = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", *isolation, "-w", str(out), str(ROOT)]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    if ended.returncode and not isolation:
        pytest.skip(f"the build backend cannot be had: {ended.stderr[-300:]}")
    assert ended.returncode == 0, ended.stderr
    return next(out.glob("*.whl"))


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The interpreter of a fresh environment with the wheel in it; its dependencies are borrowed from this one."""
    home = tmp_path_factory.mktemp("venv")
    venv.create(home, with_pip=False, symlinks=True)
    python = home / "bin" / "python"
    code = "import sysconfig; print(sysconfig.get_path('purelib'))"
    site = subprocess.run([python, "-c", code], capture_output=True, text=True, check=True).stdout.strip()
    Path(site, "borrowed.pth").write_text(sysconfig.get_path("purelib") + "\n", encoding="utf-8")
    pip = [sys.executable, "-m", "pip", "--python", str(python), "install", "--quiet", "--no-deps", "--no-index"]
    subprocess.run([*pip, str(wheel)], check=True, timeout=300)
    return python


def tracked(folder: str) -> set[str]:
    """Files of a data folder, caches left out."""
    return {
        str(path.relative_to(ROOT))
        for path in (ROOT / folder).rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }


def test_the_wheel_holds_every_file_of_the_package_and_its_data_and_neither_tests_nor_caches(wheel: Path) -> None:
    names = set(zipfile.ZipFile(wheel).namelist())
    data = {f"symconfig/_data/{name}" for folder in ("templates", "model_zoo") for name in tracked(folder)}
    own = {name for name in tracked("symconfig") if not name.endswith(".pyc")}
    assert names >= data | own | {"symconfig/py.typed"}
    assert {name.split("/")[2] for name in data} == {"templates", "model_zoo"}
    for name in names:
        assert name.startswith(("symconfig/", "symconfig-")), name
        assert "__pycache__" not in name


def test_an_installed_wheel_works_away_from_the_checkout(installed: Path, tmp_path: Path) -> None:
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}

    def run(words: str) -> subprocess.CompletedProcess[str]:
        command = [installed.with_name("symconfig"), *words.split()]
        how: dict[str, Any] = {"capture_output": True, "text": True, "timeout": 300, "env": environment}
        return subprocess.run(command, cwd=tmp_path, **how)

    assert "COMMAND" in run("--help").stdout
    doctor = run("doctor --json")
    assert doctor.returncode == 0, doctor.stderr
    data = json.loads(doctor.stdout)
    for folder in data["folders"]:
        assert str(installed.parent.parent) in folder["path"]
    assert data["models"] == sorted(path.stem for path in (ROOT / "model_zoo" / "models").glob("*.yaml"))
    plan = run("plan --model llama2-7b --cluster a100-80gb --gpus 8 --global-batch-size 64 --out out")
    assert plan.returncode == 0, plan.stderr
    assert (tmp_path / "out" / "launch.sh").is_file()


def test_an_editable_install_finds_the_data_of_the_checkout() -> None:
    code = "from symconfig.resources import data_dir; print(data_dir('templates')); print(data_dir('model_zoo'))"
    ended = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert ended.stdout.split() == [str(ROOT / "templates"), str(ROOT / "model_zoo")]


def top_level_imports(path: Path) -> set[str]:
    """Packages that a module imports when it is loaded, not inside its functions."""
    found = set()
    for node in ast.parse(path.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.Import):
            found |= {alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            found.add(node.module.partition(".")[0])
    return found


def modules_of(needs: list[str]) -> set[str]:
    """What these requirements let one import."""
    names = {re.split(r"[<>=\[ ]", need, maxsplit=1)[0].lower() for need in needs}
    owners = metadata.packages_distributions()
    return {module for module, packages in owners.items() if {name.lower() for name in packages} & names}


# Folders that serve an extra alone, and the one file of each by which they are reached; it imports the rest when asked.
OF_EXTRAS = {
    "graph/program/torch_source": ("module", "factory.py"),
}


def test_nothing_is_imported_that_the_base_install_does_not_bring() -> None:
    base = modules_of(PROJECT["dependencies"]) | set(sys.stdlib_module_names) | {"symconfig"}
    for path in sorted((ROOT / "symconfig").rglob("*.py")):
        folder = path.parent.relative_to(ROOT / "symconfig").as_posix()
        extra, door = next((known for at, known in OF_EXTRAS.items() if folder.startswith(at)), ("", ""))
        more = (
            modules_of(PROJECT["optional-dependencies"][extra])
            if extra and path.name not in (door, "__init__.py")
            else set()
        )
        assert top_level_imports(path) <= base | more, path


@pytest.mark.parametrize("folder", OF_EXTRAS)
def test_folders_of_extras_are_entered_by_their_door(folder: str) -> None:
    """A user without the extra can import everything else: nothing but folders of the same extra names a file of the
    folder other than the door."""
    inner, door = folder.replace("/", "."), OF_EXTRAS[folder][1].removesuffix(".py")
    same = [at for at, (extra, _) in OF_EXTRAS.items() if extra == OF_EXTRAS[folder][0]]
    others = [path for path in (ROOT / "symconfig").rglob("*.py") if not any(at in path.as_posix() for at in same)]
    named = {found for path in others for found in re.findall(rf"symconfig\.{inner}\.?(\w*)", path.read_text("utf-8"))}
    assert named <= {door, ""}


def test_the_declared_pythons_are_those_that_the_makefile_accepts() -> None:
    assert PROJECT["requires-python"] == ">=3.11,<3.15"
    assert "(3, 11) <= sys.version_info[:2] <= (3, 14)" in (ROOT / "Makefile").read_text(encoding="utf-8")


def test_the_version_is_the_same_everywhere() -> None:
    from symconfig import __version__

    assert PROJECT["version"] == __version__
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))
    assert citation["version"] == __version__
    assert [author["name"] for author in PROJECT["authors"]] == [author["name"] for author in citation["authors"]]
    assert f"## {__version__}" in (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")


def test_the_wheel_says_its_licence_and_holds_it(wheel: Path) -> None:
    archive = zipfile.ZipFile(wheel)
    said = message_from_bytes(archive.read(next(name for name in archive.namelist() if name.endswith("/METADATA"))))
    assert said["License-Expression"] == PROJECT["license"] == "Apache-2.0"
    held = [name for name in archive.namelist() if ".dist-info/licenses/" in name]
    assert {name.rpartition("/licenses/")[2] for name in held} == set(said.get_all("License-File"))
    (own,) = (name for name in held if name.endswith("/LICENSE"))
    assert archive.read(own) == (ROOT / "LICENSE").read_bytes()


def test_the_page_of_an_index_has_no_link_that_leads_nowhere(wheel: Path) -> None:
    archive = zipfile.ZipFile(wheel)
    said = message_from_bytes(archive.read(next(name for name in archive.namelist() if name.endswith("/METADATA"))))
    assert said["Description-Content-Type"] == "text/markdown"
    page = said.get_payload(decode=True).decode("utf-8")
    assert "symconfig chooses how a large model is split" in page
    assert all(target.startswith("https://") for target in re.findall(r"\]\(([^)\s]+)\)", page))
    assert "<!--" not in page


def test_links_are_absolute_where_the_source_has_an_address() -> None:
    pytest.importorskip("hatchling")
    spec = importlib.util.spec_from_file_location("index_readme", ROOT / ".ci" / "index_readme.py")
    page = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(page)
    made = page.of_index(
        "see [speed](docs/evidence/speed.md) <!-- no -->\nand [SPDX](https://spdx.org)", "https://e.org/s/", "1.2"
    )
    assert made == "see [speed](https://e.org/s/blob/v1.2/docs/evidence/speed.md) and [SPDX](https://spdx.org)"


def test_ci_installs_releases_that_the_extras_allow() -> None:
    """Every pin of the constraints is a release that people get, too; frameworks are ranges there."""
    lines = (ROOT / ".ci" / "constraints.txt").read_text(encoding="utf-8").splitlines()
    pins = dict(line.lower().split("==") for line in lines if not line.startswith("#"))
    needs = [Requirement(need) for needs in PROJECT["optional-dependencies"].values() for need in needs]
    needs += [Requirement(need) for need in PROJECT["dependencies"]]
    wrong = [str(need) for need in needs if (pin := pins.get(need.name.lower())) and not need.specifier.contains(pin)]
    assert not wrong
    for name in ("torch", "transformers", "deepspeed"):
        assert name in pins
        assert all("==" not in str(need.specifier) for need in needs if need.name == name)
