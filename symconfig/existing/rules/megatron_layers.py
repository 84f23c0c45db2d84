"""How layers are dealt out over pipeline stages: several ways of saying it lose or double some without a word."""

from __future__ import annotations

from collections.abc import Iterator

from symconfig.errors import Problem
from symconfig.existing.recover.mixers import spelled
from symconfig.existing.rules.facts import FIRST, LAST, LAYOUT, MegatronFacts, NotKnown
from symconfig.existing.rules.known import PER_CHUNK
from symconfig.existing.rules.megatron_grid import PP, divides
from symconfig.existing.rules.rule import Rules
from symconfig.frameworks.megatron.hybrid import STAGE
from symconfig.frameworks.megatron.releases import LAYOUT_MTP_ALONE_SINCE
from symconfig.plans import pipeline_layout

ACCOUNTS = ("account_for_embedding_in_pipeline_split", "account_for_loss_in_pipeline_split")
CHUNKS = "num_virtual_stages_per_pipeline_rank"
WAYS = ((FIRST, LAST), ACCOUNTS, (LAYOUT,))
LAST_ALONE_SINCE = "core_v0.14.0"

MEGATRON: Rules[MegatronFacts] = Rules()


def _way(facts: MegatronFacts) -> tuple[str, ...]:
    """Return the one way in which the stages are said; () for equal shares. NotKnown where there are several, which has
    a rule of its own.
    """
    ways = [way for way in WAYS if any(facts.value(dest) for dest in way)]
    if len(ways) > 1:
        raise NotKnown
    return ways[0] if ways else ()


def _ends(facts: MegatronFacts) -> dict[str, int]:
    return {dest: value for dest in (FIRST, LAST) if (value := facts.maybe(dest)) is not None}


def _named(facts: MegatronFacts, dests: tuple[str, ...] | dict[str, int]) -> str:
    settings = (facts.names.setting(dest) for dest in dests)
    return " ".join(setting.spelled for setting in settings if setting is not None)


@MEGATRON.rule(
    "stages-said-twice",
    "error",
    "The stages are said in several ways",
    "TransformerConfig refuses a layout beside the others; --decoder-first/last-pipeline-num-layers beside "
    "--account-for-... is checked for neither, and layers are lost (transformer_config.py, transformer_block.py, "
    "get_num_layers_to_build).",
    "--pipeline-model-parallel-size 4 --num-layers 32 --decoder-first-pipeline-num-layers 5 "
    "--account-for-loss-in-pipeline-split",
)
def _several(facts: MegatronFacts) -> Iterator[Problem]:
    ways = [way for way in WAYS if any(facts.value(dest) for dest in way)]
    if len(ways) > 1:
        given = tuple(dest for way in ways for dest in way if facts.value(dest))
        yield facts.problem("say the stages in several ways", given[0], field=_named(facts, given), need="one of them")


@MEGATRON.rule(
    "layers-over-stages",
    "error",
    "The layers cannot be divided by the pipeline stages",
    "Sources before the check drop the remainder in silence: 28 layers of 30 were trained (Megatron-LM#1304, #823). "
    "validate_args now asserts it.",
    "--num-layers 30 --pipeline-model-parallel-size 4",
)
def _equal(facts: MegatronFacts) -> Iterator[Problem]:
    if STAGE in spelled(facts.names):
        return  # a pattern says the stages itself
    if _way(facts) in ((), ACCOUNTS):
        yield from divides(facts, "the layers", "num_layers", _counted(facts), by=facts.pp, named="pp", related=(PP,))


def _counted(facts: MegatronFacts) -> int:
    """Return the layers, and what counts as one."""
    return facts.number("num_layers") + sum(facts.on(dest) for dest in ACCOUNTS)


@MEGATRON.rule(
    "layers-over-virtual-stages",
    "error",
    "A stage's layers cannot be divided by its virtual stages",
    "What is left over is lost: 80 layers on 16 stages with two layers a virtual stage trained 64 (Megatron-LM#468). "
    "Releases with the check refuse (validate_args, transformer_config.py).",
    "--num-layers 80 --pipeline-model-parallel-size 8 --num-layers-per-virtual-pipeline-stage 3",
    gpus=8,
)
def _virtual(facts: MegatronFacts) -> Iterator[Problem]:
    if _way(facts) not in ((), ACCOUNTS):
        return
    held = _counted(facts) // facts.pp
    if (per_chunk := facts.maybe(PER_CHUNK)) is not None:
        yield from divides(
            facts, "a stage's layers", PER_CHUNK, held, by=per_chunk, named="the layers of a virtual stage"
        )
    elif (virtual := facts.maybe(CHUNKS) or 1) > 1:
        yield from divides(facts, "a stage's layers", CHUNKS, held, by=virtual, named="vpp")


