"""Whether a run of a new plan can go on from what a run of an old plan saved: the rules of rules.yaml, evaluated."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from typing import Any

from symconfig.descriptor.model import ModelDescriptor
from symconfig.descriptor.sections import Experts
from symconfig.errors import InputError, nearest
from symconfig.format import picked
from symconfig.frameworks.backend import Kind
from symconfig.frameworks.known import BACKENDS, megatron_optimizer
from symconfig.frameworks.megatron.releases import between
from symconfig.plans.configuration import DEGREES, ZERO_STAGES, ZeroStage
from symconfig.plans.plan import Plan
from symconfig.runs.checkpoint.facts import closes, holding
from symconfig.runs.checkpoint.folder import Checkpoint, Plain
from symconfig.runs.checkpoint.table import Loadable, Reason, Rule, Step, Verdict, table, worst


@dataclass(frozen=True, slots=True)
class Saving:
    """A way in which a run saves. kind: the checkpoint that it writes; options: the run's options for it, "" by
    default; costs: its disadvantages; source: where that is documented.
    """

    kind: str
    options: str = ""
    costs: str = ""
    source: str = ""


def savings(plan: Plan) -> tuple[Saving, ...]:
    """Return the ways in which a plan's run can save: first as its files do, then, with ZeRO, those of the same format
    and release that need further options.
    """
    usual = written(plan)
    # Without ZeRO nothing is shared out among replicas.
    ways = table().formats[usual.format].optimizer if plan.best.configuration.zero_stage > 0 else {}
    release = plan.best.target.version
    return Saving(str(usual)), *(
        Saving(str(Kind(usual.format, name)), way.options, way.costs, way.source)
        for name, way in ways.items()
        if way.options and between(release, way.since, way.until)
    )


def written(plan: Plan) -> Kind:
    """Return the checkpoint's kind that the plan's rendered files write."""
    best = plan.best
    return BACKENDS[best.target.backend].writes(best.configuration.zero_stage, best.target.version)


def named(name: str | None, plan: Plan) -> Kind:
    """Return the kind of a name, `format` or `format:optimizer`; None: the one that the plan's files write. Without an
    optimizer's layout it is the release's usual one, if the format has any. Raises InputError for a kind that the
    plan's release neither writes nor can be converted to.
    """
    if name is None:
        return written(plan)
    target, known = plan.best.target, kinds(plan)
    first, _, optimizer = name.partition(":")
    if name not in known and name not in {kind.partition(":")[0] for kind in known}:
        what = f"is no checkpoint of {target.backend} {target.version}"
        need = f"one of {', '.join(known)}"
        raise InputError(what, field="kind", got=repr(name), need=need, hint=nearest(name, known))
    if not optimizer and table().formats[first].optimizer:
        optimizer = megatron_optimizer(plan.best.configuration.zero_stage, target.version)
    return Kind(first, optimizer)


def kinds(plan: Plan) -> tuple[str, ...]:
    """Return the names, `format` or `format:optimizer`, of all kinds that the plan's release can write or be converted
    to.
    """
    framework, release = plan.best.target.backend, plan.best.target.version
    return tuple(
        f"{word}:{optimizer}" if optimizer else word
        for word, entry in table().formats.items()
        if framework in entry.framework and between(release, entry.since, entry.until)
        for optimizer in [way for way, span in entry.optimizer.items() if between(release, span.since, span.until)]
        or [""]
    )


def loadable(old: Plan, new: Plan, kind: str | None = None) -> Loadable:
    """Return whether and how a run of `new` can load a checkpoint of `old`, by the rules of rules.yaml. kind: the
    checkpoint's; None: the one that the old plan's files write. The worst verdict of all matching rules counts (AS_IS
    without any); `how` is empty for NO. `otherwise` is the verdict without conversions, its steps only if the verdict
    needs one. Raises InputError for a kind that the old plan's framework or release does not have.
    """
    checkpoint = named(kind, old)
    changed = holding(old, new)
    rules = [rule for rule in table().rules if _holds(rule, checkpoint, old, new, changed)]
    verdict = worst(rule.verdict for rule in rules)
    otherwise = worst(rule.otherwise or rule.verdict for rule in rules)
    telling = sorted((rule for rule in rules if _tells(rule, verdict)), key=lambda rule: -rule.verdict.rank)

    def what(rule: Rule) -> str:
        """Return the texts of the changed facts that a rule names, without repeats."""
        return ", ".join(dict.fromkeys(changed[name] for name in (*rule.any_of, *rule.all_of) if name in changed))

    def steps(level: Verdict) -> tuple[Step, ...]:
        """Return the steps for a verdict; () for NO."""
        wanted = {name for rule in rules for name in _steps(rule, level)}
        return () if level is Verdict.NO else way(checkpoint.format, wanted, old, new)

    return Loadable(
        kind=str(checkpoint),
        verdict=verdict,
        otherwise=otherwise,
        how=steps(verdict),
        otherwise_how=steps(otherwise) if verdict is Verdict.CONVERTED else (),
        lost=tuple(dict.fromkeys(table().lost[name] for rule in telling for name in rule.lost)),
        reasons=tuple(Reason(rule.says.format(changed=what(rule)), rule.source) for rule in telling),
    )


def of_folder(checkpoint: Checkpoint, new: Plan, old: Plan | None = None) -> Loadable:
    """Return whether and how a run of `new` can load a folder's checkpoint; unstated facts are those of `old`, else of
    `new`."""
    return loadable(supposed(checkpoint, old or new), new, checkpoint.kind)


def _holds(rule: Rule, kind: Kind, old: Plan, new: Plan, changed: Mapping[str, str]) -> bool:
    """Return whether a rule applies to this kind (its format, and its optimizer if the rule names any), the old release
    as writer, the new one as reader, and the facts in `changed`: one of any_of (unless that is empty), all of all_of,
    none of none_of. Between frameworks only rules apply that are `across` or name the fact "framework".
    """
    if kind.format not in rule.formats or (rule.optimizer and kind.optimizer not in rule.optimizer):
        return False
    if "framework" in changed and not rule.across and "framework" not in (*rule.any_of, *rule.all_of):
        return False
    return (
        between(old.best.target.version, rule.written_since, rule.written_until)
        and between(new.best.target.version, rule.read_since, rule.read_until)
        and (not rule.any_of or any(name in changed for name in rule.any_of))
        and all(name in changed for name in rule.all_of)
        and not any(name in changed for name in rule.none_of)
    )


def _steps(rule: Rule, level: Verdict) -> tuple[str, ...]:
    """Return the names of a rule's conversions and options at the overall verdict `level`: those without its conversion
    (`otherwise_how`) if converting would not make `level` any better.
    """
    spared = rule.otherwise is not None and rule.verdict.rank < level.rank and rule.otherwise.rank <= level.rank
    return rule.otherwise_how if spared else rule.how


def _tells(rule: Rule, verdict: Verdict) -> bool:
    """Return whether a rule's reason is shown: always if it has the overall verdict; else never if that is NO, and
    otherwise if the rule has no alternative without a conversion (`otherwise`) or its conversion is among the steps.
    """
    if verdict in (rule.verdict, Verdict.NO):
        return rule.verdict is verdict
    return rule.otherwise is None or any(name in table().conversions for name in _steps(rule, verdict))


ONE_BUCKET = 2**40  # elements: more than any buffer has
KEPT = ("tp", "pp", "vpp", "ep", "etp")  # and the ZeRO stage: with these pins every rank reads what it wrote


def way(form: str, wanted: Collection[str], old: Plan, new: Plan) -> tuple[Step, ...]:
    """Return the steps to load a checkpoint: conversions in the table's order, then one of each kind (options, command)
    that starts the new run from where they end, each option once. form: the checkpoint's format, which conversions
    change. wanted: names of conversions and options, in any order; those that do not read the present form are left
    out, and options that another wanted one makes useless.
    """
    steps, place, tells = list[Step](), "CHECKPOINT", table().tells
    for name, conversion in table().conversions.items():
        if name in wanted and form in conversion.reads:
            steps += [
                Step(row.run, row.kind, _filled(row.words, place, old, new), _filled(row.does, place, old, new))
                for row in conversion.rows
                if between(old.best.target.version, row.since, row.until)
            ]
            form, place = conversion.makes, conversion.at
    options = {name: tells[name] for name in tells if name in wanted and form in tells[name].reads}
    rows = [
        *filter(None, [table().loads.get(form)]),
        *(entry for entry in options.values() if not set(entry.useless_with) & options.keys()),
    ]
    for kind in dict.fromkeys(row.kind for row in rows):
        these = [row for row in rows if row.kind == kind]
        words = (_filled(row.words, place, old, new) for row in these)
        if kind == "options":
            words = (option for line in words for option in re.split(r"\s+(?=--)", line))
        does = "; ".join(_filled(row.does, place, old, new) for row in these)
        steps.append(Step("new", kind, " ".join(dict.fromkeys(words)), does))
    return tuple(steps)


def _filled(words: str, place: str, old: Plan, new: Plan) -> str:
    """Return a text with `<<from>>` replaced by `place`, `<<old.bucket>>` by the old plan's bucket size in elements (or
    ONE_BUCKET), `<<old.pins>>` by `--pin` options of its layout, `<<new.DEGREE>>` by that of the new plan.
    """
    words = words.replace("<<from>>", place).replace("<<old.bucket>>", str(closes(old) or ONE_BUCKET))
    if "<<old.pins>>" in words:
        c = old.best.configuration
        values = {**picked(c, *KEPT), "zero": c.zero_stage}
        values |= {"layout": f"'{c.pipeline_layout}'"} if c.pipeline_layout else {}
        words = words.replace("<<old.pins>>", " ".join(f"--pin {name}={value}" for name, value in values.items()))
    for degree in DEGREES:
        words = words.replace(f"<<new.{degree}>>", str(getattr(new.best.configuration, degree)))
    return words


# A model's fields, and their names in Megatron-LM's arguments or in config.json.
SIZES = (
    ("num_hidden_layers", "num_layers"),
    ("hidden_size", "hidden_size"),
    ("intermediate_size", "ffn_hidden_size"),
    ("num_attention_heads", "num_attention_heads"),
    ("num_key_value_heads", "num_query_groups"),
    ("num_nextn_predict_layers", "mtp_num_layers"),
    ("num_hidden_layers", "num_hidden_layers"),
    ("vocab_size", "vocab_size"),
)


def supposed(checkpoint: Checkpoint, like: Plan) -> Plan:
    """Return the plan of the run that saved a checkpoint: `like` with what the folder states. Stated are ZeRO stage,
    global batch, sequence length, degrees (vpp is 1 if another pp alone is stated) and model sizes. The backend changes
    if that of `like` cannot save this format; the release, to the folder's upper or lower bound, if these exclude it or
    the framework names it in the folder.
    """
    best = like.best
    target = best.target
    if target.backend not in checkpoint.frameworks:
        other = checkpoint.frameworks[0]
        target = replace(target, backend=other, version=BACKENDS[other].releases.of(like.job))
    stated: dict[str, Any] = {name: value for name, value in checkpoint.degrees.items() if name in DEGREES}
    if "vpp" not in stated and stated.get("pp", best.configuration.pp) != best.configuration.pp:
        stated["vpp"] = 1
    for name, key in (("global_batch", "global_batch_size"), ("seq_length", "seq_length")):
        if isinstance(value := checkpoint.says.get(key), int):
            stated[name] = value
    configuration = replace(best.configuration, zero_stage=_stage(checkpoint, like), **stated)
    able = between(target.version, checkpoint.since, checkpoint.until)
    if BACKENDS[target.backend].names_release or not able:
        target = replace(target, version=checkpoint.until or checkpoint.since or target.version)
    run = replace(best, target=target, configuration=configuration)
    return replace(like, model=_model(checkpoint, like.model), best=run)


def _model(checkpoint: Checkpoint, like: ModelDescriptor) -> ModelDescriptor:
    """Return `like` with the sizes that the folder states, so that a checkpoint of another model is noticed. Key-value
    heads are ignored with MLA or without groups, intermediate_size if the model has no dense layers.
    """
    says = checkpoint.says
    update: dict[str, object] = {ours: says[theirs] for ours, theirs in SIZES if isinstance(says.get(theirs), int)}
    if like.num_key_value_heads == like.num_attention_heads or like.latent is not None:
        update.pop("num_key_value_heads", None)  # Megatron-LM's are 1 where no groups were asked for
    if like.intermediate_size == 0:
        update.pop("intermediate_size", None)
    if isinstance(untied := says.get("untie_embeddings_and_output_weights"), bool):
        update["tie_word_embeddings"] = not untied
    if "num_experts" in says:
        update["experts"] = _experts(says["num_experts"], like)
    return like.model_copy(update=update)


def _experts(number: Plain, like: ModelDescriptor) -> Experts | None:
    """Return the experts of `like` with the folder's number; None if `number` is 0 or no integer. Without experts in
    `like` the other fields are placeholders: one expert per token, dense size.
    """
    if not isinstance(number, int) or number == 0:
        return None
    one = like.experts or Experts(
        num_experts=number,
        num_experts_per_tok=1,
        norm_topk_prob=True,
        moe_intermediate_size=like.intermediate_size or 1,
    )
    return one.model_copy(update={"num_experts": number})


def _stage(checkpoint: Checkpoint, like: Plan) -> ZeroStage:
    """Return the run's ZeRO stage as the folder states it; fsdp_dtensor has that of `like`, at least 2. Else Megatron's
    use_distributed_optimizer gives 1 or 0; without it the stage of `like`.
    """
    stage = like.best.configuration.zero_stage
    zero_stage, sharded = (checkpoint.says.get(name) for name in ("zero_stage", "use_distributed_optimizer"))
    if (named := next((each for each in ZERO_STAGES if each == zero_stage), None)) is not None:
        return named
    if checkpoint.kind == "fsdp_dtensor":
        return stage if stage >= 2 else 2
    if sharded is True:
        return 1
    return 0 if sharded is False else stage
