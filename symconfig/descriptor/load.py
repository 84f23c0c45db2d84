"""Names and paths to descriptors: the zoo, a descriptor file, a Hugging Face `config.json`, a cluster."""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from pydantic import Field

from symconfig.descriptor import hub
from symconfig.descriptor.amounts import gpu_bytes_per_s
from symconfig.descriptor.cluster import (
    CLUSTER,
    LONGEST_NAME,
    OVER,
    ClusterDescriptor,
    Kernels,
    KernelsFile,
    MixedCluster,
    Share,
    as_document,
    joined,
    kinds,
    split,
)
from symconfig.descriptor.difference import SHORT, changed, given_in, quantified
from symconfig.descriptor.document import Document, called, load_yaml_strict, shorten
from symconfig.descriptor.json_strict import load_json_strict
from symconfig.descriptor.model import ModelDescriptor, ModelSchema
from symconfig.descriptor.sections import Adapter
from symconfig.descriptor.strict import Strict, validate
from symconfig.errors import InputError, Problem, Problems
from symconfig.resources import data_dir, may_read, missing

if TYPE_CHECKING:
    from symconfig.descriptor.huggingface import Account

_YAML = (".yaml", ".yml")
_LISTED = ("models", "clusters")  # by a command of the same name


class AdapterModel(Strict):
    """A model file that names another model as its `base` and adds an adapter."""

    schema_: ModelSchema = Field(alias="schema")
    base: str = Field(min_length=1, description="zoo name, id of Hugging Face, or a path relative to this file")
    name: str = Field(min_length=1, max_length=200)
    source: str = Field(min_length=1)
    huggingface_id: str | None = None
    adapter: Adapter
    notes: tuple[str, ...] = ()


def zoo_models() -> list[str]:
    """Return the sorted names of the models that come with symconfig."""
    return _zoo("models")


def zoo_clusters() -> list[str]:
    """Return the sorted names of the clusters that come with symconfig."""
    return _zoo("clusters")


def load_model(name_or_path: str, base: Path | None = None, *, adapters: bool = True) -> ModelDescriptor:
    """Load a model by zoo name, descriptor file, `config.json` or its folder, or Hugging Face id.

    Relative paths start at `base`, by default the working directory. A file with `base` and `adapter` gives its base
    model with the adapter; refused with `adapters` False. A model read by its id has name and source of the id. Raises
    InputError for unknown names and invalid files.
    """
    path = find(name_or_path, "models", base)
    model, _ = load_config(path, adapters=adapters)
    fetched = path.name == hub.CONFIG and hub.is_id(name_or_path) and path == hub.cached(name_or_path)
    return hub.named(model, name_or_path) if fetched else model


def load_config(
    path: Path, family: str | None = None, *, adapters: bool = True
) -> tuple[ModelDescriptor, Account | None]:
    """Load a `config.json` (JSON without `schema`), or a folder with one, and the account of its keys; or a descriptor
    (YAML or JSON), whose account is None.

    family: the family to read a config.json as, in place of its model_type. A descriptor with `base` is an adapter over
    that model, refused with `adapters` False. Raises InputError, also for a folder without config.json.
    """
    if path.is_dir():
        path, folder = path / hub.CONFIG, path
        if not path.is_file():
            raise InputError(f"this folder has no {hub.CONFIG}", file=str(folder))
    if path.suffix == ".json":
        document = load_json_strict(path, infinite=True)
        if not isinstance(document.data, dict) or "schema" not in document.data:
            from symconfig.descriptor.huggingface import imported  # no descriptor wants its architectures

            return imported(document.data, document.file, None, document, family)
        document = load_json_strict(path)
    else:
        document = load_yaml_strict(path)
    if not isinstance(document.data, dict) or "base" not in document.data:
        return validate(document, ModelDescriptor), None
    if not adapters:
        raise InputError(document.problem("the base of an adapter must be a whole model", ("base",)))
    return _with_adapter(document, path), None