@MEGATRON.rule(
    "uneven-stages",
    "error",
    "First and last stage leave no equal share to the others",
    "The stages then do not hold --num-layers: with one pipeline stage Megatron-LM builds just the number of the last "
    "(Megatron-LM#1778: one layer of 20), with two it loses what the two do not hold.",
    "--num-layers 20 --decoder-last-pipeline-num-layers 1",
)
def _uneven(facts: MegatronFacts) -> Iterator[Problem]:
    ends = _ends(facts)
    if not ends or _way(facts) != (FIRST, LAST):
        return
    layers = facts.number("num_layers")
    left, stages = layers - sum(ends.values()), facts.pp - len(ends)
    if stages < 0 or left < 0 or (stages == 0 and left) or (stages > 0 and (left % stages or not left)):
        yield facts.problem(
            "the stages do not hold all layers",
            next(iter(ends)),
            field=_named(facts, ends),
            got=" + ".join(map(str, ends.values())),
            need=f"what leaves an equal share of {layers} layers to each of {max(stages, 0)} stages between",
        )


@MEGATRON.rule(
    "uneven-virtual-stages",
    "error",
    "Uneven stages cannot be divided by their virtual stages",
    "TransformerConfig asks each stage for a multiple of the virtual stages (transformer_config.py, __post_init__).",
    "--num-layers 32 --pipeline-model-parallel-size 4 --decoder-first-pipeline-num-layers 7 "
    "--decoder-last-pipeline-num-layers 9 --num-virtual-stages-per-pipeline-rank 2",
)
def _uneven_virtual(facts: MegatronFacts) -> Iterator[Problem]:
    ends, virtual = _ends(facts), facts.maybe(CHUNKS) or 1
    if not ends or virtual < 2 or _way(facts) != (FIRST, LAST):
        return
    left, stages = facts.number("num_layers") - sum(ends.values()), facts.pp - len(ends)
    if stages > 0 and left > 0 and not left % stages:
        yield from divides(
            facts,
            "a stage's layers",
            next(iter(ends)),
            left // stages,
            by=virtual,
            named="vpp",
            field=_named(facts, ends),
        )
    for dest, value in ends.items():
        yield from divides(facts, "a stage's layers", dest, value, by=virtual, named="vpp")


@MEGATRON.rule(
    "last-stage-alone",
    "error",
    "A last stage with virtual ones needs a first stage beside it",
    "transformer_layer.py, get_transformer_layer_offset counts the layers of a first stage that has no number as 0: "
    "virtual stages hold some layers twice and others never (Megatron-LM#1584).",
    "--num-layers 32 --pipeline-model-parallel-size 4 --decoder-last-pipeline-num-layers 8 "
    "--num-virtual-stages-per-pipeline-rank 2",
    until="core_v0.13.0",
)
def _last_alone(facts: MegatronFacts) -> Iterator[Problem]:
    ends = _ends(facts)
    if LAST in ends and FIRST not in ends and (facts.maybe(CHUNKS) or 1) > 1:
        yield facts.problem(
            "alone doubles the layers of virtual stages and loses others",
            LAST,
            got=ends[LAST],
            need=f"{facts.option(FIRST)} beside it, or Megatron-LM from {LAST_ALONE_SINCE} on",
        )


@MEGATRON.rule(
    "layers-of-layout",
    "error",
    "The layout string does not hold the model",
    "Its letters must be the embedding, every layer, the multi-token predictions and the loss, each once and in this "
    "order (pipeline_parallel_layer_layout.py, validate_layer_layout).",
    "--num-layers 8 --pipeline-model-parallel-size 2 --pipeline-model-parallel-layout Et*4|t*3L",
    since="core_v0.13.0",
)
def _layout(facts: MegatronFacts) -> Iterator[Problem]:
    layout = facts.text(LAYOUT)
    if layout is None:
        return
    for problem in pipeline_layout.problems(
        layout, facts.number("num_layers"), facts.maybe("mtp_num_layers") or 0, facts.option(LAYOUT)
    ):
        yield facts.problem(problem.what, LAYOUT, got=problem.got, need=problem.need, hint=problem.hint)


