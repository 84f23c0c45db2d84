"""Names and paths to descriptors: the zoo, a descriptor file, a Hugging Face `config.json`, a job."""

from __future__ import annotations

import difflib
import re
from pathlib import Path
from typing import Literal

from pydantic import Field

from symconfig.descriptor import hub
from symconfig.descriptor.cluster import ClusterDescriptor, KernelsFile
from symconfig.descriptor.document import Document, shorten
from symconfig.descriptor.job import Job
from symconfig.descriptor.json_strict import load_json_strict
from symconfig.descriptor.model import Adapter, ModelDescriptor, ModelSchema, Strict
from symconfig.descriptor.network import with_network
from symconfig.descriptor.validate import validate
from symconfig.descriptor.yaml_strict import load_yaml_strict
from symconfig.errors import InputError, Problem
from symconfig.resources import data_dir

_YAML = (".yaml", ".yml")


class AdapterModel(Strict):
    """A model file that names another model as its `base` and adds an adapter."""

    schema_: ModelSchema = Field(alias="schema")
    base: str = Field(min_length=1, description="zoo name, id of Hugging Face, or a path relative to this file")
    name: str = Field(min_length=1, max_length=200)
    source: str = Field(min_length=1)
    huggingface_id: str | None = None
    adapter: Adapter
    notes: tuple[str, ...] = ()


class OtherNetwork(Strict):
    """A cluster file that names another cluster as its `base` and the network between its nodes."""

    schema_: Literal["symconfig.cluster/1"] = Field(alias="schema")
    base: str = Field(min_length=1, description="zoo name, or a path relative to this file")
    name: str = Field(min_length=1, max_length=200)
    source: str = Field(min_length=1)
    network: str = Field(min_length=1, description="ports and their speed, or the speed of a GPU: `4x100 Gb/s`")


def zoo_models() -> list[str]:
    """Names of the models that come with symconfig."""
    return _zoo("models")


def zoo_clusters() -> list[str]:
    """Names of the clusters that come with symconfig."""
    return _zoo("clusters")


def zoo_programs() -> list[str]:
    """Names of the programs of operators over named dims that come with symconfig."""
    return _zoo("programs")


def load_model(name_or_path: str, base: Path | None = None) -> ModelDescriptor:
    """A zoo name, a descriptor, a `config.json` or a folder with one, an id of Hugging Face; paths start at `base`.

    Raises InputError.
    """
    return _model_named(name_or_path, base, adapters=True)


def _model_named(name: str, base: Path | None, *, adapters: bool) -> ModelDescriptor:
    path = find(name, "models", base)
    model = _load_model(path, adapters=adapters)
    return hub.named(model, name) if hub.is_id(name) and path == hub.cached(name) else model


def _load_model(path: Path, *, adapters: bool) -> ModelDescriptor:
    if path.is_dir():
        path = _config_in(path)
    if path.suffix == ".json":
        document = load_json_strict(path)
        if isinstance(document.data, dict) and "schema" not in document.data:
            from symconfig.descriptor.huggingface import import_config  # no descriptor wants its architectures

            return import_config(document.data, document.file, None, document)
    else:
        document = load_yaml_strict(path)
    if isinstance(document.data, dict) and "base" in document.data:
        if not adapters:
            raise InputError(document.problem("the base of an adapter must be a whole model", ("base",)))
        return _with_adapter(document, path)
    return validate(document, ModelDescriptor)


def load_cluster(name_or_path: str, base: Path | None = None) -> ClusterDescriptor:
    """A zoo name or a descriptor file, after an @ the network between its nodes: `h100@4x100 Gb/s`.

    Paths are relative to `base`. Raises InputError.
    """
    name, at, network = name_or_path.rpartition("@")
    if not at or _lies(name_or_path, base):
        return _load_cluster(find(name_or_path, "clusters", base), changes=True)
    cluster = _load_cluster(find(name, "clusters", base), changes=True)
    changed = with_network(cluster, network, f"stated with the cluster's name: {network}")
    plain = re.sub(r"[^a-z0-9.]+", "-", network.lower()).strip("-")
    source = f"{cluster.source}; the network between nodes as stated with its name"
    return changed.model_copy(update={"name": f"{cluster.name}-{plain}", "aliases": (), "source": source})


def _load_cluster(path: Path, *, changes: bool) -> ClusterDescriptor:
    document = load_json_strict(path) if path.suffix == ".json" else load_yaml_strict(path)
    if isinstance(document.data, dict) and "base" in document.data:
        if not changes:
            raise InputError(document.problem("the base of a network must be a whole cluster", ("base",)))
        return _with_network(document, path)
    if isinstance(document.data, dict) and isinstance(document.data.get("kernels"), str):
        document = _with_kernels(document, path)
    return validate(document, ClusterDescriptor)


