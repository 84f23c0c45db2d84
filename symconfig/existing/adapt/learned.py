"""Scripts of trainers with a plan's degrees, batch, engine and offload in them: the way that all are changed."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field

from symconfig.errors import InfeasibleError, InputError
from symconfig.existing.adapt import launcher
from symconfig.existing.adapt.draft import Draft, Progress
from symconfig.existing.adapt.options import Option, Texts, of, off, put, same
from symconfig.existing.adapt.outcome import Flaw, Unplaced
from symconfig.existing.adapt.runs import several, why_apart
from symconfig.existing.adapt.same import check_run
from symconfig.existing.audit.audit import audit
from symconfig.existing.launch.reading import Reading, Setting
from symconfig.existing.recover.arguments import plain
from symconfig.existing.recover.rl.script import Does, Script
from symconfig.existing.recover.run import Run
from symconfig.existing.recover.supplied import Supplied
from symconfig.plans.plan import Plan

Wanted = Mapping[str, Texts]  # values of each option
_ONE, _ALONE = ("1",), ("_parallel_size", "_divisible_by")  # of what is not there, by the ends of its names
_ROUNDS = 3  # what one key means may follow from another that was changed
# What trains, by the backend of its plans.
_WORKERS = {"megatron": ("megatron",), "deepspeed": ("deepspeed",), "fsdp": ("fsdp", "dtensor")}


def unchanged(progress: Progress, _plan: Plan, _script: Script) -> Progress:
    """Leave the files beside a script as they are."""
    return progress


@dataclass(frozen=True, slots=True)
class Learned:
    """A trainer's way to be adapted. wanted: what a plan decides, by option. words: an option as words of a command
    line; anchors: options beside which a new one belongs, the likeliest first. gpus: the options that say the trained
    nodes, and the GPUs of each; None: its launcher says them; also: the same of roles beside them, where a script says
    them. others: what makes a script one of the workers of a plan, by backend. files: changes what the files beside it
    say. sections: its YAML has some, and may be inherited."""

    reader: type[Script]
    wanted: Callable[[Plan, Script], Wanted]
    gpus: tuple[str, str] | None
    words: Callable[[Reading, str, tuple[str, ...]], tuple[str, ...]]
    anchors: Callable[[Reading, str], Iterator[Setting]]
    others: Mapping[str, str] = field(default_factory=dict)
    also: tuple[tuple[str, str], ...] = ()
    files: Callable[[Progress, Plan, Script], Progress] = unchanged
    sections: bool = False

    def adapt(self, draft: Draft, plan: Plan) -> Progress:
        """Make every change that can be made. Raises InputError where the plan is for other workers, or for another
        task."""
        script = self.script(draft.reading, plan)
        self._check(script, plan)
        try:
            wanted = {**self.wanted(plan, script), **self._world(draft.reading, plan)}
        except InfeasibleError as error:  # the plan is for a trainer that can be told more
            raise InputError(error.problems) from None
        self._check_model(draft.reading, plan)
        progress = Progress(draft)
        if several(draft.reading, {each.name for each in draft.reading.settings if plain(each.name) in wanted}):
            return progress.lacking(Unplaced("the plan, all of it,", "", why_apart(draft.reading)))
        for _ in range(_ROUNDS):
            before = progress
            for name, values in wanted.items():
                if not self._says(self.script(progress.draft.reading, plan), name, values):
                    progress = put(progress, self._option(progress.draft, name, values))
            if progress.changes == before.changes:
                break
        progress = self.files(progress, plan, script)
        return launcher.numbers(progress, plan) if self.gpus is None else progress

    def audited(self, progress: Progress, original: Reading, plan: Plan) -> tuple[Progress, tuple[Flaw, ...]]:
        """Return what an audit of the result calls errors."""
        before, after = (
            audit(reading, Supplied(model=plan.model), None, plan.job.limits, plan=False).findings
            for reading in (original, progress.draft.reading)
        )
        known = {finding.rule for finding in before}
        errors = (finding for finding in after if finding.severity == "error")
        return progress, tuple(Flaw(finding.rule, finding.problem, finding.rule in known) for finding in errors)

    def original(self, reading: Reading, plan: Plan) -> Run:
        """Return the configuration in the planner's terms. Raises InputError."""
        return self.script(reading, plan).run()

    def script(self, reading: Reading, plan: Plan) -> Script:
        """Return a reader of a script of the plan's model."""
        gpus = reading.world.gpus or plan.best.parallel.world_size
        return self.reader(reading, Supplied(model=plan.model), gpus, plan.cluster)

    def _check(self, script: Script, plan: Plan) -> None:
        reading, workers, need = script.reading, script.workers, plan.best.target.backend
        answers = None if plan.job.preference is None else plan.job.preference.means.task
        if script.does != ("rl" if plan.job.rl is not None and plan.rl else answers or "alone"):
            what = _DOES[script.does]
            raise InputError(
                f"{what}, and the plan is of no such step", file=reading.file, hint=_HINTS.get(script.does, _OF_ANSWERS)
            )
        if not workers.predicted or workers.name not in _WORKERS[need]:
            what = "has workers of another kind than the plan's"
            raise InputError(what, file=reading.file, got=workers.name, need=need, hint=self.others.get(need))

    def _check_model(self, reading: Reading, plan: Plan) -> None:
        """Raise InputError where a script is known to train another model than the plan's."""
        gpus = reading.world.gpus or plan.best.parallel.world_size
        try:
            run = self.reader(reading, Supplied(), gpus, plan.cluster).run()
        except InputError:  # no name says which it is, or it means nothing as it stands
            return
        check_run(run, plan, reading.file)

    def _world(self, reading: Reading, plan: Plan) -> Wanted:
        """Return the GPUs that train, where the plan has others."""
        trained = plan.best.parallel.world_size
        each = min(trained, plan.cluster.gpus_per_node)
        served = plan.rl[0].rollout_gpus if plan.job.rl is not None and plan.job.rl.placement == "split" else 0
        if self.gpus is None or reading.world.gpus in (None, trained + served):
            return {}
        of_roles = (pair for pair in self.also if all(of(reading, name) for name in pair))
        numbers = ((str(trained // each),), (str(each),))
        return {name: value for pair in (self.gpus, *of_roles) for name, value in zip(pair, numbers, strict=True)}

    def _says(self, script: Script, name: str, values: Texts) -> bool:
        """Tell whether a script says it already, or has it by itself."""
        setting = of(script.reading, name)
        if setting is None:
            usual = script.usual(plain(name))
            if usual is not None:
                return values is None or same((usual,), values)
            return off(values) or (values == _ONE and plain(name).endswith(_ALONE))
        if values is None:
            return not setting.texts and script.reading.tree_at(setting.place) is not None
        return setting.unknown is None and same(setting.texts, values)

    def _option(self, draft: Draft, name: str, values: Texts) -> Option:
        reading = draft.reading
        tree = reading.tree if self.sections and reading.program is None else None
        derived = {each.name for each in reading.settings if _follows(draft, each)} if self.sections else ()
        return Option(
            name=name,
            values=values,
            words=lambda now: self.words(reading, name, now),
            anchors=self.anchors(reading, name),
            top=tree,
            kept=self.sections,
            derived=derived,
        )


_DOES: dict[Does, str] = {
    "rl": "starts reinforcement learning",
    "dpo": "trains on pairs",
    "kto": "trains on labelled answers",
    "reward": "trains a model of rewards",
    "alone": "trains on what is there",
}
_OF_ANSWERS = "a plan of a job with a section preference of such a loss"
_HINTS: dict[Does, str] = {
    "rl": "a plan of a job with a section rl",
    "alone": "a plan of a job without a section rl or preference",
}


def _follows(draft: Draft, setting: Setting) -> bool:
    """Tell whether an option's value is worked out of others'."""
    places = (word.place for word in setting.values if word.place.file in draft.texts)
    return any("${" in draft.texts[place.file].at(place) for place in places)
