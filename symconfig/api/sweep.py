"""Many plans from Python: `symconfig.sweep("SWEEP.yaml", out="results.csv")`, `symconfig.size("llama3.1-70b", …)`."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from symconfig.descriptor.document import Document, load_yaml_strict
from symconfig.descriptor.job import Job
from symconfig.descriptor.json_strict import load_json_strict
from symconfig.descriptor.load import load_cluster, load_model, zoo_clusters
from symconfig.descriptor.strict import MAX_GPUS, as_json, validate
from symconfig.errors import InputError, Problem, Problems
from symconfig.runs.sweep.job import LIMIT, Points, points
from symconfig.runs.sweep.run import Done, Swept
from symconfig.runs.sweep.run import sweep as run
from symconfig.runs.sweep.size import BATCH_TOKENS, MOST_GPUS, Question, Size, even_batch, time_s, token_count
from symconfig.runs.sweep.size import size as run_size
from symconfig.solve.pins import parse

ALL = "all"


def sweep(
    source: str | Path | Mapping[str, Any],
    out: str | Path | None = None,
    *,
    jobs: int | None = None,
    fresh: bool = False,
    limit: int = LIMIT,
    progress: Callable[[Done], None] = lambda _: None,
) -> Swept:
    """Plan all combinations of a SWEEP.yaml, or an equal mapping, and write the table to `out`; return its rows.

    out: None: the source's stem with .csv in the working directory; InputError for a mapping. Finished plans are kept
    in a journal beside it and not planned again, except those of another release or with a defect. jobs: plans in
    parallel; None: one per core. fresh: discard the journal. limit: most combinations. On Ctrl-C the rows so far are
    returned. Raises InputError with all problems at once.
    """
    if out is None and isinstance(source, Mapping):
        raise InputError("this option is missing", field="out", hint="a name that ends in .csv")
    return run(read_sweep(source, limit).points, Path(out or f"{Path(str(source)).stem}.csv"), fresh, progress, jobs)


def read_sweep(source: str | Path | Mapping[str, Any], limit: int = LIMIT) -> Points:
    """Return all combinations of a sweep: a mapping, a .json file or else YAML; paths in a file are relative to its
    folder. Raises InputError, also for more than `limit`.
    """
    if isinstance(source, Mapping):
        return points(Document(json.loads(as_json(Document(dict(source), file=""))), file=""), None, limit)
    path = Path(source)
    document = load_json_strict(path) if path.suffix == ".json" else load_yaml_strict(path)
    return points(document, path.parent, limit)


def size(
    model: str | Path | None,
    deadline: str,
    tokens: str | int,
    clusters: Sequence[str] | str = ALL,
    *,
    global_batch_size: int | None = None,
    batch_tokens: str | int | None = None,
    seq_length: int | None = None,
    gpus_max: int = MOST_GPUS,
    goodput: float = 1.0,
    prices: Mapping[str, float] | None = None,
    jobs: int | None = None,
    problems: Sequence[Problem] = (),
    progress: Callable[[int, int], None] = lambda done, total: None,
    **fields: Any,
) -> Size:
    """Return, per cluster, the GPUs tried and the fewest that process `tokens` ("2T") before a `deadline` ("30d").

    The fewest as predicted, and at the upper end of the step's interval; None if none is in time. clusters: names or
    paths; "all": the whole zoo. global_batch_size: sequences; batch_tokens: the same in tokens, rounded to a round
    number of sequences; neither: 4 Mi tokens. seq_length: None: the model's `usual_length`. gpus_max: most
    GPUs tried. goodput: share of the time in which steps run, above 0 to 1. prices: per GPU-hour, by cluster, for the
    cost. jobs: plans in parallel; None: one per core. problems: the caller's, raised with those found here. fields:
    other fields of JOB.yaml. Raises InputError with all problems at once.
    """
    given = {"model": model and str(model), "seq_length": seq_length, "global_batch_size": global_batch_size}
    job = {**fields, **{name: value for name, value in given.items() if value is not None}}
    gathered = Problems(problems)
    deadline_s = gathered.collect(lambda: time_s("deadline", deadline))
    total = gathered.collect(lambda: token_count("tokens", str(tokens)))
    of_batch = gathered.read(lambda given: token_count("batch_tokens", str(given)), batch_tokens)
    if of_batch is not None and "global_batch_size" in job:
        gathered.add(Problem("is the global batch a second time", field="batch_tokens", hint="one of them"))
    if not 0 < goodput <= 1:
        gathered.add(Problem("out of range", field="goodput", got=str(goodput), need="a share above 0, at most 1"))
    if not 1 <= gpus_max <= MAX_GPUS:
        gathered.add(Problem("out of range", field="gpus_max", got=f"{gpus_max}", need=f"1 to {MAX_GPUS:,}"))
    names = zoo_clusters() if clusters == ALL else [clusters] if isinstance(clusters, str) else list(clusters)
    known = {name: gathered.collect(partial(load_cluster, name)) for name in names}
    loaded = gathered.read(load_model, job.get("model"))
    first = {"cluster": names[0] if names else None, "gpus": 1, "global_batch_size": 1, **job}
    checked = gathered.collect(lambda: validate(Document(first, file=""), Job))
    gathered.collect(lambda: parse(checked.pins if checked is not None else {}))
    found = {name: cluster for name, cluster in known.items() if cluster is not None}
    for name in (prices or {}).keys() - {*known, *(cluster.name for cluster in found.values())}:
        what, need = "is none of the clusters that are asked for", f"one of {', '.join(known)}"
        gathered.add(Problem(what, field="price", got=name, need=need))
    loaded = gathered.need(loaded)
    length = int(seq_length or loaded.usual_length)
    batch = global_batch_size or even_batch(of_batch or BATCH_TOKENS, length)
    question = Question(
        model=loaded,
        clusters=found,
        job={**job, "seq_length": length, "global_batch_size": batch},
        tokens=gathered.need(total),
        deadline_s=gathered.need(deadline_s),
        goodput=goodput,
        most_gpus=gpus_max,
        prices=prices or {},
    )
    return run_size(question, progress, jobs)
