"""The tables of docs/evidence (accuracy, constants) and README.md's sentences, from what `make accuracy` recorded."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from statistics import mean, median
from typing import Any

from symconfig.format import percent, signed
from symconfig.measured.calibrate import kernel_priors
from symconfig.report import validation as scores
from symconfig.report.calibration import far_from_prior
from symconfig.report.grid import Grid
from symconfig.solve.interval import KINDS
from tools.pages import markdown_rows

Figures = Mapping[str, Any]
_SOURCES = ("source", "published as", "rows", "fitted", "left out", "bias")
_CONSTANTS = ("constants of", "runs", "models", "mean error, fitted", "each model left out of the fit", "ratio")
_REACHED = ("quantity", "of", "wanted", "in the median", "worst", "inside the 90 % interval, of 88 to 93 %")
_TIMES = {
    "dense": "5 % in the median, 12 % at worst",
    "experts": "12 % in the median, 20 % at worst",
    "sft": "10 % in the median",
    "adapter": "10 % in the median",
}


def markdown(record: Mapping[str, Any]) -> str:
    """Write tables of the targets, the sources, memory, sweeps, and of models left out. Ends with a newline."""
    sources = record["sources"]
    memory = next(grid for grid in scores.errors(sources) if grid.title.startswith("Peak memory"))
    parts = (
        _table(_REACHED, _targets(record)),
        _table(_SOURCES, _about(record), words=2),
        *map(_titled, (memory, scores.sweeps(sources))),
        _table(_CONSTANTS, _left_out(record["left_out"])),
    )
    return "\n".join(part for part in parts if part)


def _targets(record: Mapping[str, Any]) -> Iterable[Sequence[str]]:
    """Compare what is reached with what is wanted; step times are those of sources that were left out of the fit."""
    for kind, wanted in _TIMES.items():
        errors = _errors(record["ratios"], kind)
        inside = record["covered"].get(kind)
        yield from _target(f"step time, {KINDS[kind]}", wanted, errors, "" if inside is None else percent(inside))
    memory = {one["name"]: one["memory"]["mape"] for one in record["sources"] if one["memory"]}
    yield from _target("memory", "6 % in the median", memory)
    ran_out, found, ran, false = _out_of_memory(record["sources"])
    for what, wanted, part, whole in (("found", "97 %", found, ran_out), ("false", "2 %", false, ran)):
        if whole:
            yield f"out of memory, {what}", f"{whole:,}", wanted, percent(part / whole), "", ""
    sweeps = [each for one in record["sources"] for each in one["sweeps"]]
    for what, name in (("the fastest by prediction", "regret"), ("the planner's choice", "choice_regret")):
        regrets = {each["name"]: each[name] for each in sweeps if each[name] is not None}
        yield from _target(f"regret of {what}", "3 % in each", regrets)


def _target(what: str, wanted: str, errors: Mapping[str, float], inside: str = "") -> Iterable[Sequence[str]]:
    if errors:
        worst = max(errors, key=lambda name: errors[name])
        middle = percent(median(errors.values()))
        yield what, str(len(errors)), wanted, middle, f"{percent(errors[worst])} ({worst})", inside


def _errors(ratios: Iterable[Figures], kind: str) -> dict[str, float]:
    """Return the mean absolute error of each source's steps of one kind of model."""
    by_source: dict[str, list[float]] = {}
    for each in ratios:
        if (each["quantity"], each["kind"]) == ("time", kind):
            by_source.setdefault(each["source"], []).extend(abs(1 / ratio - 1) for ratio in each["measured"])
    return {name: mean(errors) for name, errors in by_source.items()}


def _out_of_memory(sources: Sequence[Figures]) -> list[int]:
    """Return how many runs ran out, how many of these are found, how many ran, and how many are taken to run out."""
    known = [one["oom"] for one in sources if one["oom"]]
    return [sum(one[name] for one in known) for name in ("ran_out", "found", "ran", "false_oom")]


