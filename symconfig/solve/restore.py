"""From a plan's candidate back to the point of the lattice that it was."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from symconfig.cost.machine import machine
from symconfig.cost.stages import Offload
from symconfig.cost.table import Choice
from symconfig.errors import InputError
from symconfig.frameworks.extras import Extras
from symconfig.graph.model import shares_heads
from symconfig.graph.scheme import Scheme
from symconfig.plans.plan import Candidate, Plan
from symconfig.solve.extras import switched_on
from symconfig.solve.limits import offloaded
from symconfig.solve.pieces import WHOLE
from symconfig.solve.pins import parse
from symconfig.solve.prospect import Prospect
from symconfig.solve.run import request
from symconfig.solve.split import Split


@contextmanager
def retraced(file: str) -> Iterator[None]:
    """Compute a plan of this file again: one that was edited, or is of another version, may not let it.

    Raises InputError that says so.
    """
    try:
        yield
    except (LookupError, ValueError, ArithmeticError, AttributeError) as error:
        what = f"holds a plan that this version cannot retrace ({type(error).__name__}: {error})"
        raise InputError(what, file=file, hint="plan again with this version of symconfig") from None


def restore(plan: Plan, candidate: Candidate) -> Prospect:
    """Return the candidate's point; `detail` of it gives the candidate's prediction again."""
    p, o = candidate.parallel, candidate.options
    job = plan.job.model_copy(update={"backend": candidate.target.backend})  # `render --target` may have chosen another
    base = request(plan.model, plan.cluster, job, o.precision, parse(job.pins))
    base = switched_on(base, Extras.planned(candidate), plan.cluster.gpu.architecture)
    cp_comm = o.cp_comm or base.limits.cp_comms[0]
    scheme = Scheme(o.sequence_parallel, cp_comm, shares_heads(plan.model, p.tp))
    split = Split(
        pp=p.pp,
        vpp=p.vpp,
        chunks=candidate.chunks,
        account_for_embedding=o.account_for_embedding,
        account_for_loss=o.account_for_loss,
        layout=o.pipeline_layout,
        first_layers=o.first_stage_layers,
        last_layers=o.last_stage_layers,
    )
    layers, together = 0, 1
    if o.recompute.granularity == "full":
        choice, given = WHOLE, o.recompute.num_layers
        layers, together = (given or 0, 1) if o.recompute.method == "block" else (0, given or 1)
    else:
        choice = Choice(frozenset(o.recompute.modules), offloaded(plan.model) if o.activation_offload else frozenset())
    return Prospect(
        request=base,
        machine=machine(plan.cluster, o.precision, gpus=p.world_size),
        scheme=scheme,
        split=split,
        choice=choice,
        zero=o.zero_stage,
        offload=Offload(o.optimizer_offload, o.param_offload),
        block_layers=layers,
        degrees=p,
        micro=candidate.batch.micro,
        step_s=candidate.predicted.step_s,
        device_bytes=candidate.predicted.device_bytes,
        score=candidate.predicted.step_s,
        uniform_layers=together,
    )
