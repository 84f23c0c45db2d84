"""A plan over two kinds of GPUs: which stages lie on which kind, and what either kind would do by itself."""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from typing import Any

from symconfig.descriptor.cluster import MixedCluster, Share
from symconfig.descriptor.job import Job
from symconfig.descriptor.model import ModelDescriptor
from symconfig.install import VERSION
from symconfig.plans.plan import Candidate, Plan, Predicted, Search

SCHEMA = "symconfig.mixed/1"


@dataclass(frozen=True, slots=True)
class Span:
    """Whole numbers from the first to the last, counted from 0."""

    first: int
    last: int

    @property
    def text(self) -> str:
        """Return the span in words: `3`, or `0 to 3`."""
        return str(self.first) if self.first == self.last else f"{self.first} to {self.last}"


@dataclass(frozen=True, slots=True)
class Host:
    """One kind of GPU in a candidate. layers: of each of its stages; predicted: the step, and the memory of the fullest
    of its GPUs; usable_bytes: of one of them, without the job's margin."""

    share: Share
    stages: Span
    nodes: Span
    layers: tuple[int, ...]
    predicted: Predicted
    usable_bytes: float

    def to_dict(self) -> dict[str, Any]:
        """Return one kind of GPU as plain data: cluster's name, gpus, stages and nodes (first, last), layers, bytes.
        layers: of each of its stages. device_bytes: predicted, usable_bytes: usable, of one GPU.
        """
        return {
            "cluster": self.share.cluster.name,
            "gpus": self.share.gpus,
            "stages": asdict(self.stages),
            "nodes": asdict(self.nodes),
            "layers": list(self.layers),
            "device_bytes": self.predicted.device_bytes,
            "usable_bytes": self.usable_bytes,
        }


@dataclass(frozen=True, slots=True)
class MixedCandidate:
    """A candidate over both kinds; hosts: in the order of its stages."""

    candidate: Candidate
    hosts: tuple[Host, Host]

    def to_dict(self) -> dict[str, Any]:
        """Return the plain data of the candidate, with its kinds of GPUs under `kinds`."""
        return {**self.candidate.to_dict(), "kinds": [host.to_dict() for host in self.hosts]}


@dataclass(frozen=True, slots=True)
class Alone:
    """What one kind does by itself. best: its plan; None: there is none, as `why` says."""

    share: Share
    best: Candidate | None = None
    why: str = ""

    def to_dict(self) -> dict[str, Any]:
        """Return the plain data of one kind by itself; `best` is None where it has no plan."""
        best = None if self.best is None else self.best.to_dict()
        return {"cluster": self.share.cluster.name, "gpus": self.share.gpus, "best": best, "why": self.why}


@dataclass(frozen=True, slots=True)
class MixedPlan:
    """The chosen candidate with all that it was chosen from. candidates, feasible: weighed on a machine of mean rates;
    laid: of them, laid over both kinds under some policy."""

    model: ModelDescriptor
    cluster: MixedCluster
    job: Job
    best: MixedCandidate
    alternatives: tuple[MixedCandidate, ...]
    alone: tuple[Alone, Alone]
    candidates: int
    feasible: int
    laid: int

    @property
    def faster(self) -> Alone | None:
        """Return the kind whose own plan has the shorter step; None if neither has a plan."""
        able = [each for each in self.alone if each.best is not None]
        return min(able, key=lambda each: each.best.predicted.step_s if each.best else 0.0, default=None)

    @property
    def gain(self) -> float | None:
        """Return the step of the faster kind alone over the step on both kinds; None if neither kind has a plan."""
        faster = self.faster
        if faster is None or faster.best is None:
            return None
        return faster.best.predicted.step_s / self.best.candidate.predicted.step_s

    @property
    def pays(self) -> bool:
        """Return whether both kinds together are faster than the faster one alone; true if neither has a plan."""
        return self.gain is None or self.gain > 1.0

    def to_dict(self) -> dict[str, Any]:
        """Return the plan as plain data for JSON, equal for equal inputs. Keys: schema, symconfig, best, alternatives,
        alone (each kind by itself), gain and pays against these, search (counts) and inputs (model, cluster with its
        kinds, job).
        """
        shares = self.cluster.shares
        return {
            "schema": SCHEMA,
            "symconfig": VERSION,
            "best": self.best.to_dict(),
            "alternatives": [each.to_dict() for each in self.alternatives],
            "alone": [each.to_dict() for each in self.alone],
            "gain": self.gain,
            "pays": self.pays,
            "search": {"candidates": self.candidates, "feasible": self.feasible, "laid": self.laid},
            "inputs": {
                "model": self.model.model_dump(mode="json", by_alias=True),
                "cluster": {
                    "name": self.cluster.name,
                    "over_bytes_per_s": self.cluster.over_bytes_per_s,
                    "kinds": [
                        {"gpus": share.gpus, "cluster": share.cluster.model_dump(mode="json", by_alias=True)}
                        for share in shares
                    ],
                },
                "job": self.job.model_dump(mode="json", by_alias=True),
            },
        }

    def of(self, host: Host) -> Plan:
        """Return the best candidate as a plan for the nodes of one kind; see `hosted`."""
        return hosted(self.model, self.job, self.best, host)


def hosted(model: ModelDescriptor, job: Job, mixed: MixedCandidate, host: Host) -> Plan:
    """Return a mixed candidate as a plan for the nodes of one kind, `host`. It has all stages and degrees; the cluster,
    also the job's, and the prediction, and so the memory, are of this kind. There are no alternatives, the counts of
    the search are 0, and `binding` is "".
    """
    cluster = host.share.cluster
    return Plan(
        model=model,
        cluster=cluster,
        job=job.model_copy(update={"cluster": cluster.name}),
        best=replace(mixed.candidate, predicted=host.predicted),
        alternatives=(),
        search=Search(0, 0, 0.0),
        binding="",
        symconfig_version=VERSION,
    )