def load_cluster(name_or_path: str, base: Path | None = None, above: tuple[Path, ...] = ()) -> ClusterDescriptor:
    """Load a cluster by zoo name or file, with changes: `h100 with network=4x100Gb/s`, or `h100@4x100Gb/s`.

    Paths are relative to `base`. above: the resolved files that have this one as their base, outermost first. Raises
    InputError, also for a cluster of two kinds of GPUs.
    """
    plain, changes = _split(name_or_path, base)
    cluster = _cluster_file(find(plain, "clusters", base), above)
    return with_changes(cluster, changes) if changes else cluster


def load_mixed(name: str, base: Path | None = None) -> MixedCluster | None:
    """Load a cluster of two kinds of GPUs by its name, such as `h100*16 + a100-80gb*16 over 400Gb/s`; None if the name
    is not that of such a cluster, or is a file's.

    Paths of the kinds are relative to `base`. A network after `over` is that between the kinds, one GPU's speed unless
    it says otherwise. Raises InputError for kinds that cannot be loaded or cannot train together, and a wrong network.
    """
    if (stated := None if _path_kind(name, base) == "file" else kinds(name)) is None:
        return None
    *each, over = stated
    first, second = (Share(load_cluster(kind, base), gpus) for kind, gpus in each)
    _check_kinds(first, second)
    called = " + ".join(f"{share.cluster.name}*{share.gpus}" for share in (first, second))
    if over is None:
        return MixedCluster(called, (first, second))
    rate = gpu_bytes_per_s(over, first.cluster.gpus_per_node, "gpu")
    return MixedCluster(f"{called} {OVER} {over}", (first, second), rate)


def mixed_of(document: Document, base: Path | None = None) -> MixedCluster | None:
    """Load the cluster of two kinds of GPUs that a job's document names under `cluster`; None if it names a cluster of
    one kind, a file, or none. base: the folder of relative paths. Raises InputError for kinds that cannot be loaded or
    cannot train together.
    """
    name = document.data.get(CLUSTER) if isinstance(document.data, dict) else None
    return load_mixed(name, base) if isinstance(name, str) else None


def _check_kinds(first: Share, second: Share) -> None:
    """Raise InputError, with all problems, if one run cannot span both kinds of GPUs.

    They are different vendors, nodes of different sizes, and numbers of GPUs that do not fill whole nodes.
    """
    one, other = first.cluster, second.cluster
    problems = Problems()
    if one.gpu.vendor != other.gpu.vendor:
        what = "GPUs of two vendors have no collective library in common"
        problems.add(Problem(what, field=CLUSTER, got=f"{one.gpu.vendor} and {other.gpu.vendor}"))
    if one.gpus_per_node != other.gpus_per_node:
        what = (
            "a launcher starts the same number of ranks on every node, but the two kinds have nodes of different sizes"
        )
        got = f"{one.gpus_per_node} and {other.gpus_per_node}"
        problems.add(Problem(what, field=CLUSTER, got=got, hint="'NAME with gpus_per_node=N*GPUS' for one of them"))
    for share in (first, second):
        each = share.cluster.gpus_per_node
        if share.gpus % each:
            what, need = f"{share.cluster.name} does not fill whole nodes", f"a multiple of {each}"
            problems.add(Problem(what, field=CLUSTER, got=str(share.gpus), need=need))
    problems.check()


def find_cluster(name_or_path: str, base: Path | None = None) -> Path:
    """Return the path of the cluster's file, without the changes that the name states. Raises InputError."""
    return find(_split(name_or_path, base)[0], "clusters", base)


def with_changes(cluster: ClusterDescriptor, changes: Mapping[str, str]) -> ClusterDescriptor:
    """Return the cluster with the fields changed, and a name that states the changes, cut at LONGEST_NAME.

    changes: values as text, by dotted field or short name. Raises InputError for each wrong field, named
    `cluster.FIELD`, and for a field `base`.
    """
    if "base" in changes:
        raise InputError("stands before `with`", field=f"{CLUSTER}.base", got=shorten(changes["base"]))
    name = shorten(joined(cluster.name, changes), LONGEST_NAME)
    try:
        document = as_document(changes)
        return changed(cluster, document, name, "given by the user", _kernels(document, None))
    except InputError as error:
        problems = [
            replace(one, field=f"{CLUSTER}.{one.field}" if one.field else CLUSTER, file=None) if one.file == "" else one
            for one in error.problems
        ]
        raise InputError(problems) from None


