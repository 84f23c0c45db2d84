"""One job through the lattice: its defaults filled in, its precisions and pins made into requests, and weighed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from symconfig.cost.framework import Framework
from symconfig.cost.machine import machine
from symconfig.cost.step import HOST_SHARE
from symconfig.descriptor import learning_rate
from symconfig.descriptor.cluster import ClusterDescriptor
from symconfig.descriptor.job import Job
from symconfig.descriptor.learning_rate import AdapterTask
from symconfig.descriptor.model import ModelDescriptor
from symconfig.descriptor.sections import Position
from symconfig.descriptor.task import Task
from symconfig.errors import InputError, Problem
from symconfig.format import picked
from symconfig.frameworks.behaviour import PROGRAMS, Switches, stepping, switched, usual
from symconfig.frameworks.extras import NAMES, columns, gradient_bytes
from symconfig.frameworks.known import BACKENDS, facts_of
from symconfig.frameworks.megatron.flags import flags
from symconfig.frameworks.megatron.hybrid import hybrid
from symconfig.frameworks.megatron.releases import LAYOUT_MTP_ALONE_SINCE, NO_ENGINE, megatron_release
from symconfig.frameworks.programs import ENDS_ONLY, TOWER_IN_FIRST_CHUNK, of_program
from symconfig.graph.model import parameters, sequence
from symconfig.graph.operator import FOUR_BIT_BYTES
from symconfig.graph.parts import is_layer
from symconfig.plans.configuration import PRECISIONS, Configuration, Precision
from symconfig.plans.configuration_set import ConfigurationSet
from symconfig.solve import extras
from symconfig.solve.branch_and_bound import branch_and_bound
from symconfig.solve.choice import Incumbents, refine
from symconfig.solve.extras import NOTHING_KNOWN, excluded_options
from symconfig.solve.interval import NO_LIMIT, surprise
from symconfig.solve.limits import Limits, limits
from symconfig.solve.pins import ENDS, parse
from symconfig.solve.prospect import Setup
from symconfig.solve.space import Request
from symconfig.solve.usual import usual as usual_layouts

EIGHT_BIT_BYTES = 1.0  # smallest bytes of a trained weight
KEPT = 16  # families with a micro-batch, near the best, that are kept for simulation
Progress = Callable[[str, float], None]


def with_defaults(model: ModelDescriptor, cluster: ClusterDescriptor, job: Job) -> Job:
    """Return the job with defaults for task, precision, sequence length and training; fields set are kept.

    Precision is bf16 if the GPU has it, else fp16; the length is the model's `usual_length`.
    Raises InputError for sequences longer than learned positions, and as `with_training` does.
    """
    precision = job.precision or ("bf16" if cluster.gpu.peak_flops.bf16 is not None else "fp16")
    seq_length = job.seq_length or model.usual_length
    fields = {"task": job.task_of(model), "precision": precision, "seq_length": seq_length}
    job = with_training(model, job.model_copy(update=fields))
    if model.position is Position.LEARNED and (beyond := job.beyond(model)):
        what, need = "the model has a learned position for fewer tokens", f"at most {model.max_position_embeddings}"
        raise InputError(Problem(what, field="seq_length", got=str(beyond), need=need))
    return job


def with_training(model: ModelDescriptor, job: Job) -> Job:
    """Return the job with open fields of its training derived from task and active parameters; fields set are kept.

    Raises InputError for a learning rate schedule that is not possible.
    """
    row, size, _ = learning_rate_key(job.task_of(model), model)
    training = learning_rate.derived(job.training, row, size)
    learning_rate.check(training)
    return job.model_copy(update={"training": training})


def learning_rate_key(task: Task, model: ModelDescriptor) -> tuple[Task | AdapterTask, float, str]:
    """Return (row, number of parameters, what these are called) by which the table of learning rates is read.

    Parameters are those that a token uses, without adapters; called "parameters" or, with experts, "active parameters".
    """
    bare = model if model.adapter is None else model.model_copy(update={"adapter": None})
    unit = "parameters" if model.experts is None else "active parameters"
    return learning_rate.row(task, adapters=model.adapter is not None), parameters(bare).active, unit


def precisions(cluster: ClusterDescriptor, job: Job) -> list[Precision]:
    """Return the precisions to search: the pinned one, else the job's, whether or not the GPU has it.

    For "auto" bf16 (fp16 if the GPU has no bf16), then the backend's low precisions, as far as the GPU has them; empty
    for an unknown name.
    """
    wanted = parse(job.pins).words.get("precision") or job.precision
    if wanted != "auto":
        return [name for name in PRECISIONS if name == wanted]
    peaks = cluster.gpu.peak_flops
    plain: Precision = "bf16" if peaks.bf16 is not None else "fp16"
    names = [plain, *BACKENDS[job.backend].low_precisions]
    return [name for name in names if getattr(peaks, name) is not None]


def run(
    model: ModelDescriptor,
    cluster: ClusterDescriptor,
    job: Job,
    top: int,
    progress: Progress | None = None,
    like: Setup | None = None,
) -> Incumbents:
    """Search all that the job leaves open, simulate the best candidates (`refine`), and return those that fit, if any.

    Candidates that nearly fit are simulated, too, and variants with the layers per stage that the stage solver finds,
    so that others than the search found may come back. like: a configuration whose options and framework are the plain
    ones; None: the framework's. top: plans to show. Otherwise as `weigh_all`, also what is raised.
    """
    weighed = weigh_all(model, cluster, job, top, progress, like=like)
    weighed.simulated = refine(weighed)
    return weighed


def weigh_all(
    model: ModelDescriptor,
    cluster: ClusterDescriptor,
    job: Job,
    top: int,
    progress: Progress | None = None,
    any_will_do: bool = False,
    like: Setup | None = None,
) -> Incumbents:
    """Return the incumbents of a search over all precisions and options, not simulated; none if nothing fits.

    They are priced by the formula for the schedule, with uneven expert loads in memory if `weighs_loads`. Up to
    max(top, KEPT) families are kept. any_will_do: stop each precision's search as soon as there is a plan. like: as of
    `run`. A precision that contradicts the pins is skipped; the first such InputError is raised if all do.
    """
    weighed = Incumbents(max(top, KEPT), top, any_will_do)
    refused: list[InputError] = []
    every = precisions(cluster, job)
    for precision in every:
        try:
            wanted = requests(model, cluster, job, precision, like)
        except InputError as error:  # a pin that goes with another precision
            refused.append(error)
            continue
        ways = tuple(replace(each, uneven=weighs_loads(job)) for each in wanted)
        branch_and_bound(ways, machine(cluster, precision, gpus=ways[0].gpus), weighed, progress)
    if refused and len(refused) == len(every):
        raise refused[0]
    return weighed


def weighs_loads(job: Job) -> bool:
    """Return whether plans must fit with uneven expert loads: a risk limit is set and no imbalance is stated."""
    return job.limits.memory_risk < NO_LIMIT and job.limits.expert_imbalance is None


def requests(
    model: ModelDescriptor, cluster: ClusterDescriptor, job: Job, precision: Precision, like: Setup | None = None
) -> tuple[Request, ...]:
    """Return the requests of a job in one precision, one per combination of options that the pins and the target allow,
    the plainest first.

    like: a configuration whose framework is priced and whose options are tried last, too, unless one is pinned; None:
    the framework's usual ones. Raises InputError for a pin, or a combination of pins, that the target does not support.
    """
    plain = request(model, cluster, job, precision, like)
    return extras.requests(plain, cluster.gpu.architecture, usual=like is None)


def request(
    model: ModelDescriptor, cluster: ClusterDescriptor, job: Job, precision: Precision, like: Setup | None = None
) -> Request:
    """Return the request of a resolved job in one precision, with the framework's plain options, or those of `like`.

    like: as of `requests`. Memory is that with even expert loads until the caller sets `uneven`.
    """
    framework = usual_of(cluster, job, precision) if like is None else like.framework
    options = {"grad_bytes": gradient_bytes(framework)} if like is None else picked(like, *NAMES)
    made = Request(
        model=model,
        job=job,
        framework=framework,
        version=BACKENDS[job.backend].releases.of(job),
        limits=space(model, cluster, job, like),
        pins=parse(job.pins),
        configuration=Configuration(
            dp=int(job.gpus),
            micro=1,
            global_batch=job.global_batch_size,
            seq_length=int(job.seq_length or 0),
            precision=precision,
            **options,
        ),
        surprise=surprise(model, cluster, job.limits.memory_risk),
        usual=usual_layouts(model, cluster, job),
    )
    return extras.switched_on(made)


def space(model: ModelDescriptor, cluster: ClusterDescriptor, job: Job, like: Setup | None = None) -> Limits:
    """Return the limits of the job's framework and target for this model, with layouts as the job's pins ask.

    Experimental options that the job does not allow are refused, but for those that `like` has on. Full recompute of
    some layers is added for DeepSpeed (the first ones), and for FSDP under transformers or without a target (each n-th
    layer, if all are of one kind). A pinned layout string may place multi-token prediction before the loss's chunk from
    LAYOUT_MTP_ALONE_SINCE on; the longer messages of such a layout are not part of the prediction.
    """
    version, fixed, pins = BACKENDS[job.backend].releases.of(job), facts_of(model, cluster, job), parse(job.pins)
    has = NOTHING_KNOWN if like is None else ConfigurationSet(**columns(like), precision=job.precision)
    able = limits(job.backend, version, model, fixed, (*excluded_options(job, fixed, has), *of_program(job.target)))
    if job.backend == "deepspeed":
        able = replace(able, block_recompute=able.full_recompute)
    alike = len({kind for kind in sequence(model) if is_layer(kind)}) == 1
    if job.backend == "fsdp" and job.target in (None, "transformers") and alike:  # the Trainer's every_n_layers
        able = replace(able, block_recompute=able.full_recompute, every_nth=True)
    if job.target in ENDS_ONLY:
        able = replace(able, layouts=able.layouts.dealt(ends=not hybrid(model)))
    if job.target in TOWER_IN_FIRST_CHUNK and model.vision is not None:
        able = replace(able, layouts=replace(able.layouts, first=len(model.vision.deepstack_visual_indexes)))
    if pins.dealt is not None:
        return replace(able, layouts=able.layouts.dealt(ends=pins.dealt == ENDS))
    if pins.layout is None:
        return able
    together = megatron_release(version) < megatron_release(LAYOUT_MTP_ALONE_SINCE)
    return replace(able, layouts=replace(able.layouts, mtp_with_head=together))


def usual_of(cluster: ClusterDescriptor, job: Job, precision: str | None = None) -> Framework:
    """Return the job's framework with its defaults on this GPU, with attention and optimizer of the job.

    It has the switches of the target's program, else of the backend's default program, if any. For Megatron-LM without
    its fused router on this GPU or release, routing is priced as sorted. precision: of matmuls, which decides the
    optimizer's state; None: the framework's.
    """
    architecture = cluster.gpu.architecture
    own = usual(job.backend, architecture, attention=job.attention)
    otherwise = PROGRAMS.get((job.target or "", job.backend), PROGRAMS.get(("", job.backend)))
    as_run = own if otherwise is None else switched(own, architecture, otherwise)
    routes = architecture not in NO_ENGINE and flags(job.megatron_version).known("--moe-router-fusion")
    if job.backend == "megatron" and not routes:
        as_run = switched(as_run, architecture, Switches(implementation={"routing": "fused_sort"}))
    return stepping(as_run, job.optimizer, precision)


def fits(model: ModelDescriptor, cluster: ClusterDescriptor, job: Job) -> bool:
    """Return whether the job has any plan; False without a search if it is `too_large`.

    The search stops at the first plan; without one, other layers per stage are tried for candidates that nearly fit.
    Raises InputError if the pins contradict every precision.
    """
    if too_large(model, cluster, job):
        return False
    weighed = weigh_all(model, cluster, job, 1, any_will_do=True)
    if not weighed.families:  # some may fit with other layers per stage
        refine(weighed)
    return bool(weighed.families)


def too_large(model: ModelDescriptor, cluster: ClusterDescriptor, job: Job, like: Setup | None = None) -> bool:
    """Return whether weights and optimizer states exceed the memory of all GPUs, so that no plan can fit.

    The hosts' memory counts, too, where offload is possible. Trained weights count at most EIGHT_BIT_BYTES, frozen ones
    FOUR_BIT_BYTES, a matrix optimizer its smaller state. like: as of `run`.
    """
    limits = space(model, cluster, job, like)
    moved = {offload for stage in limits.offloads for offload in stage}
    host = HOST_SHARE * cluster.host.memory_bytes.value / cluster.gpus_per_node
    framework = usual_of(cluster, job) if like is None else like.framework
    sizes, matrices = framework.bytes, framework.orthogonal
    state = sizes.optimizer if matrices is None else min(sizes.optimizer, matrices.state)
    least = state + min(sizes.weight, EIGHT_BIT_BYTES)
    counted = parameters(model, with_mtp=False)
    on_host = any(offload.optimizer or offload.weights for offload in moved)
    held = least * counted.trainable + FOUR_BIT_BYTES * (counted.total - counted.trainable)
    return held > int(job.gpus) * (cluster.gpu.memory_bytes.value + on_host * host)
