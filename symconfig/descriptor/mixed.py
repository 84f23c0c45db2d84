"""A cluster of two kinds of GPUs: `h100*16 + a100-80gb*16`, each kind a cluster with its number of GPUs."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from pydantic import Field

from symconfig.descriptor.amounts import gpu_bytes_per_s
from symconfig.descriptor.cluster import LONGEST_NAME, ClusterDescriptor
from symconfig.descriptor.cluster_name import CLUSTER, OVER, kinds
from symconfig.descriptor.document import Document
from symconfig.descriptor.load import find, is_mixed, load_cluster
from symconfig.descriptor.strict import GpuCount, Strict
from symconfig.descriptor.validate import validate
from symconfig.descriptor.yaml_strict import load_yaml_strict
from symconfig.errors import InputError, Problem


class Kind(Strict):
    """One kind of a file: a cluster's name or path, and how many GPUs there are of it."""

    cluster: str = Field(min_length=1, max_length=LONGEST_NAME)
    gpus: GpuCount


class MixedFile(Strict):
    """A cluster of two kinds as a file has it."""

    schema_: Literal["symconfig.mixed-cluster/1"] = Field(default="symconfig.mixed-cluster/1", alias="schema")
    kinds: tuple[Kind, Kind]
    over: str | None = Field(default=None, description="the network between the kinds; absent: the slower of theirs")


@dataclass(frozen=True, slots=True)
class Share:
    """One kind of GPU, and how many there are."""

    cluster: ClusterDescriptor
    gpus: int

    @property
    def nodes(self) -> int:
        """Count the hosts that they fill."""
        return self.gpus // self.cluster.gpus_per_node


@dataclass(frozen=True, slots=True)
class MixedCluster:
    """Two kinds of GPUs under one network. over_bytes_per_s: of a GPU, in one direction, between the kinds; None: what
    the slower of their own networks has."""

    name: str
    shares: tuple[Share, Share]
    over_bytes_per_s: float | None = None

    @property
    def gpus(self) -> int:
        """Count the GPUs of both kinds."""
        return sum(share.gpus for share in self.shares)


def load_mixed(name: str, base: Path | None = None) -> MixedCluster | None:
    """Load a cluster of two kinds by its name, or by the path of a file that lists them, relative to `base`.

    None: the name is of no such cluster. Raises InputError for kinds that cannot train together.
    """
    if not is_mixed(name, base):
        return None
    if (stated := kinds(name)) is not None:
        *each, over = stated
    else:
        path = find(name, "clusters", base)
        file, base = validate(load_yaml_strict(path), MixedFile), path.parent
        each, over = [(kind.cluster, kind.gpus) for kind in file.kinds], file.over
    first, second = (Share(load_cluster(kind, base), gpus) for kind, gpus in each)
    _check(first, second)
    called = " + ".join(f"{share.cluster.name}*{share.gpus}" for share in (first, second))
    if over is None:
        return MixedCluster(called, (first, second))
    rate = gpu_bytes_per_s(over, first.cluster.gpus_per_node, "gpu")
    return MixedCluster(f"{called} {OVER} {over}", (first, second), rate)


def mixed_of(document: Document, base: Path | None = None) -> MixedCluster | None:
    """Load the cluster of two kinds that a job names; None: it names another one, or none. Raises InputError."""
    name = document.data.get(CLUSTER) if isinstance(document.data, dict) else None
    return load_mixed(name, base) if isinstance(name, str) else None


def _check(first: Share, second: Share) -> None:
    """Raise InputError for kinds of GPUs that one run of a framework cannot span."""
    one, other = first.cluster, second.cluster
    problems = []
    if one.gpu.vendor != other.gpu.vendor:
        what = "GPUs of two vendors have no collective library in common"
        problems.append(Problem(what, field=CLUSTER, got=f"{one.gpu.vendor} and {other.gpu.vendor}"))
    if one.gpus_per_node != other.gpus_per_node:
        what = (
            "a launcher starts the same number of ranks on every node, but the two kinds have nodes of different sizes"
        )
        got = f"{one.gpus_per_node} and {other.gpus_per_node}"
        problems.append(Problem(what, field=CLUSTER, got=got, hint="'NAME with gpus_per_node=N*GPUS' for one of them"))
    for share in (first, second):
        each = share.cluster.gpus_per_node
        if share.gpus % each:
            what, need = f"{share.cluster.name} does not fill whole nodes", f"a multiple of {each}"
            problems.append(Problem(what, field=CLUSTER, got=str(share.gpus), need=need))
    if problems:
        raise InputError(problems)
