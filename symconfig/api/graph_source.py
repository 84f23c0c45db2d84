"""The graph that `symconfig partition` was given: a model, a program or a module, as programs by microbatches; and its
JOB.yaml, whose keys are the options, with `pins` and the cluster as in a job of `plan`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from math import gcd, isqrt, log
from pathlib import Path
from typing import Any, Literal, get_args

from symconfig.api.problems import Problems
from symconfig.descriptor.cluster import ClusterDescriptor
from symconfig.descriptor.document import Document, read_text
from symconfig.descriptor.load import load_model
from symconfig.descriptor.model import ModelDescriptor
from symconfig.descriptor.yaml_strict import read_yaml
from symconfig.errors import InputError, Problem, nearest
from symconfig.format import either
from symconfig.graph.program.program import Program
from symconfig.solve.partition.run import Programs

DEFAULT_SEQUENCE = 4096
MOST = 10**9
MOST_TURNS = 12  # numbers of microbatches that are tried where none is asked for
Attention = Literal["flash", "unfused"]
ATTENTION: tuple[Attention, ...] = get_args(Attention)


@dataclass(frozen=True, slots=True)
class Source:
    """A graph to partition. programs: by number of microbatches. counts: named sizes that the microbatches must
    divide; empty: none. model: None for a program or module.
    """

    name: str
    programs: Programs
    counts: Mapping[str, int] = field(default_factory=dict)
    model: ModelDescriptor | None = None
    batch: int | None = None  # examples of a step
    seq_length: int | None = None
    module: str = ""  # the factory of one
    attention: Attention | None = None  # of a model


def source_of(given: Mapping[str, Any], cluster: ClusterDescriptor | None) -> Source:
    """Return the graph to partition, from the one of model, program and module in `given`. Raises InputError if not
    exactly one is given, or seq_length or attention with a program or module.
    """
    named = [name for name in ("model", "program", "module") if given.get(name) is not None]
    if len(named) != 1:
        got = " and ".join(named) or "none"
        need = "one of model, program and module"
        raise InputError("what is to be partitioned is given once", field="model", got=got, need=need)
    if named == ["model"]:
        return _model(given, cluster)
    for name, what in (("seq_length", "sizes"), ("attention", "operators")):
        if given.get(name) is not None:
            raise InputError(f"a program states its own {what}", field=name, got=str(given[name]))
    return _program(given) if named == ["program"] else _module(given)


def _model(given: Mapping[str, Any], cluster: ClusterDescriptor | None) -> Source:
    """Return a model's graphs by number of microbatches, which divide the global batch. seq_length: by default the
    model's maximum, at most DEFAULT_SEQUENCE; attention: as of `_attention`. Raises InputError with all problems, also
    without global_batch_size.
    """
    from symconfig.graph.implementation import Implementation, Kernel
    from symconfig.graph.program.of_model import program

    problems, value = Problems(), given["model"]
    model = value if isinstance(value, ModelDescriptor) else problems.collect(lambda: load_model(str(value)))
    batch = problems.collect(lambda: whole_number("global_batch_size", given.get("global_batch_size")))
    length = given.get("seq_length")
    asked_length = problems.collect(lambda: whole_number("seq_length", length)) if length is not None else None
    attention = problems.collect(lambda: _attention(given.get("attention"), cluster))
    if problems.all or model is None or batch is None or attention is None:
        raise InputError(problems.all)
    tokens = asked_length or min(model.max_position_embeddings, DEFAULT_SEQUENCE)
    kernel = Kernel.FLASH if attention == "flash" else Kernel.FUSED_SOFTMAX
    how = Implementation().attending(kernel)
    make = cache(lambda turns: program(model, batch // turns, tokens, how))
    return Source(model.name, make, {"the global batch": batch}, model, batch, tokens, attention=attention)


def _attention(value: Any, cluster: ClusterDescriptor | None) -> Attention:
    """Return flash or unfused: the one named; for None flash if the GPU supports it (assumed without a cluster), else
    unfused. Raises InputError for another word, or flash on a GPU without it.
    """
    from symconfig.frameworks.facts import flash

    if value is not None and str(value) not in ATTENTION:
        raise InputError(unknown("attention", str(value), ATTENTION))
    able = cluster is None or flash(cluster.gpu.architecture, None, engine=True)
    if value == "flash" and not able:
        what = "flash attention does not run on this GPU"
        raise InputError(what, field="attention", got=str(value), need="unfused")
    return "flash" if able and value != "unfused" else "unfused"


def _program(given: Mapping[str, Any]) -> Source:
    """Return a program's graphs by number of microbatches, each with its batch dims divided by that number;
    global_batch_size replaces the batch dim of a file. A Program object is used unchanged: its batch is neither
    replaced nor divided. `batch` is set only if there is one batch dim. Raises InputError for a global batch unless the
    program has exactly one batch dim.
    """
    from symconfig.graph.program.read import load_program

    path, dims = given["program"], dict[str, int]()
    whole: Program = path if isinstance(path, Program) else load_program(path)
    if given.get("global_batch_size") is not None:
        if len(whole.batch) != 1:
            got = ", ".join(sorted(whole.batch)) or "none"
            need = "one dim that counts examples"
            raise InputError("the batch of this program cannot be set", field="global_batch_size", got=got, need=need)
        dims = {dim: whole_number("global_batch_size", given["global_batch_size"]) for dim in whole.batch}
    if isinstance(path, Program):
        return Source(whole.name, lambda turns: whole)
    sizes = {dim: dims.get(dim, whole.sizes[dim]) for dim in sorted(whole.batch)}

    @cache
    def make(turns: int) -> Program:
        if turns == 1 and not dims:
            return whole
        return load_program(path, {dim: size // turns for dim, size in sizes.items()})

    batch = next(iter(sizes.values())) if len(sizes) == 1 else None
    return Source(whole.name, make, sizes, batch=batch)


def _module(given: Mapping[str, Any]) -> Source:
    """Return the graph of a PyTorch module traced on its example inputs, the same for any number of microbatches.
    Raises InputError if a global batch is given or it cannot be loaded.
    """
    if given.get("global_batch_size") is not None:
        hint = "example inputs of another size, --num-microbatches for a step of several"
        raise InputError("a module runs on its example inputs", field="global_batch_size", hint=hint)
    from symconfig.graph.program.torch_source import load_module

    whole = load_module(str(given["module"]))
    return Source(whole.name, lambda turns: whole, module=str(given["module"]))


def turns_of(given: Mapping[str, Any], source: Source | None, gpus: int, most: int) -> tuple[int, ...]:
    """Return the numbers of microbatches to try, rising: the given one, else up to `most` divisors of all batch dims
    (as of `thinned`, with kept = batch // gpus), without those that leave a size not whole. Without a source or batch
    dims: the given one or 1, unchecked. Raises InputError if the given one does not divide the batch or leaves a dim
    that is not whole.
    """
    wanted = (
        whole_number("num_microbatches", given["num_microbatches"]) if given.get("num_microbatches") is not None else 0
    )
    if source is None or not source.counts:
        return (wanted or 1,)
    count = gcd(*source.counts.values())
    if not wanted:
        return tuple(turns for turns in thinned(divisors(count), count // gpus, most) if _whole_sizes(source, turns))
    batch = " and ".join(f"{name} of {size:,}" for name, size in source.counts.items())
    if count % wanted:
        able = (
            f"a divisor of {batch}" if len(source.counts) == 1 else f"{either(divisors(count))}, which divide {batch}"
        )
        raise InputError("does not divide the batch", field="num_microbatches", got=str(wanted), need=able)
    if not _whole_sizes(source, wanted):
        able = either([turns for turns in thinned(divisors(count), wanted) if _whole_sizes(source, turns)])
        what = "leaves a dim of the program that is not whole"
        raise InputError(what, field="num_microbatches", got=str(wanted), need=able)
    return (wanted,)


def _whole_sizes(source: Source, turns: int) -> bool:
    """Return whether the program can be made with this number of microbatches; any InputError counts as no."""
    try:
        source.programs(turns)
    except InputError:
        return False
    return True


def divisors(number: int) -> tuple[int, ...]:
    small = [factor for factor in range(1, isqrt(number) + 1) if number % factor == 0]
    return tuple(sorted({*small, *(number // factor for factor in small)}))


def thinned(rising: Sequence[int], kept: int, most: int = MOST_TURNS) -> tuple[int, ...]:
    """Return all of `rising` if there are at most `most`, else `most` of them: first, last, the largest up to `kept`,
    then repeatedly the one with the largest ratio to its nearest chosen value.
    """
    if len(rising) <= most:
        return tuple(rising)
    chosen = {rising[0], rising[-1], max(one for one in rising if one <= max(kept, rising[0]))}
    while len(chosen) < most:  # the one that is farthest from all that are chosen
        chosen.add(max(rising, key=lambda one: min(abs(log(one / other)) for other in chosen)))
    return tuple(sorted(chosen))


def unknown(field: str, got: str, words: Sequence[str]) -> Problem:
    return Problem("wrong value", field=field, got=got, need="one of " + ", ".join(words))


def whole_number(field: str, value: Any) -> int:
    """Return a number or digits as an integer from 1 to 999,999,999. Raises InputError if it is None (missing), a bool,
    or anything else.
    """
    if value is None:
        raise InputError("this option is missing", field=field)
    text = str(value)
    if isinstance(value, bool) or not (text.isascii() and text.isdigit() and len(text) < 10 and int(text) > 0):
        raise InputError("wrong value", field=field, got=text, need=f"a whole number from 1 to {MOST:,}")
    return int(text)


_PATHS = ("program", "mesh")


def graph_file(path: str | Path, keys: Sequence[str]) -> Document:
    """Return the document of a YAML file with these keys; `program` and `mesh` are prefixed with its folder if such a
    file is there. Raises InputError: at once if it is no mapping, else with all unknown keys (with the nearest name),
    lists or mappings other than pins and cluster, and pins that are not texts or integers.
    """
    document = read_yaml(read_text(Path(path)), str(path))
    if not isinstance(document.data, dict):
        raise InputError(document.problem("the file must hold `name: value` lines"))
    problems = list(document.unread)
    for key, value in document.data.items():
        if key not in keys:
            problems.append(document.problem("there is no such key", (key,), of_key=True, hint=nearest(key, keys)))
        elif isinstance(value, dict | list) and key not in ("pins", "cluster"):
            problems.append(document.problem("must be one value", (key,)))
    pins = document.data.get("pins") or {}
    if not isinstance(pins, Mapping) or not all(type(value) in (str, int) for value in pins.values()):
        problems.append(document.problem("must hold `NAME: SPLIT` lines", ("pins",)))
    if problems:
        raise InputError(problems)
    return replace(
        document, data={key: _beside_job(key, value, Path(path).parent) for key, value in document.data.items()}
    )


def _beside_job(key: str, value: Any, folder: Path) -> Any:
    return str(folder / value) if key in _PATHS and isinstance(value, str) and (folder / value).is_file() else value