def _with_network(document: Document, path: Path) -> ClusterDescriptor:
    """The base cluster with this file's network between its nodes."""
    stated = validate(document, OtherNetwork)
    try:
        base = _load_cluster(find(stated.base, "clusters", path.parent), changes=False)
    except InputError as error:
        first = document.problem("the base cluster cannot be loaded", ("base",), got=shorten(stated.base))
        raise InputError([first, *error.problems]) from None
    try:
        cluster = with_network(base, stated.network, f"{stated.source}: {stated.network}")
    except InputError as error:
        wrong = error.problems[0]
        raise InputError(
            document.problem(wrong.what, ("network",), got=wrong.got, need=wrong.need, hint=wrong.hint)
        ) from None
    source = f"{stated.source}; all but the network: {base.source}"
    return cluster.model_copy(update={"name": stated.name, "aliases": (), "source": source})


def _with_kernels(document: Document, path: Path) -> Document:
    """The cluster with the constants of the GPU type that it names."""
    name = document.data["kernels"]
    try:
        file = load_yaml_strict(find(name, "kernels", path.parent))
        constants = validate(file, KernelsFile).constants
    except InputError as error:
        first = document.problem("the constants of the GPU type cannot be loaded", ("kernels",), got=shorten(name))
        raise InputError([first, *error.problems]) from None
    fields = document.data | {"kernels": constants.model_dump(mode="json", exclude_unset=True)}
    return Document(fields, document.file, document.keys, document.values)


def load_job(path: str | Path) -> Job:
    """A JOB.yaml; its `model` and `cluster` are not loaded yet. Raises InputError."""
    path = Path(path)
    document = load_json_strict(path) if path.suffix == ".json" else load_yaml_strict(path)
    return validate(document, Job)


def _with_adapter(document: Document, path: Path) -> ModelDescriptor:
    """The base model with this file's adapter over it."""
    added = validate(document, AdapterModel)
    try:
        base = _model_named(added.base, path.parent, adapters=False)
    except InputError as error:
        first = document.problem("the base model cannot be loaded", ("base",), got=shorten(added.base))
        raise InputError([first, *error.problems]) from None
    if base.adapter is not None:
        raise InputError(document.problem("the base model is an adapter itself", ("base",), got=added.base))
    fields = base.model_dump(mode="json", by_alias=True, exclude_unset=True)
    fields |= added.model_dump(mode="json", by_alias=True, exclude_unset=True, exclude={"base"})
    fields["notes"] = [*base.notes, *added.notes]
    return validate(Document(fields, document.file, document.keys, document.values), ModelDescriptor)


def _zoo(kind: str) -> list[str]:
    folder = data_dir("model_zoo") / kind
    return sorted(path.stem for path in folder.glob("*.yaml"))


def _lies(name: str, base: Path | None) -> Literal["file", "folder"] | None:
    """What there is of this name."""
    path = (base or Path()) / name
    try:
        return None if not name or not path.exists() else "folder" if path.is_dir() else "file"
    except (OSError, ValueError):  # a name with a NUL, or longer than a path may be
        return None


def find(name: str, kind: str, base: Path | None) -> Path:
    """The file or folder that `name` means. A zoo name comes first; write ./name for a file of the same name. A model's
    id on Hugging Face is the zoo's model, else what huggingface_hub has in its cache.
    """
    zoo = _zoo(kind)
    if name in zoo:
        return data_dir("model_zoo") / kind / f"{name}.yaml"
    path, lies = (base or Path()) / name, _lies(name, base)
    if lies == "folder" and kind == "models":
        return path
    found = lies == "file"
    suffixes = (*_YAML, ".json")
    if found and path.suffix not in suffixes:
        raise InputError(
            Problem(
                "the kind of file is not known", str(path), got=path.suffix or "no suffix", need=" or ".join(suffixes)
            )
        )
    if found:
        return path
    what = kind.removesuffix("s")
    if kind == "models" and hub.is_id(name):
        if (own := hub.in_zoo(name)) is not None:
            return data_dir("model_zoo") / kind / f"{own}.yaml"
        if (config := hub.cached(name)) is not None:
            return config
        raise hub.absent(name)
    close = difflib.get_close_matches(name.lower()[:200], zoo, n=3, cutoff=0.5)
    if not close and (name.endswith(suffixes) or "/" in name):
        raise InputError(Problem(f"there is no such {what} file", shorten(name, 200)))
    if not name:
        raise InputError(Problem(f"the {what} has no name", field=what, need=f"a path, or one of {', '.join(zoo)}"))
    ways = "a path, an id of Hugging Face, or" if kind == "models" else "a path, or"
    raise InputError(
        Problem(
            f"unknown {what}",
            field=what,
            got=shorten(name),
            need=f"{ways} one of {', '.join(zoo)}",
            hint=" or ".join(close) or None,
        )
    )


def _config_in(folder: Path) -> Path:
    path = folder / "config.json"
    if not path.is_file():
        raise InputError(Problem("this folder has no config.json", str(folder)))
    return path
