"""The page of constants: of each GPU type what was believed, what runs made of it, and which runs took it far."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from symconfig.format import percent
from symconfig.measured.priors import kernel_priors
from symconfig.report.calibration import far_from_prior
from symconfig.report.grid import Grid, markdown_rows

_HEAD = """# Constants of GPUs

Written by `make accuracy`. Kernels that people published (model_zoo/kernel_priors.yaml, by `make priors`) give each
constant a prior; a GPU type without kernels borrows from its generation, a generation without them from the others.
Whole runs then fit what is left. A constant more than two deviations from its prior stands below the table with the
runs that pull it most, and the share of its way that each makes: what the model lacks shows there first.
"""


def page(record: Mapping[str, Any]) -> str:
    """Return the page of a record of accuracy."""
    parts = [
        _HEAD,
        *(_section(constant["cluster"], constant["constants"]) for constant in record["constants"]),
        _sources(),
    ]
    return "\n".join(parts)


def _section(cluster: str, constants: Mapping[str, Mapping[str, Any]]) -> str:
    rows = (
        {
            "constant": name,
            "prior": f"{item['prior']:g} +- {percent(item['prior_uncertainty'])}",
            "from": item["basis"],
            "fitted": f"{item['value']:g} +- {percent(item['uncertainty'])}",
        }
        for name, item in constants.items()
    )
    table = markdown_rows(Grid.of(rows, words=("constant", "from")))
    return "\n".join([f"## {cluster}\n", *table, "", *_left(constants)])


def _left(constants: Mapping[str, Mapping[str, Any]]) -> Iterator[str]:
    for name, item in constants.items():
        if item["deviations"] is not None:
            prior = (item["prior"], item["prior_uncertainty"])
            yield far_from_prior(name, item["deviations"], prior, item["rows"]) + "\n"


def _sources() -> str:
    lines = [f"- {name}: {title}" for name, title in kernel_priors().sources.items()]
    return "\n".join(["## Sources of kernels\n", *lines]) + "\n"
