"""A cluster of two kinds of GPUs, by its name or as a job names it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from symconfig.descriptor.amounts import gpu_bytes_per_s
from symconfig.descriptor.cluster import CLUSTER, OVER, ClusterDescriptor, kinds
from symconfig.descriptor.document import Document
from symconfig.descriptor.load import is_mixed, load_cluster
from symconfig.errors import InputError, Problem


@dataclass(frozen=True, slots=True)
class Share:
    """One kind of GPU in a mixed cluster, and the number of GPUs of that kind."""

    cluster: ClusterDescriptor
    gpus: int

    @property
    def nodes(self) -> int:
        """Return the number of full nodes."""
        return self.gpus // self.cluster.gpus_per_node


@dataclass(frozen=True, slots=True)
class MixedCluster:
    """Two kinds of GPUs under one network.

    over_bytes_per_s: bandwidth between the kinds per GPU, one direction; None: that of the slower one's own network.
    """

    name: str
    shares: tuple[Share, Share]
    over_bytes_per_s: float | None = None

    @property
    def gpus(self) -> int:
        """Return the number of GPUs of both kinds."""
        return sum(share.gpus for share in self.shares)


def load_mixed(name: str, base: Path | None = None) -> MixedCluster | None:
    """Load a cluster of two kinds of GPUs by its name; None if the name is not that of such a cluster, or is a file's.

    Paths of the kinds are relative to `base`. A network after `over` is that between the kinds, one GPU's speed unless
    it says otherwise. Raises InputError for kinds that cannot be loaded or cannot train together, and a wrong network.
    """
    if not is_mixed(name, base) or (stated := kinds(name)) is None:
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
    """Load the cluster of two kinds of GPUs that a job's document names under `cluster`, as `load_mixed` does.

    None if it names a cluster of one kind, or none. Raises InputError.
    """
    name = document.data.get(CLUSTER) if isinstance(document.data, dict) else None
    return load_mixed(name, base) if isinstance(name, str) else None


def _check_kinds(first: Share, second: Share) -> None:
    """Raise InputError, with all problems, if one run cannot span both kinds of GPUs.

    They are different vendors, nodes of different sizes, and numbers of GPUs that do not fill whole nodes.
    """
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
