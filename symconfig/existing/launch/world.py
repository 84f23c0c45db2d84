"""How many GPUs a launcher starts: from its own words, from comments for a scheduler, from the environment."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from posixpath import basename

from symconfig.existing.launch.reading import Setting, Word, World
from symconfig.existing.launch.text import Text
from symconfig.frameworks.launchers import LAUNCHERS, SLURM

# What Slurm sets from its options: sbatch's manual, "output environment variables".
_SLURM_VARIABLES = {
    **dict.fromkeys(("nodes", "N"), ("SLURM_NNODES", "SLURM_JOB_NUM_NODES")),
    **dict.fromkeys(("ntasks", "n"), ("SLURM_NTASKS", "SLURM_NPROCS")),
    "ntasks-per-node": ("SLURM_NTASKS_PER_NODE",),
    "gpus-per-node": ("SLURM_GPUS_PER_NODE", "SLURM_GPUS_ON_NODE"),
    "gres": ("SLURM_GPUS_ON_NODE",),
    "cpus-per-task": ("SLURM_CPUS_PER_TASK",),
}
_DIRECTIVE = re.compile(rb"^#SBATCH[ \t]+(.*)$", re.MULTILINE)
SHELLS = ("bash", "sh", "zsh", "dash", "ksh")  # what they run is read with the script that starts it
_HOSTS = ("hostfile", "H", "include", "i", "exclude", "e")


def world(launcher: Sequence[Word], directives: Mapping[str, Word], environment: Mapping[str, Word]) -> World:
    """Return the GPUs and nodes by a launcher's options, else the scheduler's, else CUDA_VISIBLE_DEVICES.

    directives: options of `#SBATCH` comments without dashes. Numbers that nothing gives are None, but the third is
    computed from two. Numbers of tasks do not count beside another launcher. Launcher options with an unknown value are
    in `dark`.
    """
    spoken: dict[str, list[LauncherOption]] = {
        basename(word.text): [] for word in launcher if basename(word.text) in LAUNCHERS
    }
    for given in launcher_options(launcher):
        spoken[given.launcher].append(given)
    counts: dict[str, tuple[int, Word]] = {}
    dark: list[Word] = []
    for name, known in LAUNCHERS.items():
        for key, word in ((given.key, given.value) for given in spoken.get(name, ())):
            dark += [word] if word.unknown and key in known.counts else []
            _record_count(counts, known.counts, key, word, tasks=name in ("srun", "sbatch") and len(spoken) > 1)
            if key in known.includes and not word.unknown:
                for what, number in _included(word.text).items():
                    counts.setdefault(what, (number, word))
    for option, word in directives.items():
        _record_count(counts, SLURM, option.replace("-", "_"), word, tasks=bool(set(spoken) - {"srun", "sbatch"}))
    visible = environment.get("CUDA_VISIBLE_DEVICES")
    if "per_node" not in counts and "gpus" not in counts and visible is not None and not visible.unknown:
        devices = [item for item in visible.text.split(",") if item.strip()]
        if devices and "-1" not in devices and any(LAUNCHERS[name].visible for name in spoken):
            counts["per_node"] = len(devices), visible
    return replace(_world(counts, spoken), dark=tuple(dark))


def _world(counts: Mapping[str, tuple[int, Word]], spoken: Mapping[str, Sequence[LauncherOption]]) -> World:
    """Return the World with the third of nodes, GPUs per node and total computed from two; None where it cannot be.

    counts: number and word by "nodes", "per_node" and "gpus". spoken: options by launcher; one that starts a single
    node by default gives 1 node unless an option counts nodes or names hosts.
    """
    nodes, per_node, gpus = (counts[key][0] if key in counts else None for key in ("nodes", "per_node", "gpus"))
    alone = (  # launchers of one node by themselves that are given no other number and no hosts
        LAUNCHERS[name].one_node
        and not any(LAUNCHERS[name].counts.get(each.key) == "nodes" or each.key in _HOSTS for each in options)
        for name, options in spoken.items()
    )
    nodes = 1 if nodes is None and any(alone) else nodes
    if nodes is not None and per_node is not None:
        gpus = nodes * per_node
    elif gpus is not None and nodes is not None and gpus % nodes == 0:
        per_node = gpus // nodes
    elif gpus is not None and per_node is not None and gpus % per_node == 0:
        nodes = gpus // per_node
    return World(gpus, nodes, per_node, tuple(word for _, word in counts.values()))


def _record_count(
    counts: dict[str, tuple[int, Word]], table: Mapping[str, str], key: str, word: Word, tasks: bool
) -> None:
    """Record (number, word) in `counts` under the kind that `table` gives for the option `key`, the first only.

    tasks: another launcher counts the processes, so that numbers of tasks do not count.
    """
    what = table.get(key)
    if what is None or (tasks and key in ("n", "ntasks", "ntasks_per_node")):
        return
    number = _number(word.text if key != "gres" else word.text.rpartition(":")[2])
    if number is None or word.unknown or (key == "gres" and not word.text.startswith("gpu")):
        return
    counts.setdefault(what, (number, word))


def _included(hosts: str) -> dict[str, int]:
    """Return the counts of DeepSpeed's --include (`host:0,1@other:0,1`): {"nodes": 2, "per_node": 2}.

    Only "nodes" if a host has no slots, only "gpus" if the hosts have different numbers; {} if it is malformed.
    """
    slots = [host.partition(":")[2] for host in hosts.split("@")]
    if not all(slots):
        return {"nodes": len(slots)}
    if not all(re.fullmatch(r"\d+(,\d+)*", each) for each in slots):
        return {}
    sizes = [len(set(each.split(","))) for each in slots]
    return {"nodes": len(sizes), "per_node": sizes[0]} if len(set(sizes)) == 1 else {"gpus": sum(sizes)}


def hostfile_world(text: str, options: Mapping[str, Word]) -> World | None:
    """Return the GPUs of DeepSpeed's hostfile (`host slots=8` per line), cut to --num_nodes and --num_gpus per node.

    options: the launcher's. None if a line is malformed, no GPU is left, or --include or --exclude is given, which are
    not followed.
    """
    hosts: dict[str, int] = {}
    for line in (line.partition("#")[0].strip() for line in text.splitlines()):
        if line:
            match = re.fullmatch(r"(\S+)\s+slots=(\d{1,4})", line)
            if match is None or options.keys() & {"include", "i", "exclude", "e"}:
                return None
            hosts[match[1]] = int(match[2])
    nodes, most = (_number(options[name].text) if name in options else None for name in ("num_nodes", "num_gpus"))
    sizes = [min(size, most or size) for size in hosts.values() if size][:nodes]
    return World(sum(sizes), len(sizes), sizes[0] if len(set(sizes)) == 1 else None) if sizes else None


def _number(text: str) -> int | None:
    """Return the positive integer in `8`, `2:2` (elastic torchrun, both equal) or `h100:8` (Slurm); else None."""
    parts = text.split(":")
    if len(parts) == 2 and not parts[0].isdigit():
        parts = parts[1:]
    if all(part.isdecimal() and len(part) < 8 for part in parts) and len(set(parts)) == 1 and int(parts[0]) > 0:
        return int(parts[0])
    return None


def stated_numbers(settings: Sequence[Setting], usual: Mapping[str, int]) -> tuple[Mapping[str, int], World]:
    """Return (numbers by key, World of their words); of an option that is not given the number in `usual`.

    The World has only `dark`, the words of numbers, if one is unknown or not decimal digits.
    """
    last = {each.key: each.values[-1] for each in settings if each.values}
    stated = {name: last[name] for name in usual if name in last}
    if dark := tuple(word for word in stated.values() if word.unknown or not word.text.isdecimal()):
        return usual, World(dark=dark)
    return {**usual, **{name: int(word.text) for name, word in stated.items()}}, World(words=tuple(stated.values()))


@dataclass(frozen=True, slots=True)
class LauncherOption:
    """An option of a launcher with its value; `key` has underscores and no dashes, `option` is as it is spelled.

    at: index of the word that its value ends.
    """

    launcher: str
    key: str
    option: str
    at: int
    value: Word


def launcher_options(launcher: Sequence[Word]) -> Iterator[LauncherOption]:
    """Yield each launcher's options with their values: `-n8` (only -n, -N and -G), `--nodes=8` and `--nodes 8`.

    The next word counts as the value even if it begins with a dash. Options belong to the launcher named last before.
    """
    name = ""
    for index, word in enumerate(launcher):
        if basename(word.text) in LAUNCHERS:  # its folder may be unknown
            name = basename(word.text)
            continue
        match = re.fullmatch(r"(-([nNG]))(\d+)|(--?([A-Za-z][\w-]*))(?:=(.*))?", word.text, re.DOTALL)
        if not name or match is None:
            continue
        option, key, value = match.group(1, 2, 3) if match[1] else match.group(4, 5, 6)
        if value is not None:
            number = replace(word.after(len(word.text) - len(value)), place=word.place)
            yield LauncherOption(name, key.replace("-", "_"), option, index, number)
        elif index + 1 < len(launcher):
            yield LauncherOption(name, key.replace("-", "_"), option, index + 1, launcher[index + 1])


def directives(text: Text) -> dict[str, Word]:
    """Return the last value of each option in #SBATCH comments, by name without dashes."""
    options: dict[str, Word] = {}
    for match in _DIRECTIVE.finditer(text.data):
        line = match.group(1).split(b" #")[0]
        pairs = re.finditer(rb"--?([A-Za-z][\w-]*)(?:[= \t]+([^\s-]\S*))?", line)
        for pair in pairs:
            if pair.group(2) is None:
                continue
            start = match.start(1) + pair.start(2)
            place = text.place(start, start + len(pair.group(2)))
            value = pair.group(2).decode("utf-8", "replace")
            options[pair.group(1).decode()] = Word.of(value, place, literal=True)
    return options


def slurm_variables(text: Text) -> dict[str, tuple[str, Word]]:
    """Return (number, word of its option) by name for the variables that Slurm sets from a script's #SBATCH comments.

    Of `h100:8` the number is 8; options whose number is not decimal are left out.
    """
    stated = [(option, word.pieces[0].text.rpartition(":")[2], word) for option, word in directives(text).items()]
    return {
        name: (number, word)
        for option, number, word in reversed(stated)
        for name in _SLURM_VARIABLES.get(option, ())
        if number.isdecimal()
    }