def _split(name: str, base: Path | None) -> tuple[str, dict[str, str]]:
    """Return a cluster's base name and its changes as text by field; no changes where a file or folder has that name.

    Raises InputError for the name of a cluster of two kinds of GPUs, more than 100 changes, or a field with two values.
    """
    kind = _path_kind(name, base)
    if kind != "file" and kinds(name) is not None:
        what = "has two kinds of GPUs, and only symconfig plan takes such a cluster (symconfig.plan_mixed in Python)"
        raise InputError(what, field=CLUSTER, got=shorten(name), hint="one of its kinds")
    return (name, {}) if kind else split(name)


def _cluster_file(path: Path, above: tuple[Path, ...]) -> ClusterDescriptor:
    """Load a cluster's file: a whole descriptor, or one with `base`, whose fields change that cluster.

    Its name and source come from the file's name where it states none, and the source is also that of numbers without
    one. `kernels` may name a file of constants. Raises InputError for invalid files, short names without a base, a base
    that cannot be loaded, and bases that form a cycle. above: the resolved files that have this one as base, outermost
    first.
    """
    document = load_json_strict(path) if path.suffix == ".json" else load_yaml_strict(path)
    if isinstance(document.data, dict) and "base" in document.data:
        stated, chain = document.data["base"], (*above, path.resolve())
        if not isinstance(stated, str) or not stated:
            got = "null" if stated is None else shorten(stated)
            raise InputError(document.problem("wrong value", ("base",), got=got, need="a cluster's name"))
        with _called(document, "base", "the base cluster"):
            file = find_cluster(stated, path.parent).resolve()
            if file in chain:
                names = " -> ".join(one.name for one in (*chain[chain.index(file) :], file))
                raise InputError("the bases go round in a circle", got=names)
            base = load_cluster(stated, path.parent, chain)
        return changed(base, document, path.stem, given_in(path.name), _kernels(document, path.parent))
    if not isinstance(document.data, dict):
        return validate(document, ClusterDescriptor)
    if short := [name for name in SHORT if name in document.data]:
        what = "changes a base, and the file names none"
        raise InputError([document.problem(what, (name,), of_key=True, hint="base: h100") for name in short])
    data = {"name": path.stem, "source": given_in(path.name), **document.data}
    if (constants := _kernels(document, path.parent)) is not None:
        data["kernels"] = constants.model_dump(mode="json", exclude_unset=True)
    source = data["source"] if isinstance(data["source"], str) else given_in(path.name)
    return validate(quantified(replace(document, data=data), ClusterDescriptor, source), ClusterDescriptor)


def _kernels(document: Document, folder: Path | None) -> Kernels | None:
    """Load the kernel constants of a GPU type from the file below `folder`, or zoo name, in the document's `kernels`.

    None if that is no text. Raises InputError, first with a problem at the document's `kernels`, if they cannot be
    found or are invalid.
    """
    if not isinstance(name := document.data.get("kernels"), str):
        return None
    with _called(document, "kernels", "the constants of the GPU type"):
        path = find(name, "kernels", folder)
        return validate(quantified(load_yaml_strict(path), KernelsFile, given_in(path.name)), KernelsFile).constants


@contextmanager
def _called(document: Document, key: str, what: str) -> Iterator[None]:
    """Put before the problems of an InputError in the block one that says that what the document calls by `key` cannot
    be loaded.
    """
    try:
        yield
    except InputError as error:
        got = shorten(document.data[key])
        first = document.problem(f"{what} cannot be loaded", (key,), got=got)
        raise InputError([first, *error.problems]) from None