@MEGATRON.rule(
    "layout-over-stages",
    "error",
    "The layout's chunks cannot be divided by the pipeline stages",
    "validate_args asserts it: each stage holds the same number of chunks.",
    "--num-layers 8 --pipeline-model-parallel-size 2 --pipeline-model-parallel-layout Et*4|t*2|t*2L",
    since="core_v0.13.0",
)
def _layout_chunks(facts: MegatronFacts) -> Iterator[Problem]:
    if (layout := facts.text(LAYOUT)) is not None:
        yield from divides(
            facts, "the chunks of the layout", LAYOUT, len(pipeline_layout.expanded(layout)), by=facts.pp, named="pp"
        )


@MEGATRON.rule(
    "layout-and-virtual-stages",
    "error",
    "A layout says the virtual stages, too",
    "validate_args takes one of --pipeline-model-parallel-layout, --num-virtual-stages-per-pipeline-rank and "
    "--num-layers-per-virtual-pipeline-stage.",
    "--num-layers 8 --pipeline-model-parallel-size 2 --num-virtual-stages-per-pipeline-rank 2 "
    "--num-layers-per-virtual-pipeline-stage 2",
)
def _virtual_twice(facts: MegatronFacts) -> Iterator[Problem]:
    given = tuple(dest for dest in (LAYOUT, CHUNKS, PER_CHUNK) if facts.value(dest) is not None)
    if len(given) > 1:
        yield facts.problem(
            "say the virtual stages in several ways", given[0], field=_named(facts, given), need="one of them"
        )


@MEGATRON.rule(
    "layout-of-mtp",
    "error",
    "Multi-token prediction lies where Megatron-LM does not build it",
    "core_v0.14 builds it on the last stage whatever the layout says (what it means to refuse is a tuple, which is "
    "true), core_v0.15 fails, and no release takes it on the first stage.",
    "--num-layers 8 --mtp-num-layers 1 --pipeline-model-parallel-size 4 --position-embedding-type rope "
    "--pipeline-model-parallel-layout Et*2|t*2|t*4m|L",
    since="core_v0.14.0",
    until="core_v0.15.0",
)
def _layout_mtp(facts: MegatronFacts) -> Iterator[Problem]:
    yield from (problem for problem, early in _before_loss(facts) if not early)


@MEGATRON.rule(
    "layout-of-mtp-first",
    "error",
    "Multi-token prediction lies on the first stage",
    "validate_layer_layout refuses it for all chunks of the first stage but the last, where the model's builder does "
    "(pipeline_parallel_layer_layout.py, multi_token_prediction.py).",
    "--num-layers 8 --mtp-num-layers 1 --pipeline-model-parallel-size 2 --position-embedding-type rope "
    "--pipeline-model-parallel-layout Et*4|t*4|m|L",
    since="core_v0.14.0",
)
def _layout_mtp_first(facts: MegatronFacts) -> Iterator[Problem]:
    yield from (problem for problem, early in _before_loss(facts) if early)


def _before_loss(facts: MegatronFacts) -> Iterator[tuple[Problem, bool]]:
    """Yield where multi-token prediction lies in a chunk before the last, and whether that is on the first stage."""
    layout = facts.text(LAYOUT)
    if layout is None:
        return
    alone = [place for place, chunk in enumerate(pipeline_layout.expanded(layout)[:-1]) if "m" in chunk]
    if alone:
        yield (
            facts.problem(
                "multi-token prediction lies before the loss",
                LAYOUT,
                got=repr(layout),
                need=f"mL, or Megatron-LM from {LAYOUT_MTP_ALONE_SINCE} on",
            ),
            False,
        )
    if any(place % facts.pp == 0 for place in alone):
        yield (
            facts.problem(
                "multi-token prediction lies on the first stage", LAYOUT, got=repr(layout), need="it on a later one"
            ),
            True,
        )


@MEGATRON.rule(
    "virtual-stages-without-pipeline",
    "error",
    "Virtual stages need several pipeline stages",
    "validate_args asserts pp > 1 for the interleaved schedule, and pp > 2 with --no-overlap-p2p-communication.",
    "--num-virtual-stages-per-pipeline-rank 2",
)
def _no_pipeline(facts: MegatronFacts) -> Iterator[Problem]:
    least = 2 if facts.on("overlap_p2p_comm") else 3
    if facts.chunks > 1 and facts.pp < least:
        yield facts.problem(
            "the interleaved schedule needs more pipeline stages",
            PP,
            CHUNKS,
            PER_CHUNK,
            LAYOUT,
            got=facts.pp,
            need=f"{least} or more",
        )
