"""The tensor solver as a Python function: `symconfig.partition(model=…, cluster=…, gpus=…, global_batch_size=…)`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from symconfig.cost.partition.costs import Objective
from symconfig.format import seconds
from symconfig.report.partition import Contents, names_of
from symconfig.report.partition_json import to_dict
from symconfig.solve.partition.account import Moved, Spent, collectives, spent
from symconfig.solve.partition.placements import Placements, placements, python
from symconfig.solve.partition.problem import price
from symconfig.solve.partition.run import Case, Partition, baselines, costs_of, infeasible
from symconfig.solve.partition.run import partition as solve

if TYPE_CHECKING:
    from symconfig.api.partition_job import PartitionJob


@dataclass(frozen=True)
class PartitionResult:
    """A solved partition with its explanations, placements and reports."""

    asked: PartitionJob
    found: Partition

    @property
    def strategies(self) -> Mapping[str, str]:
        """Return {operator or parameter ("weight of NAME"): its split along the mesh levels, in words}."""
        from symconfig.solve.partition.rows import worded

        nodes = zip(self.found.net.nodes, self.found.rows, strict=True)
        return {
            ("weight of " if node.parameter is not None else "") + node.name: worded(node, row, self.found.axes)
            for node, row in nodes
        }

    @cached_property
    def collectives(self) -> tuple[Moved, ...]:
        return collectives(self.found.costs, self.found.axes, self.found.rows)

    @cached_property
    def spent(self) -> Spent:
        return spent(self.found.costs, self.found.axes, self.found.rows, self.found.gamma)

    def baselines(self) -> Mapping[str, Partition | None]:
        """Return {well-known strategy: its best partition by the adaptive solver; None if none fits}."""
        return baselines(self.asked.source.programs, self.found)

    def placements(self) -> Placements:
        """Return the DTensor device mesh and the placements of all parameters and modules."""
        return placements(self.found.net, self.found.axes, np.array(self.found.rows, dtype=np.int64))

    def placements_file(self) -> str:
        """Return the placements as Python source with `distribute(module, mesh)`."""
        return python(self.placements())

    def distribute(self, module: Any, device_type: str = "cuda") -> Any:
        """Replace every parameter of the PyTorch module by a DTensor as `placements` says, on a mesh of all ranks of
        the process group, and return the module.
        """
        from torch import nn
        from torch.distributed import init_device_mesh, tensor

        found = self.placements()
        sizes, names = zip(*((dim.size, dim.name) for dim in found.mesh), strict=True)
        mesh = init_device_mesh(device_type, sizes, mesh_dim_names=names)
        known: dict[int, nn.Parameter] = {}  # by identity: a parameter with several paths stays one
        for path, weight in list(module.named_parameters(remove_duplicate=False)):
            if id(weight) not in known:
                ways = [
                    getattr(tensor, way.kind)(*(() if way.dim is None else (way.dim,)))
                    for way in found.parameters[path].placements
                ]
                cut = tensor.distribute_tensor(weight.detach(), mesh, ways)
                known[id(weight)] = nn.Parameter(cut, requires_grad=weight.requires_grad)
            owner, _, name = path.rpartition(".")
            module.get_submodule(owner).register_parameter(name, known[id(weight)])
        return module

    @property
    def headline(self) -> tuple[str, str]:
        """Return (subject, job) as texts: graph, number and product of GPUs and cluster; and what applies of global
        batch, tokens, a precision other than bf16, unfused attention, and each pin ("" if none).
        """
        job, source = self.asked, self.asked.source
        sizes = [
            f"global batch {source.batch:,}" if source.batch is not None else "",
            f"{source.seq_length:,} tokens" if source.seq_length is not None else "",
            job.ask.precision if job.ask.precision != "bf16" else "",
            "unfused attention" if source.unfused else "",
            *(f"pinned {pin.text}" for pin in job.ask.pins),
        ]
        subject = f"{source.name} on {job.mesh.gpus:,} x {job.cluster.gpu.product} ({job.cluster.name})"
        return subject, ", ".join(size for size in sizes if size)

    def contents(self, baselines: bool = False, explained: tuple[int, ...] = ()) -> Contents:
        """Return the contents of the report. baselines: also solve for the well-known strategies ({} else). explained:
        numbers of operators to show in full. Notes are the program's and, for the objective symtensor, what its cost
        leaves out.
        """
        partition = self.found
        subject, job = self.headline
        return Contents(
            subject=subject,
            job=job,
            partition=partition,
            moved=self.collectives,
            spent=self.spent,
            compared=self.baselines() if baselines else {},
            explained=explained,
            notes=(*partition.net.program.notes, *self._left_out()),
            names=names_of(partition.net),
        )

    def _left_out(self) -> tuple[str, ...]:
        """Return one note on what the relative cost leaves out, with this partition's seconds under the objective time;
        () if that was the objective.
        """
        partition = self.found
        if partition.costs.timed:
            return ()
        case, ask = Case(partition.net, partition.costs.training), replace(partition.ask, objective=Objective.TIME)
        step_s, _ = price(costs_of(case, ask, partition.axes), np.array(partition.rows, dtype=np.int64))
        return (
            "the relative cost counts every element that moves alike, whichever link it crosses, and neither the "
            "number of messages, nor computation, nor what hides behind it, nor a pipeline; this partition takes "
            f"{seconds(step_s)} s a step",
        )

    def to_dict(self) -> dict[str, Any]:
        """Return the JSON contract, `symconfig.partition/3`: see `symconfig.report.partition_json`."""
        return to_dict(self.contents())


def partition(
    model: Any = None,
    cluster: Any = None,
    gpus: int | None = None,
    global_batch_size: int | None = None,
    seq_length: int | None = None,
    **fields: Any,
) -> PartitionResult:
    """Return the best split of all operators and tensors. Arguments: the fields of GraphJob, which are the options of
    `symconfig partition`. Raises InputError with all problems, InfeasibleError if nothing fits.
    """
    from symconfig.api.partition_job import partition_job

    named = {"model": model, "cluster": cluster, "gpus": gpus, "global_batch_size": global_batch_size}
    return answered(partition_job({**named, "seq_length": seq_length, **fields}))


def auto_parallel(module: Any, inputs: Any, cluster: Any, gpus: int | None = None, **fields: Any) -> PartitionResult:
    """Return the best split of a PyTorch module for these example inputs (a tuple, a dict, or one tensor);
    `.distribute(module)` applies it. The module is not changed. Other arguments and errors as of `partition`.
    """
    from symconfig.graph.program.torch_source.factory import program_of_module

    return partition(cluster=cluster, gpus=gpus, program=program_of_module(module, inputs), **fields)


def answered(job: PartitionJob) -> PartitionResult:
    """Return the solved partition. Raises InfeasibleError, with what would fit, if nothing does."""
    solved = solve(job.source.programs, job.ask)
    if solved is None:
        raise infeasible(job.source.programs, job.ask, job.grown)
    return PartitionResult(job, solved)
