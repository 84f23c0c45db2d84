"""What is installed and found here, and what can be verified; each lack with the command that ends it."""

from __future__ import annotations

import platform
import shutil
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

from symconfig import install
from symconfig.errors import InputError
from symconfig.report.grid import Block, Grid

BASE = ("jinja2", "numpy", "pulp", "pydantic", "pyyaml", "rich", "sympy", "tree-sitter", "tree-sitter-bash")
EXTRA = (
    "torch", "megatron-core", "deepspeed", "transformers", "peft", "pyarrow",
)  # fmt: skip
# Of what an option wants, whether it is on this machine; None: launch.sh brings it along.
_HERE = {True: "found", False: "not found", None: "launch.sh exports it"}


@dataclass(frozen=True, slots=True)
class Ability:
    """One kind of verification. `enable`: the command that makes it possible, empty where it is."""

    name: str
    possible: bool
    enable: str


@dataclass(frozen=True, slots=True)
class Folder:
    """A data folder: where it is and how many files of each kind it holds; `path` is None when it is missing."""

    name: str
    path: str | None
    files: dict[str, int]


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
    abilities: tuple[Ability, ...]

    @property
    def sites(self) -> tuple[Site, ...]:
        """Return the needs of plans' options; nothing where symconfig's own packages are not all there."""
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
    """Look around; imports no heavy package."""
    packages = {name: _version(name) for name in (*BASE, *EXTRA)}
    return Health(
        symconfig=install.VERSION,
        python=platform.python_version(),
        system=f"{platform.system()} {platform.machine()}",
        packages=packages,
        folders=tuple(_folder(name) for name in ("model_zoo", "templates")),
        models=_zoo("models"),
        clusters=_zoo("clusters"),
        abilities=_abilities(packages),
    )


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def _data(name: str) -> Path | None:
    from symconfig.resources import data_dir

    try:
        return data_dir(name)
    except FileNotFoundError:
        return None


def _folder(name: str) -> Folder:
    path = _data(name)
    if path is None:
        return Folder(name, None, {})
    inner = sorted(child for child in path.iterdir() if child.is_dir() and child.name != "__pycache__")
    return Folder(name, str(path), {child.name: sum(file.is_file() for file in child.rglob("*")) for child in inner})


def _zoo(kind: str) -> tuple[str, ...]:
    path = _data("model_zoo")
    return tuple(sorted(file.stem for file in (path / kind).glob("*.yaml"))) if path else ()


def _abilities(packages: dict[str, str | None]) -> tuple[Ability, ...]:
    def has(*names: str) -> bool:
        return all(packages[name] for name in names)

    megatron = has("torch") and _megatron_source()
    fetch = install.MEGATRON if has("torch") else f"{install.EXTRA} && {install.MEGATRON}"
    extra = (
        ("Megatron arguments through megatron-core's config classes", has("torch", "megatron-core"), install.EXTRA),
        ("Megatron arguments through Megatron-LM's own parser", megatron, fetch),
        ("ranks that Megatron-LM builds, and what they keep: verify --build, --trace", megatron, fetch),
        ("this machine's kernels: measure", has("torch"), install.EXTRA),
        ("DeepSpeed JSON through DeepSpeedConfig", has("torch", "deepspeed", "transformers"), install.EXTRA),
        (
            "ranks that DeepSpeed builds: verify --build",
            has("torch", "deepspeed", "transformers", "peft"),
            install.EXTRA,
        ),
        ("parameter counts through transformers", has("torch", "transformers"), install.EXTRA),
        ("adapters through PEFT", has("torch", "transformers", "peft"), install.EXTRA),
        ("launch.sh and sbatch.sh by a dry run", shutil.which("bash") is not None, "install bash"),
    )
    return tuple(Ability(name, possible, "" if possible else enable) for name, possible, enable in extra)


def _sites() -> Iterator[Site]:
    """Yield what options of either framework want."""
    from symconfig.frameworks.known import BACKENDS
    from symconfig.frameworks.tables import options

    for option in (option for backend in BACKENDS for option in options(backend)):
        for need in option.needs:
            if need.module is not None:
                yield Site(option.name, option.label, need.named, need.hint, need.is_there())
            for name, value in need.environment.items():
                yield Site(option.name, option.label, f"{name}={value}", need.hint, None)


def _megatron_source() -> bool:
    """Tell whether Megatron-LM's own parser is on this machine, as the room that runs it finds it."""
    from symconfig.verify import megatron_source

    try:
        return megatron_source.find() is not None
    except InputError:  # $MEGATRON_PATH names a folder that is none
        return False


def blocks(health: Health) -> list[Block]:
    """Write the doctor's report."""
    packages = tuple(
        (name, version or "absent", "" if version or name in BASE else "optional")
        for name, version in health.packages.items()
    )
    folders = tuple(
        (one.name, ", ".join(f"{count} in {name}" for name, count in one.files.items()), one.path or "MISSING")
        for one in health.folders
    )
    sites = tuple((site.label, site.option, site.wants, _HERE[site.here]) for site in health.sites)
    commands = tuple(dict.fromkeys(ability.enable for ability in health.abilities if ability.enable))
    abilities = tuple(
        (
            ability.name,
            "yes" if ability.possible else "no",
            f"({commands.index(ability.enable) + 1})" if ability.enable else "",
        )
        for ability in health.abilities
    )
    enable = "\n".join(f"({number}) {command}" for number, command in enumerate(commands, start=1))
    return [
        f"symconfig {health.symconfig}, Python {health.python}, {health.system}",
        Grid(("package", "version", ""), packages, left=(0, 1, 2)),
        Grid(("folder", "files", "where"), folders, left=(0, 1, 2)),
        f"{len(health.models)} models: {' '.join(health.models)}\n"
        f"{len(health.clusters)} clusters: {' '.join(health.clusters)}",
        Grid(("what can be verified here", "", "to enable it"), abilities, left=(0, 1, 2)),
        *([enable] if enable else []),
        Grid(("option of a plan", "--without", "wanted where the job runs", "here"), sites, left=(0, 1, 2, 3)),
        "`symconfig plan … --without NAME` plans without one of these options. launch.sh exports the variables, and "
        "looks for the modules before it starts.",
        "Planning and rendering work here."
        if health.healthy
        else "Planning does not work here: reinstall with `pip install --force-reinstall symconfig`.",
    ]