def summary(record: Mapping[str, Any]) -> str:
    """Write sentences on the errors of all sources together, each row counted once. Ends with a newline."""
    sources, unseen = record["sources"], record["unseen"]
    time, memory = ([one[what] for one in sources if one[what]] for what in ("time", "memory"))
    ran_out, exhausted, ran, false = _out_of_memory(sources)
    return (
        f"On {sum(one['n'] for one in time):,} published runs of {len(unseen)} sources the step time is off by "
        f"{percent(_mean(time, 'mape'))} on average, by {percent(_mean(unseen, 'unseen'))} where the source was left "
        f"out of the fit; {percent(_mean(time, 'within_10'), 0)} of the runs are within 10 %. The peak memory of "
        f"{sum(one['n'] for one in memory):,} runs is off by {percent(_mean(memory, 'mape'))}. Of {ran_out:,} runs "
        f"that ran out of memory {exhausted:,} are found, and {false:,} of {ran:,} that did not are taken to. Each "
        "source by itself, with what is weak: [docs/evidence/accuracy.md](docs/evidence/accuracy.md).\n"
    )


def _mean(parts: Sequence[Figures], what: str) -> float:
    mean: float = sum(one["n"] * one[what] for one in parts) / sum(one["n"] for one in parts)
    return mean


def _table(headers: Sequence[str], rows: Iterable[Sequence[str]], *, words: int = 1) -> str:
    """Write a table. words: how many columns hold words; those after them hold numbers."""
    grid = Grid(tuple(headers), tuple(map(tuple, rows)), left=tuple(range(words)))
    return "\n".join([*markdown_rows(grid), ""]) if grid.rows else ""


def _titled(grid: Grid) -> str:
    return "\n".join([f"{grid.title}:", "", *markdown_rows(grid), ""]) if grid.rows else ""


def _about(record: Mapping[str, Any]) -> Iterable[Sequence[str]]:
    """Describe each source that was scored, with the errors of its steps."""
    unseen = {one["name"]: one for one in record["unseen"]}
    for source in record["sources"]:
        about, name = source["about"], source["name"]
        if source["rows"]:
            errors = ("", "", "", "")
            if one := unseen.get(name):
                off = [
                    1 / ratio - 1
                    for each in record["ratios"]
                    if (each["quantity"], each["source"]) == ("time", name)
                    for ratio in each["measured"]
                ]
                errors = str(one["n"]), percent(one["fitted"]), percent(one["unseen"]), signed(mean(off))
            yield name, _published(about), *errors


def _published(about: Figures) -> str:
    """Return title and place; a paper before the repository of its code."""
    places = []
    if paper := about["paper"]:
        number = paper.removeprefix("arXiv:")
        places = [f"[{paper}](https://arxiv.org/abs/{number})" if number != paper else paper]
    elif about["repository"]:
        places = [_repository(each.strip()) for each in about["repository"].split(";")]
    return ", ".join([about["title"], *places])


def _repository(text: str) -> str:
    name, blank, rest = text.partition(" ")
    return f"[{name}](https://github.com/{name}){blank}{rest}" if name.count("/") == 1 else text


def _left_out(fits: Sequence[Figures]) -> Iterable[Sequence[str]]:
    for fit in fits:
        left = fit["left_out"]
        ratio = "" if left is None else f"{left / fit['fitted']:.2f}"
        unseen = "only one model" if left is None else percent(left)
        yield fit["cluster"], str(fit["n"]), str(fit["models"]), percent(fit["fitted"]), unseen, ratio


_HEAD = """# Constants of GPUs

Written by `make accuracy`. Kernels that people published (model_zoo/kernel_priors.yaml, by `python -m tools priors`)
give each constant a prior; a GPU type without kernels borrows from its generation, a generation without them from the
others. Whole runs then fit the shares of peaks; no run identifies the other constants (the shortest kernel, the inner
dimension at half the rate, backward attention), which are those of the generation's kernels. A constant more than two
deviations from its prior stands below the table with the runs that pull it most, and the share of its way that each
makes: what the model lacks shows there first. """


def page(record: Mapping[str, Any]) -> str:
    """Return the page of a record of accuracy."""
    sources = kernel_priors().sources.items()
    parts = [
        _HEAD,
        *(_section(constant["cluster"], constant["constants"]) for constant in record["constants"]),
        "\n".join(["## Sources of kernels\n", *(f"- {name}: {title}" for name, title in sources)]) + "\n",
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
