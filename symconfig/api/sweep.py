"""Many plans from Python: `symconfig.sweep("SWEEP.yaml", out="results.csv")`, `symconfig.size("llama3.1-70b", …)`."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from symconfig.api.planning import Problems
from symconfig.descriptor.document import Document
from symconfig.descriptor.job import Job
from symconfig.descriptor.json_strict import load_json_strict
from symconfig.descriptor.load import load_cluster, load_model, zoo_clusters
from symconfig.descriptor.strict import MAX_GPUS
from symconfig.descriptor.validate import as_json, validate
from symconfig.descriptor.yaml_strict import load_yaml_strict
from symconfig.errors import InputError, Problem
from symconfig.runs.sweep.job import LIMIT, Points, points
from symconfig.runs.sweep.run import Done, Swept
from symconfig.runs.sweep.run import sweep as run
from symconfig.runs.sweep.size import BATCH_TOKENS, MOST_GPUS, Question, Size, even_batch, time_s, token_count
from symconfig.runs.sweep.size import size as run_size
from symconfig.solve.pins import parse

ALL = "all"
DEFAULT_SEQUENCE = 4096  # as a job's


def sweep(
    source: str | Path | Mapping[str, Any],
    out: str | Path | None = None,
    *,
    jobs: int | None = None,
    fresh: bool = False,
    limit: int = LIMIT,
    progress: Callable[[Done], None] = lambda _: None,
) -> Swept:
    """Plan all combinations of a SWEEP.yaml, or an equal mapping, and write the table to `out`; return the rows.

    out: None: the source's name with .csv in the working directory. Finished plans are kept in a journal beside it.
    jobs: plans in parallel; None: one per core. fresh: discard the journal. limit: of combinations. Raises InputError
    with all problems at once.
    """
    read, table = read_sweep(source, limit), table_of(source, out)
    return run(read.points, table, fresh, progress, jobs)


def read_sweep(source: str | Path | Mapping[str, Any], limit: int = LIMIT) -> Points:
    """Return all combinations of a sweep. Raises InputError."""
    if isinstance(source, Mapping):
        document, folder = Document(json.loads(as_json(Document(dict(source), file=""))), file=""), None
    else:
        path = Path(source)
        document = load_json_strict(path) if path.suffix == ".json" else load_yaml_strict(path)
        folder = path.parent
    return points(document, folder, limit)


def table_of(source: str | Path | Mapping[str, Any], out: str | Path | None) -> Path:
    """Return the table's path: `out`, or the source's name with .csv. Raises InputError for a mapping without `out`."""
    if out is not None:
        return Path(out)
    if isinstance(source, Mapping):
        raise InputError("this option is missing", field="out", hint="a name that ends in .csv")
    return Path(Path(source).stem + ".csv")


def size(
    model: str | Path,
    deadline: str,
    tokens: str | int,
    clusters: Sequence[str] | str = ALL,
    *,
    global_batch_size: int | None = None,
    batch_tokens: str | int | None = None,
    seq_length: int | None = None,
    most_gpus: int = MOST_GPUS,
    goodput: float = 1.0,
    prices: Mapping[str, float] | None = None,
    jobs: int | None = None,
    progress: Callable[[int, int], None] = lambda done, total: None,
    **fields: Any,
) -> Size:
    """Return how many GPUs of which cluster process `tokens` ("2T") before a `deadline` ("30d"), and at what cost.

    clusters: names or paths; "all": the whole zoo. global_batch_size: sequences; batch_tokens: the same in tokens,
    rounded to a round number of sequences; neither: 4 Mi tokens. goodput: share of the time in which steps run. prices:
    per GPU-hour, by cluster. jobs: as of `sweep`. fields: other fields of JOB.yaml. Raises InputError.
    """
    named = {"model": str(model), "seq_length": seq_length, "global_batch_size": global_batch_size}
    job = {**fields, **{name: value for name, value in named.items() if value is not None}}
    question = read_size(
        job,
        deadline,
        tokens=str(tokens),
        clusters=clusters,
        batch_tokens=None if batch_tokens is None else str(batch_tokens),
        most_gpus=most_gpus,
        goodput=goodput,
        prices=prices or {},
    )
    return run_size(question, progress, jobs)


def read_size(
    job: Mapping[str, Any],
    deadline: str,
    tokens: str,
    clusters: Sequence[str] | str,
    batch_tokens: str | None,
    most_gpus: int,
    goodput: float,
    prices: Mapping[str, float],
    problems: Sequence[Problem] = (),
) -> Question:
    """Return the validated question; job: fields of a JOB.yaml without cluster and gpus.

    problems: the caller's. Raises InputError with those and all found here.
    """
    gathered = Problems(problems)
    deadline_s = gathered.collect(lambda: time_s("deadline", deadline))
    total = gathered.collect(lambda: token_count("tokens", tokens))
    of_batch = gathered.collect(lambda: token_count("batch_tokens", batch_tokens)) if batch_tokens is not None else None
    if of_batch is not None and "global_batch_size" in job:
        gathered.add(Problem("says what global_batch_size says, too", field="batch_tokens", hint="one of them"))
    if not 0 < goodput <= 1:
        gathered.add(Problem("out of range", field="goodput", got=str(goodput), need="a share above 0, at most 1"))
    if not 1 <= most_gpus <= MAX_GPUS:
        gathered.add(Problem("out of range", field="most_gpus", got=f"{most_gpus}", need=f"1 to {MAX_GPUS:,}"))
    names = zoo_clusters() if clusters == ALL else [clusters] if isinstance(clusters, str) else list(clusters)
    known = {name: gathered.collect(partial(load_cluster, name)) for name in names}
    model = gathered.read(load_model, job.get("model"))
    first = {"cluster": names[0] if names else None, "gpus": 1, "global_batch_size": 1, **job}
    checked = gathered.collect(lambda: validate(Document(first, file=""), Job))
    gathered.collect(lambda: parse(checked.pins if checked is not None else {}))
    clusters_known = {name: cluster for name, cluster in known.items() if cluster is not None}
    for name in prices.keys() - {*known, *(cluster.name for cluster in clusters_known.values())}:
        what, need = "is none of the clusters that are asked for", f"one of {', '.join(known)}"
        gathered.add(Problem(what, field=f"prices.{name}", need=need))
    if gathered.all or model is None or deadline_s is None or total is None:
        raise InputError(gathered.all)
    length = int(job.get("seq_length") or min(model.max_position_embeddings, DEFAULT_SEQUENCE))
    batch = job.get("global_batch_size") or even_batch(of_batch or BATCH_TOKENS, length)
    whole = {**job, "seq_length": length, "global_batch_size": batch}
    return Question(
        model=model,
        clusters=clusters_known,
        job=whole,
        tokens=total,
        deadline_s=deadline_s,
        goodput=goodput,
        most_gpus=most_gpus,
        prices=prices,
    )