def _with_adapter(document: Document, path: Path) -> ModelDescriptor:
    """Return the base model with the document's adapter, name, source and huggingface_id; the notes of both are joined.

    path: of the document; its `base` is relative to that folder. Raises InputError if the document is invalid, the base
    cannot be loaded or has an adapter itself, or the adapter does not fit it.
    """
    added = validate(document, AdapterModel)
    with _called(document, "base", "the base model"):
        base = load_model(added.base, path.parent, adapters=False)
    if base.adapter is not None:
        raise InputError(document.problem("the base model is an adapter itself", ("base",), got=added.base))
    fields = base.model_dump(mode="json", by_alias=True, exclude_unset=True)
    fields |= added.model_dump(mode="json", by_alias=True, exclude_unset=True, exclude={"base"})
    fields["notes"] = [*base.notes, *added.notes]
    return validate(Document(fields, document.file, document.keys, document.values), ModelDescriptor)


def _zoo(kind: str) -> list[str]:
    folder = data_dir("model_zoo") / kind
    return sorted(path.stem for path in folder.glob("*.yaml"))


def _path_kind(name: str, base: Path | None) -> Literal["file", "folder"] | None:
    """Return whether there is a file or a folder of this name below `base`.

    None: neither, it may not be read, or the name is empty or no valid path.
    """
    path = (base or Path()) / name
    try:
        return None if not name or not may_read(path) or not path.exists() else "folder" if path.is_dir() else "file"
    except (OSError, ValueError):  # a name with a NUL, or longer than a path may be
        return None


def located(name: str, base: Path | None) -> str:
    """Return a model's name so that it holds in any folder: paths below `base` become absolute, other names stay.

    Raises InputError where there is no such model; an id may be downloaded.
    """
    path = find(name, "models", base)
    return str(path.resolve()) if path == (base or Path()) / name else name


def find(name: str, kind: str, base: Path | None) -> Path:
    """Return the file (for models, also the folder) that a name means; kind: models, clusters or kernels.

    The order is: zoo name, path below `base`, a zoo name in another case, and for models a Hugging Face id: the zoo's
    model of that id, else Hugging Face's cache, else a download (neither where files are restricted to folders without
    it). Write ./name for a file with a zoo name. Raises InputError for a file that is not YAML or JSON, a failed
    download, and an unknown name, with the nearest ones as hint.
    """
    zoo, path, lies = _zoo(kind), (base or Path()) / name, _path_kind(name, base)
    what, suffixes, is_id = kind.removesuffix("s"), (*_YAML, ".json"), kind == "models" and hub.is_id(name)
    own = name if name in zoo else None
    if own is None and (lies == "file" or (lies == "folder" and kind == "models")):
        if lies == "file" and path.suffix not in suffixes:
            got, need = path.suffix or "no suffix", " or ".join(suffixes)
            raise InputError("the kind of file is not known", file=str(path), got=got, need=need)
        return path
    if own is None and (own := called(name, zoo)) is None and is_id:
        own = {known.lower(): own for own, known in hub.of_zoo()}.get(name.lower())
    if own is not None:
        return data_dir("model_zoo") / kind / f"{own}.yaml"
    if is_id and may_read(hub.folder()):
        return hub.cached(name) or hub.fetched(name)
    word = name.lower()[:200]
    longer = [one for one in zoo if word and one.startswith(word)]
    close = difflib.get_close_matches(word, longer or zoo, n=3, cutoff=0.0 if longer else 0.5)
    if not close and (name.endswith(suffixes) or "/" in name):
        if lies == "folder":
            raise InputError(f"this is a folder, a {what} is a file", file=shorten(name, 200))
        raise InputError([missing(path, f"there is no such {what} file")])
    ways = "a path, an id of Hugging Face" if kind == "models" else "a path"
    need = f"{ways}, or one of " + (f"those of symconfig list {kind}" if kind in _LISTED else ", ".join(zoo))
    if not name:
        raise InputError(f"the {what} has no name", field=what, need=need)
    if kind == "clusters":
        differing = f"'{(close or ['h100'])[0]} with gpu_memory=96GB and gpu.peak_flops.bf16=148TFLOP/s'"
        close.append(f"{differing}, which is another GPU by what differs (docs/reference/cluster-files.md)")
    raise InputError(f"unknown {what}", field=what, got=shorten(name), need=need, hint=" or ".join(close) or None)
