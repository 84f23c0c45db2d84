"""What symconfig refuses although Megatron's parser lets it pass, computed from the argument list itself.

Found by running core_v0.12 to core_v0.19: each of these parses in at least one of them, and then fails in the
first step, loses layers in silence, or trains another model.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

from symconfig import pipeline_layout
from symconfig.errors import Problem
from symconfig.targets import LAYOUT_MTP_ALONE_SINCE
from symconfig.verify.megatron_arguments import FILE, ArgumentList

Rule = Callable[[ArgumentList, int], Iterator[Problem]]
TP, PP, CP = "--tensor-model-parallel-size", "--pipeline-model-parallel-size", "--context-parallel-size"
EP, ETP = "--expert-model-parallel-size", "--expert-tensor-parallel-size"
LAYOUT = "--pipeline-model-parallel-layout"
COUNTS = FIRST, LAST = "--decoder-first-pipeline-num-layers", "--decoder-last-pipeline-num-layers"
ACCOUNTS = ("--account-for-embedding-in-pipeline-split", "--account-for-loss-in-pipeline-split")
LAST_ALONE_SINCE = "core_v0.14.0"


def refuse(args: ArgumentList, world_size: int, file: str = FILE) -> list[Problem]:
    """Every rule that `args` breaks on `world_size` GPUs."""
    return [_placed(problem, file) for rule in RULES for problem in rule(args, world_size)]


def _placed(problem: Problem, file: str) -> Problem:
    return Problem(problem.what, file=file, field=problem.field, got=problem.got, need=problem.need, hint=problem.hint)


def _divides(what: str, field: str, value: int, by: int, named: str) -> Iterator[Problem]:
    if by < 1 or value % by:
        yield Problem(f"{what} cannot be divided", field=field, got=str(value), need=f"a multiple of {named} = {by}")


def _repeated(args: ArgumentList, world_size: int) -> Iterator[Problem]:
    for option in args.repeated:
        yield Problem("is given more than once, and the last one wins in silence", field=option, need="it once")


def _positive(args: ArgumentList, world_size: int) -> Iterator[Problem]:
    for option in (TP, PP, CP, EP, ETP, "--num-layers", "--hidden-size", "--num-attention-heads",
                   "--micro-batch-size", "--global-batch-size", "--seq-length"):
        value = args.maybe(option)
        if value is not None and value < 1:
            yield Problem("must be positive", field=option, got=str(value), need="1 or more")


def _world(args: ArgumentList, world_size: int) -> Iterator[Problem]:
    model = args.number(TP) * args.number(PP) * args.number(CP)
    yield from _divides("the number of GPUs", "world size", world_size, model, "tp x pp x cp")


def _batch(args: ArgumentList, world_size: int) -> Iterator[Problem]:
    replicas = world_size // max(1, args.number(TP) * args.number(PP) * args.number(CP))
    micro, whole = args.maybe("--micro-batch-size"), args.maybe("--global-batch-size")
    if micro is None or whole is None:
        missing = "--micro-batch-size" if micro is None else "--global-batch-size"
        yield Problem("is missing: the batch would follow from the number of GPUs", field=missing, need="a number")
    else:
        yield from _divides("the global batch", "--global-batch-size", whole, micro * replicas, "micro batch x dp")


def _heads(args: ArgumentList, world_size: int) -> Iterator[Problem]:
    heads, tp = args.number("--num-attention-heads"), args.number(TP)
    yield from _divides("the attention heads", "--num-attention-heads", heads, tp, "tp")
    groups = args.number("--num-query-groups")
    if not args.has("--group-query-attention"):
        if args.has("--num-query-groups") and groups != heads:
            yield Problem("is ignored: every head gets its own keys and values", field="--num-query-groups",
                          got=str(groups), need="--group-query-attention beside it")
        return
    yield from _divides("the attention heads", "--num-attention-heads", heads, groups, "the query groups")
    if groups % tp and tp % groups:
        yield Problem("the query groups do not spread over the tensor-parallel ranks", field="--num-query-groups",
                      got=f"{groups} with tp {tp}", need="a multiple or a divisor of tp")


def _sizes(args: ArgumentList, world_size: int) -> Iterator[Problem]:
    tp = args.number(TP)
    if (ffn := args.maybe("--ffn-hidden-size")) is not None:
        yield from _divides("the MLP", "--ffn-hidden-size", ffn, tp, "tp")
    cp, seq = args.number(CP), args.number("--seq-length")
    if cp > 1:
        yield from _divides("the sequence", "--seq-length", seq, 2 * cp, "2 cp")
    if args.has("--sequence-parallel"):
        yield from _divides("the sequence", "--seq-length", seq, tp * cp, "tp x cp with sequence parallelism")


def _experts(args: ArgumentList, world_size: int) -> Iterator[Problem]:
    experts, tp = args.number("--num-experts", 0), args.number(TP)
    ep, etp = args.number(EP), args.number(ETP, tp)
    if not experts:
        if ep > 1:
            yield Problem("without experts", field=EP, got=str(ep), need="--num-experts, or 1")
        return
    yield from _divides("the experts", "--num-experts", experts, ep, "ep")
    inner = world_size // max(1, args.number(PP))
    yield from _divides("a pipeline stage", EP, inner, ep * etp, "ep x etp")
    size = args.maybe("--moe-ffn-hidden-size") or args.number("--ffn-hidden-size", 0)
    yield from _divides("an expert", "--moe-ffn-hidden-size", size, etp, "etp")
    if (shared := args.number("--moe-shared-expert-intermediate-size", 0)) > 0:
        yield from _divides("the shared expert", "--moe-shared-expert-intermediate-size", shared, tp, "tp")
    if tp > 1 and not args.has("--sequence-parallel"):
        yield Problem("experts with tensor parallelism fail in the first step without sequence parallelism",
                      field="--sequence-parallel", got="absent", need="it", hint="add --sequence-parallel")
    topk = args.number("--moe-router-topk", 2)
    if topk > experts:
        yield Problem("is more than there are experts", field="--moe-router-topk", got=str(topk),
                      need=f"up to {experts}")
    if groups := args.number("--moe-router-num-groups", 0):
        yield from _divides("the experts", "--num-experts", experts, groups, "the router's groups")


def _layers(args: ArgumentList, world_size: int) -> Iterator[Problem]:
    """Layers are lost or doubled when the stages do not hold exactly --num-layers."""
    layers, pp = args.number("--num-layers"), args.number(PP)
    ways = [group for group in (COUNTS, ACCOUNTS, (LAYOUT,)) if any(map(args.has, group))]
    if len(ways) > 1:
        given = [option for group in ways for option in group if args.has(option)]
        yield Problem("say the stages in several ways", field=" ".join(given), need="one of them")
        return
    if args.has(LAYOUT):
        yield from _layout(args, layers, pp)
        return
    virtual = args.number("--num-virtual-stages-per-pipeline-rank")
    ends = {option: args.maybe(option) for option in COUNTS}
    if any(value is not None for value in ends.values()):
        yield from _uneven(args, ends, layers, pp, virtual)
        return
    counted = layers + sum(map(args.has, ACCOUNTS))
    yield from _divides("the layers", "--num-layers", counted, pp, "pp")
    per_chunk = args.maybe("--num-layers-per-virtual-pipeline-stage")
    if per_chunk is not None:
        yield from _divides("a stage's layers", "--num-layers-per-virtual-pipeline-stage", counted // pp, per_chunk,
                            "the layers of a virtual stage")
    elif virtual > 1:
        yield from _divides("a stage's layers", "--num-virtual-stages-per-pipeline-rank", counted // pp, virtual, "vpp")


def _uneven(
    args: ArgumentList, ends: Mapping[str, int | None], layers: int, pp: int, virtual: int
) -> Iterator[Problem]:
    given = {option: value for option, value in ends.items() if value is not None}
    left, stages = layers - sum(given.values()), pp - len(given)
    if stages < 0 or left < 0 or (stages == 0 and left) or (stages > 0 and (left % stages or not left)):
        yield Problem("the stages do not hold all layers", field=" ".join(given),
                      got=" + ".join(map(str, given.values())),
                      need=f"what leaves an equal share of {layers} layers to each of {max(stages, 0)} stages between")
    elif stages:
        yield from _divides("a stage's layers", " ".join(given), left // stages, virtual, "vpp")
    for option, value in given.items():
        yield from _divides("a stage's layers", option, value, virtual, "vpp")
    if virtual > 1 and FIRST not in given and not args.at_least(LAST_ALONE_SINCE):
        # transformer_layer.py, get_transformer_layer_offset: counts the layers of a first stage that has no number as 0
        yield Problem("alone doubles the layers of virtual stages and loses others", field=LAST,
                      got=str(given[LAST]), need=f"{FIRST} beside it, or Megatron-LM from {LAST_ALONE_SINCE} on")


def _layout(args: ArgumentList, layers: int, pp: int) -> Iterator[Problem]:
    layout = args.text(LAYOUT) or ""
    yield from pipeline_layout.problems(layout, layers, args.number("--mtp-num-layers", 0), LAYOUT)
    chunks = pipeline_layout.expanded(layout)
    yield from _divides("the chunks of the layout", LAYOUT, len(chunks), pp, "pp")
    alone = [place for place, chunk in enumerate(chunks[:-1]) if "m" in chunk]
    if alone and not args.at_least(LAYOUT_MTP_ALONE_SINCE):
        # core_v0.14 builds it on the last stage all the same: what it means to refuse is a tuple, which is true
        yield Problem("multi-token prediction lies before the loss", field=LAYOUT, got=repr(layout),
                      need=f"mL, or Megatron-LM from {LAYOUT_MTP_ALONE_SINCE} on")
    if any(place % pp == 0 for place in alone):
        yield Problem("multi-token prediction lies on the first stage", field=LAYOUT, got=repr(layout),
                      need="it on a later one")


def _interleaving(args: ArgumentList, world_size: int) -> Iterator[Problem]:
    """schedules.py: the group lies in [pp, m]; what is left over is nothing, or at least pp."""
    pp = args.number(PP)
    layout = args.text(LAYOUT)
    chunks = (len(pipeline_layout.expanded(layout)) // pp if layout is not None
              else 2 if args.maybe("--num-layers-per-virtual-pipeline-stage") is not None
              else args.number("--num-virtual-stages-per-pipeline-rank"))
    if pp < 2 or chunks < 2:
        return
    replicas = max(1, world_size // max(1, args.number(TP) * pp * args.number(CP)))
    count = args.number("--global-batch-size") // max(1, args.number("--micro-batch-size") * replicas)
    option = "--microbatch-group-size-per-virtual-pipeline-stage"
    group = args.number(option, pp)
    left = count % group if group else 0
    if not pp <= group <= count or 0 < left < pp:
        yield Problem("does not fit the interleaved schedule", field=option, got=f"{group} of {count} microbatches",
                      need=f"between pp {pp} and their number, with nothing or at least {pp} left over")


RULES: tuple[Rule, ...] = (_repeated, _positive, _world, _batch, _heads, _sizes, _experts, _layers, _interleaving)
