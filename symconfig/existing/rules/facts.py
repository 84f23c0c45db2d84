"""What rules about Megatron-LM ask: options by destination, the GPUs, and the environment."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Literal, TypeVar

import yaml

from symconfig.errors import Problem
from symconfig.existing.launch.reading import Word
from symconfig.existing.launch.text import Place, problem_at
from symconfig.existing.recover.megatron import PER_CHUNK
from symconfig.existing.recover.namespace import Namespace
from symconfig.formats.megatron import DEGREES
from symconfig.formats.megatron_run import BY_FIELD, STAGES
from symconfig.frameworks.megatron.flags import Value, flags
from symconfig.plans import pipeline_layout
from symconfig.resources import opened

OWN_PROGRAMS = ("pretrain_gpt.py", "pretrain_mamba.py", "pretrain_hybrid.py")
FIRST, LAST = (BY_FIELD[f"{end}_stage_layers"][0] for end in ("first", "last"))
ACCOUNTS = tuple(BY_FIELD[f"account_for_{end}"][0] for end in ("embedding", "loss"))
LAYOUT, CHUNKS = BY_FIELD["pipeline_layout"][0], BY_FIELD["vpp"][0]


T = TypeVar("T")
State = Literal["refused", "idle", "old", "gone"]  # as rows/old_options.yaml says


@dataclass(frozen=True, slots=True)
class Old:
    """today: options that say it now; None: nothing does, or need not."""

    state: State
    why: str
    today: str | None = None


with opened(Path(__file__).parent / "rows" / "old_options.yaml") as _file:
    OLD = {name: Old(**row) for name, row in yaml.load(_file, Loader=yaml.SafeLoader).items()}
ALIKE = 0.9  # of difflib: "--micro-batchsize" is, "--log-batch-size" is not "--log-world-size"
MISSING = 2  # words


@cache
def meant(name: str, version: str) -> str | None:
    """Return the option of this version that a misspelt or shortened name probably means; None if none is similar."""
    return nearest(name, flags(version).flags)


def nearest(name: str, options: Iterable[str]) -> str | None:
    """Return the shortest option that contains the words of the name (`_contains_words`), else the closest spelling.

    Options that begin with the same word go first. None if none is similar. A --no-X never matches --X.
    """
    words = _words(name)
    options = [option for option in options if (_words(option)[0] == "no") == (words[0] == "no")]
    spelled = "--" + "-".join(words)
    longer = [option for option in options if _contains_words(_words(option), words)]
    if longer:
        return min(longer, key=lambda option: (_words(option)[0] != words[0], len(_words(option)), option))
    matches = difflib.get_close_matches(spelled, options, n=1, cutoff=ALIKE)
    return matches[0] if matches else None


def _words(name: str) -> list[str]:
    return name.lstrip("-").replace("_", "-").lower().split("-")


def _contains_words(option: list[str], words: list[str]) -> bool:
    """Return whether the option has the two or more words in order, maybe shortened, and at most two others."""
    if len(words) < 2 or not len(words) <= len(option) <= len(words) + MISSING:
        return False
    left = iter(option)
    return all(any(other.startswith(word) for other in left) for word in words if word)


class NotKnown(Exception):
    """A rule needs a fact that the configuration does not tell; the rule then finds nothing."""


@dataclass(frozen=True, slots=True, eq=False)
class MegatronFacts(Mapping[str, Value]):
    """What rules may ask of a launch of Megatron-LM; as a mapping, option values (given or default) by destination.

    names: the options, as the version to judge by parses them. version_given: the user stated the version. world_size:
    GPUs. gpus_per_node, joined, architecture: of the user's cluster; joined: GPUs in one domain of its fastest links.
    environment: variables that the script sets; None: not known. program: its path. complete: all options were read;
    environment_known: all variables were. fork: another program parses the options. dealt: these options alone
    distribute the layers over stages.

    Access to a value that is not known raises NotKnown, so that no rule is broken by a guess.
    """

    names: Namespace
    version_given: bool = True
    world_size: int | None = None
    gpus_per_node: int | None = None
    joined: int | None = None
    architecture: str | None = None
    environment: Mapping[str, Word] | None = None
    program: str | None = None
    complete: bool = True
    environment_known: bool = True
    fork: bool = False
    dealt: bool = False

    @property
    def version(self) -> str:
        return self.names.table.version

    def at_least(self, version: str) -> bool:
        return self.names.table.at_least(version)

    @property
    def own_program(self) -> bool:
        """Return whether the program has the name of one of Megatron-LM's own."""
        return self.program is not None and self.program.rpartition("/")[2] in OWN_PROGRAMS

    @property
    def released(self) -> bool:
        """Return whether the options are those of a known release, and not of a fork or another program.

        With a stated version all but a fork's are. Without one each unknown option must be like a known one (`meant`),
        and not be an old name.
        """
        return not self.fork and (
            self.version_given
            or not any(
                setting.name in OLD or meant(setting.name, self.version) is None for setting in self.names.unknown
            )
        )

    @property
    def misspelt(self) -> set[str]:
        """Return the destinations that unknown options were probably meant for, so that their defaults do not count."""
        options = (meant(setting.name, self.version) for setting in self.names.unknown)
        return {self.names.table.flags[option].dest for option in options if option is not None}

    def given(self, dest: str) -> bool:
        """Return whether the option is given, even misspelt or unreadable. Raises NotKnown if not all were read."""
        if self.names.given(dest) or dest in self.names.dark or dest in self.misspelt:
            return True
        if not self.complete:
            raise NotKnown(dest)
        return False

    def __getitem__(self, dest: str) -> Value:
        whole = self.complete or (self.dealt and dest in STAGES)
        known = self.names.given(dest) or (whole and dest not in self.misspelt)
        if dest in self.names.dark or not known:
            raise NotKnown(dest)
        return self.names[dest]

    def __iter__(self) -> Iterator[str]:
        return iter(self.names)

    def __len__(self) -> int:
        return len(self.names)

    def on(self, dest: str) -> bool:
        """Return the truth of the option's value. Raises NotKnown."""
        return bool(self[dest])

    def maybe(self, dest: str) -> int | None:
        """Return the value if it is a whole number, else None. Raises NotKnown."""
        value = self[dest]
        return value if isinstance(value, int) and not isinstance(value, bool) else None

    def number(self, dest: str) -> int:
        """Return the value if it is a whole number. Raises NotKnown for any other value, None included."""
        return self.known(self.maybe(dest))

    def text(self, dest: str) -> str | None:
        value = self[dest]
        return None if value is None else str(value)

    def known(self, fact: T | None) -> T:
        """Return the fact itself. Raises NotKnown for None."""
        if fact is None:
            raise NotKnown
        return fact

    # Degrees. Those below 1 have a rule of their own, and are 1 here.

    @property
    def tp(self) -> int:
        return max(1, self.number(DEGREES["tp"]))

    @property
    def pp(self) -> int:
        return max(1, self.number(DEGREES["pp"]))

    @property
    def cp(self) -> int:
        return max(1, self.number(DEGREES["cp"]))

    @property
    def ep(self) -> int:
        return max(1, self.number(DEGREES["ep"]))

    @property
    def etp(self) -> int:
        """Return the expert tensor-parallel degree, at least 1; tp if it is not given (validate_args)."""
        return max(1, self.maybe(DEGREES["etp"]) or self.tp)

    @property
    def gpus(self) -> int:
        return self.known(self.world_size)

    @property
    def dp(self) -> int:
        """Return the data-parallel degree, GPUs // (tp x pp x cp), at least 1. Raises NotKnown."""
        return max(1, self.gpus // (self.tp * self.pp * self.cp))

    @property
    def experts(self) -> int:
        """Return the number of experts; 0 for a dense model."""
        return self.maybe("num_experts") or 0

    @property
    def microbatches(self) -> int:
        """Return the microbatches per replica and step, rounded down; 1 without a global batch (Megatron's default)."""
        whole = self.maybe("global_batch_size")
        return 1 if whole is None else whole // max(1, self.number("micro_batch_size") * self.dp)

    @property
    def chunks(self) -> int:
        """Return the model chunks per pipeline stage (vpp): of the layout, else by the layers per chunk, else the
        number that is given, else 1.

        Raises NotKnown if the layers of a virtual stage do not divide those of a stage.
        """
        if (layout := self.text(LAYOUT)) is not None:
            return len(pipeline_layout.expanded(layout)) // self.pp
        if (layers := self.maybe(PER_CHUNK)) is not None:
            held = self.number("num_layers") // self.pp
            if layers < 1 or held % layers:
                raise NotKnown
            return held // layers
        return self.maybe(CHUNKS) or 1

    @property
    def fsdp(self) -> bool:
        """Return whether Megatron-FSDP is on, by either of its names."""
        return self.on("use_megatron_fsdp") or self.on("use_custom_fsdp")

    @property
    def low_precision(self) -> bool:
        return self["fp8"] is not None or self["fp4"] is not None

    def variable(self, name: str) -> str | None:
        """Return the environment variable's value; None if it is unset. Raises NotKnown if that cannot be told."""
        word = self.known(self.environment).get(name)
        if word is None and self.complete and self.environment_known:
            return None
        if word is None or word.unknown is not None:
            raise NotKnown(name)
        return word.text

    def problem(
        self,
        what: str,
        dest: str,
        *related: str,
        field: str | None = None,
        got: object = None,
        need: str | None = None,
        hint: str | None = None,
        value: Value = True,
    ) -> Problem:
        """Return a problem at the option's place, else at the first given one of `related`.

        field: replaces the option's name. value: for a switch that is not given, the value that it would set.
        """
        setting = self.names.setting(dest)
        named = field or (setting.spelled if setting else self.option(dest, value))
        text = None if got is None else str(got)
        return self._at(self.names.place(dest, *related), what, field=named, got=text, need=need, hint=hint)

    def option(self, dest: str, value: Value = True) -> str:
        return self.names.option(dest, value)

    def about(self, name: str, what: str, *related: str, **words: str | None) -> Problem:
        """Return a problem about an environment variable where it is set, else at the first given of `related`."""
        word = (self.environment or {}).get(name)
        return self._at(word.place if word is not None else self.names.place(*related), what, field=name, **words)

    def _at(self, place: Place | None, what: str, **words: str | None) -> Problem:
        """Return a problem at a place; without a place only in the file of the first option."""
        first = next((setting.place.file for setting in self.names.settings), None)
        return problem_at(place, what, first, **words)


def undivided(value: float, by: float) -> bool:
    """Return whether both are positive and `value` is not a multiple of `by`; others have a rule of their own."""
    return value > 0 and by > 0 and value % by > 0


def granularity(facts: MegatronFacts) -> str | None:
    """Return the granularity of recompute: "selective" if --recompute-activations overrides it; None without."""
    return "selective" if facts.on("recompute_activations") else facts.text("recompute_granularity")
