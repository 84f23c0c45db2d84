"""Every variable that templates are given, into docs/templates.md: `python docs/templates.py`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import yaml
from pydantic import BaseModel
from written import fill, table

from symconfig.descriptor.cluster import ClusterDescriptor, Gpu
from symconfig.descriptor.job import Job, Limits
from symconfig.descriptor.model import ModelDescriptor
from symconfig.descriptor.sections import Adapter
from symconfig.descriptor.training import WholeTraining
from symconfig.render import targets
from symconfig.resources import data_dir

PAGE = Path(__file__).with_suffix(".md")
EXAMPLE = Path(__file__).parent / "examples" / "templates"
TABLE = "variables.yaml"
Table = Mapping[str, tuple[str, str]]
# Descriptors, whose fields are what their files hold; Quantity: a number with its source.
DESCRIPTORS: Mapping[str, type[BaseModel]] = {
    "Job": Job,
    "Limits": Limits,
    "Training": WholeTraining,
    "Model": ModelDescriptor,
    "Adapter": Adapter,
    "Cluster": ClusterDescriptor,
    "Gpu": Gpu,
}


def tables() -> dict[str, Any]:
    """What holds for all targets."""
    return _read(data_dir("templates") / TABLE)


def own(target: str) -> Table:
    """The variables that are described for this target beside those."""
    return _read(data_dir("templates") / target / TABLE)


def _read(path: Path) -> dict[str, Any]:
    return yaml.safe_load(path.read_text(encoding="utf-8")) if path.is_file() else {}


def parts() -> dict[str, str]:
    """Return the examples' files, and the variables of all templates and of each target."""
    known = tables()
    about = (EXAMPLE / "ours" / "target.yaml").read_text(encoding="utf-8")
    override = (EXAMPLE / "megatron" / "launch.sh.j2").read_text(encoding="utf-8")
    own_of = (
        f"## In `{name}`\n\n{source.does[0].upper()}{source.does[1:]}.\n\n{_table(own(name))}"
        for name, source in targets().items()
    )
    return {
        "target.yaml": f"```yaml\n{about}```",
        "launch.sh.j2": f"```jinja\n{override}```",
        "all": _table(known["common"]),
        "most": _table(known["often"]),
        "targets": "\n".join(own_of),
        "objects": "\n".join(f"### {name}\n\n{_table(fields)}" for name, fields in known["objects"].items()),
        "descriptors": "\n".join(f"### {name}\n\n{_table(dict(_fields(kind)))}" for name, kind in DESCRIPTORS.items()),
    }


def _fields(kind: type[BaseModel]) -> Iterator[tuple[str, tuple[str, str]]]:
    """Of a descriptor, as templates name them."""
    for name, field in kind.model_fields.items():
        annotation = str(kind.__annotations__.get(name, field.annotation)).replace("|", "or")
        yield name, (f"`{annotation}`", field.description or "")


def _table(rows: Table) -> str:
    cells = ((f"`{name}`", kind, meaning) for name, (kind, meaning) in rows.items())
    return table(("name", "type", "meaning"), cells) if rows else "Nothing more.\n"


if __name__ == "__main__":
    fill(PAGE, parts())
