"""Every variable that templates are given, into docs/templates.md: `python docs/templates.py`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import yaml
from pydantic import BaseModel

from symconfig.descriptor.cluster import ClusterDescriptor, Gpu
from symconfig.descriptor.job import Job, Limits
from symconfig.descriptor.model import Adapter, ModelDescriptor
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
INTRO = """# Templates of your own

`symconfig plan … --out DIR --templates FOLDER` takes templates of your own, and so do `render`, `replan`, `formats` and
`check`:

| in FOLDER | is |
|---|---|
| `megatron/launch.sh.j2` | instead of the target's own template of that name |
| `megatron/notes/run.txt.j2` | one more file of the target: `notes/run.txt` |
| `ours/target.yaml`, `ours/*.j2` | a target of its own: `--target ours` |

A file is executable where its text begins with `#!`; a template that gives only white space makes no file. Launchers
start `launch.sh`: a target of its own without one has none, and asking for one is an error. So is a file that a
launcher writes, too (`sbatch.sh`), or that symconfig writes itself.
`target.yaml` names the target whose variables the templates are given:

```yaml
{about}
```

Templates are [Jinja](https://jinja.palletsprojects.com/templates/), with `trim_blocks` and `lstrip_blocks`. Those of
any target can be extended by their path, so that one block is replaced and the rest stays symconfig's:

```jinja
{override}```

The blocks of every launch.sh are `usage`, `here`, `setup`, `program`, `cuda_range` and `torch_profiler` (what they
add to `PROGRAM` for `PROFILE=nsys` and `PROFILE=torch`), `command`, `ready` and `install`, those of REPORT.md `batch`,
`start` and `more` (`templates/shared/`). Filters: `sh` quotes a word for bash, `line` makes one printable line, `slug`
a job's name, `yaml` writes a value as YAML.

They run in a sandbox. A name that there is none of is an error, with the file, the line and the name that is like it.
Nothing can be called but filters, macros and the functions of `summary`; no file but a template can be read, no link is
followed; what takes 10 s of computing, 1 GiB of memory or gives 8 MiB of text is stopped. `symconfig check --templates
FOLDER` says when they changed since. The example above is `docs/examples/templates/`.

This page is written by `make templates`.
"""


def tables() -> dict[str, Any]:
    """What holds for all targets."""
    return _read(data_dir("templates") / TABLE)


def own(target: str) -> Table:
    """The variables that are described for this target beside those."""
    return _read(data_dir("templates") / target / TABLE)


def _read(path: Path) -> dict[str, Any]:
    return yaml.safe_load(path.read_text(encoding="utf-8")) if path.is_file() else {}


def page() -> str:
    """The whole page."""
    known = tables()
    about = (EXAMPLE / "ours" / "target.yaml").read_text(encoding="utf-8").rstrip()
    override = (EXAMPLE / "megatron" / "launch.sh.j2").read_text(encoding="utf-8")
    parts = [
        INTRO.format(about=about, override=override),
        "## In every template\n",
        *_table(known["common"]),
        "\n## In most targets\n",
        *_table(known["often"]),
    ]
    for name, source in targets().items():
        parts += [f"\n## In `{name}`\n", f"{source.does[0].upper()}{source.does[1:]}.\n", *_table(own(name))]
    parts.append("\n## Parts of a plan\n")
    for name, fields in known["objects"].items():
        parts += [f"### {name}\n", *_table(fields), ""]
    parts.append(
        "## What was asked for\n\nThe fields of the files that a person writes. A model's are those of "
        "Hugging Face's config.json; units are in the names (`_bytes`, `_s`, `_flops`, `_bytes_per_s`: of one "
        "GPU, in one direction); a `Quantity` has `value`, `source` and `uncertainty`.\n"
    )
    for name, kind in DESCRIPTORS.items():
        parts += [f"### {name}\n", *_table(dict(_fields(kind))), ""]
    return "\n".join(parts).rstrip("\n") + "\n"


def _fields(kind: type[BaseModel]) -> Iterator[tuple[str, tuple[str, str]]]:
    """Of a descriptor, as templates name them."""
    for name, field in kind.model_fields.items():
        annotation = str(kind.__annotations__.get(name, field.annotation)).replace("|", "or")
        yield name, (f"`{annotation}`", field.description or "")


def _table(rows: Table) -> Iterator[str]:
    if not rows:
        yield "Nothing more."
        return
    yield "| name | type | meaning |\n|---|---|---|"
    yield from (f"| `{name}` | {kind} | {meaning} |" for name, (kind, meaning) in rows.items())


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
