"""The tables of docs/evidence (accuracy, constants) and README.md's sentences, from what `make accuracy` recorded."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from symconfig.format import percent
from symconfig.measured.priors import kernel_priors
from symconfig.report import scores
from symconfig.report.calibration import far_from_prior
from symconfig.report.grid import Grid, markdown_rows

Figures = Mapping[str, Any]
_TASKS = {"pretrain": "pretraining", "sft": "fine-tuning", "lora": "LoRA"}
_SOFTWARE = {
    "megatron": "Megatron-LM",
    "megatron-bridge": "Megatron-Bridge",
    "nemo": "NeMo",
    "fsdp": "PyTorch's FSDP",
    "galvatron": "Hetu-Galvatron",
    "aleph-alpha in-house": "Aleph Alpha's own code",
}
_CONSTANTS = ("constants of", "runs", "models", "mean error, fitted", "each model left out of the fit", "ratio")
CLOSE = 3.0  # points
_MOST_NAMES = 4  # of models, above which they are counted


def markdown(record: Mapping[str, Any]) -> str:
    """Write tables of the sources, step time, memory, out-of-memory, ranking, what is left out, and growth. Ends with a
    newline.
    """
    sources = record["sources"]
    unseen = [(one["name"], str(one["n"]), percent(one["fitted"]), percent(one["unseen"])) for one in record["unseen"]]
    parts = (
        _table(("source", "what was run", "on", "published as"), _about(sources), words=True),
        *map(_titled, (*scores.errors(sources), scores.out_of_memory(sources), scores.sweeps(sources))),
        _table(_CONSTANTS, _left_out(record["left_out"])),
        _table(("source", "rows", "mean error, fitted", "left out of the fit"), unseen),
        _table(("growth of a step with the GPUs", "plans", "within 3 points", "mean", "worst"), _growths(sources)),
    )
    return "\n".join(part for part in parts if part)


def summary(record: Mapping[str, Any]) -> str:
    """Write sentences on the errors of all sources together, each row counted once. Ends with a newline."""
    sources, unseen = record["sources"], record["unseen"]
    time, memory = ([one[what] for one in sources if one[what]] for what in ("time", "memory"))
    known = [one["oom"] for one in sources if one["oom"]]
    ran_out, exhausted, ran, false = (
        sum(one[name] for one in known) for name in ("ran_out", "found", "ran", "false_oom")
    )
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


def _table(headers: Sequence[str], rows: Iterable[Sequence[str]], *, words: bool = False) -> str:
    """Write a table; words: every column holds words; else all but the first hold numbers."""
    grid = Grid(tuple(headers), tuple(map(tuple, rows)), left=tuple(range(len(headers))) if words else (0,))
    return "\n".join([*markdown_rows(grid), ""]) if grid.rows else ""


def _titled(grid: Grid) -> str:
    return "\n".join([f"{grid.title}:", "", *markdown_rows(grid), ""]) if grid.rows else ""


def _about(sources: Sequence[Figures]) -> Iterable[Sequence[str]]:
    """Describe each source that was scored; records of before this was recorded have none."""
    for source in sources:
        about = source.get("about")
        if about and source["rows"]:
            yield source["name"], _run(about), _gpus(about), _published(about)


def _run(about: Figures) -> str:
    tasks = _listed([_TASKS[task] for task in about["tasks"]])
    models = about["models"]
    named = _listed(models) if len(models) <= _MOST_NAMES else f"{len(models)} models"
    low, high = (_parameters(value) for value in about["parameters"])
    size = low if low == high else f"{low} to {high}"
    software = _listed([_SOFTWARE.get(name, name) for name in about["software"]])
    software = f" with {software}" if software else ""
    return f"{tasks} of {named} ({size} parameters){software}"


def _gpus(about: Figures) -> str:
    low, high = about["gpus"] or (None, None)
    numbers = "" if low is None else f"{low:,}" if low == high else f"{low:,} to {high:,}"
    if not about["gpu_types"]:
        return f"{numbers} GPUs that it does not name".strip()
    kinds = _listed(about["gpu_types"])
    return f"{numbers} x {kinds}" if numbers else kinds


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


def _parameters(value: float) -> str:
    unit, factor = ("T", 1e12) if value >= 1e12 else ("B", 1e9) if value >= 1e9 else ("M", 1e6)
    return f"{value / factor:.3g} {unit}"


def _listed(names: Sequence[str]) -> str:
    return ", ".join(names[:-1]) + " and " + names[-1] if len(names) > 1 else "".join(names)


def _left_out(fits: Sequence[Figures]) -> Iterable[Sequence[str]]:
    for fit in fits:
        left = fit["left_out"]
        ratio = "" if left is None else f"{left / fit['fitted']:.2f}"
        unseen = "only one model" if left is None else percent(left)
        yield fit["cluster"], str(fit["n"]), str(fit["models"]), percent(fit["fitted"]), unseen, ratio


def _growths(sources: Sequence[Figures]) -> Iterable[Sequence[str]]:
    """Yield how far the growth from a plan's smallest to its largest run is off, in points."""
    for source in sources:
        off = [100 * (growth["predicted"] - growth["measured"]) for growth in source["growths"]]
        if off:
            close = sum(abs(value) <= CLOSE for value in off)
            mean = sum(map(abs, off)) / len(off)
            yield source["name"], str(len(off)), str(close), f"{mean:.1f}", f"{max(off, key=abs):+.1f}"


_HEAD = """# Constants of GPUs

Written by `make accuracy`. Kernels that people published (model_zoo/kernel_priors.yaml, by `python -m tools priors`)
give each constant a prior; a GPU type without kernels borrows from its generation, a generation without them from the
others. Whole runs then fit what is left. A constant more than two deviations from its prior stands below the table with
the runs that pull it most, and the share of its way that each makes: what the model lacks shows there first. """


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
