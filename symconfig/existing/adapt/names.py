"""Names and paths that carry numbers of the old layout: `EXP=llama_tp${TP}_pp4`, `--save /ckpt/tp8pp4`.

They are pointed out and left as they are: a name may be that of a folder that exists.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from symconfig.existing.adapt.outcome import Change, Stale
from symconfig.existing.launch.reading import Reading, Word
from symconfig.existing.launch.text import Place, Text
from symconfig.existing.recover.arguments import plain
from symconfig.formats.megatron import DEGREES
from symconfig.solve.configuration import Configuration

# What people call a number in a name -> the number, by the names of `numbers`.
SPELLED: Mapping[str, str] = {
    **{name: name for name in ("tp", "pp", "vpp", "cp", "ep", "etp", "dp", "mbs", "gbs", "gpus", "nodes", "zero")},
    "mp": "tp",
    "vp": "vpp",
    "bs": "mbs",
    "ga": "accumulation",
    "gas": "accumulation",
    "acc": "accumulation",
    "node": "nodes",
    "gpu": "gpus",
    "z": "zero",
}
# Options whose values are numbers of `numbers`.
_OPTIONS: Mapping[str, str] = {
    **{dest: name for name, dest in DEGREES.items()},
    "num_virtual_stages_per_pipeline_rank": "vpp",
    "micro_batch_size": "mbs",
    "global_batch_size": "gbs",
    "per_device_train_batch_size": "mbs",
    "gradient_accumulation_steps": "accumulation",
}
_WORDS = "|".join(sorted(SPELLED, key=len, reverse=True))
_TOKEN = re.compile(
    rf"(?<![A-Za-z])(?:({_WORDS})[-_]?(\d+)(?![\d.])|(?<![\d.])(\d+)[-_]?(nodes?|gpus?)(?![A-Za-z]))", re.IGNORECASE
)
_ASSIGNED = re.compile(r"\s*(?:export\s+|local\s+|readonly\s+|declare\s+-\w+\s+)*([A-Za-z_]\w*)=")
_LONGEST = 4096  # characters of a name; a program in a word is none
_COMMENT = re.compile(r"(?:^|(?<=\s))(?:#|//).*")
SAVES = ("save", "save_dir", "save_path", "output_dir", "checkpoint_dir", "save_checkpoint_path")
LOADS = ("load", "load_dir", "resume_from_checkpoint", "pretrained_checkpoint", "load_checkpoint_path")
_BOTH = (
    "The folder has the old layout's checkpoints, and the new one's would come among them: think of another folder to "
    "save to."
)
_SAVED = "The new layout's checkpoints would come among the old one's: think of another folder to save to."
_LOADED = "The folder has what the old layout saved."
_LOGGED = "Think of another name, or the runs of both layouts go under one."


@dataclass(frozen=True, slots=True)
class _Carried:
    """One number in a name. option: what has it. value: the whole name. place: where the token starts."""

    option: str
    value: str
    token: str
    now: str
    place: Place


def numbers(c: Configuration, nodes: int | None) -> dict[str, int]:
    """Return the numbers of a run that people put into names."""
    p = c.degrees
    values = {
        **{name: getattr(p, name) for name in ("tp", "pp", "vpp", "cp", "ep", "etp", "dp")},
        "mbs": c.micro,
        "gbs": c.global_batch,
        "accumulation": c.global_batch // max(1, c.micro * p.dp),
        "zero": c.zero,
        "gpus": p.world_size,
    }
    return values if nodes is None else {**values, "nodes": nodes}


def numbers_of(changes: Sequence[Change]) -> tuple[dict[str, int], dict[str, int]]:
    """Return the numbers that changes take away and put in their places."""
    was: dict[str, int] = {}
    now: dict[str, int] = {}
    for change in changes:
        name = _OPTIONS.get(plain(change.option))
        if name and change.was and change.now and change.was.isdecimal() and change.now.isdecimal():
            was[name], now[name] = int(change.was), int(change.now)
    return was, now


def stale(before: Reading, after: Reading, was: Mapping[str, int], now: Mapping[str, int]) -> tuple[Stale, ...]:
    """Return each line that carries an old number in a name that stays. was, now: the numbers of the runs."""
    changed = {name: (was[name], now[name]) for name in was if name in now and was[name] != now[name]}
    if not changed:
        return ()
    kept = {(option, word.text) for option, word in _words(after)}
    names = [
        carried
        for option, word in _words(before)
        if (option, word.text) in kept
        for carried in _of_word(option, word, before, changed)
    ]
    names += [carried for text in before.texts for carried in _of_text(text, changed)]
    lines: dict[tuple[str, int], list[_Carried]] = {}
    for carried in names:
        lines.setdefault((carried.place.file, carried.place.line), []).append(carried)
    texts = {text.file: text for text in before.texts}
    return tuple(_line(texts[file], mine) for (file, _), mine in sorted(lines.items()) if file in texts)


def _words(reading: Reading) -> Iterator[tuple[str, Word]]:
    """Yield the values of all that is read, with what has them; a repeated run's once."""
    for run in (reading, *reading.runs):
        yield from ((setting.label, word) for setting in run.settings for word in setting.values)
        yield from run.environment.items()
    yield from ((f"#SBATCH --{name}", word) for name, word in reading.scheduler.items())


def _of_word(option: str, word: Word, reading: Reading, changed: Mapping[str, tuple[int, int]]) -> Iterator[_Carried]:
    if word.unknown is not None or len(word.text) > _LONGEST:
        return
    texts = {text.file: text for text in reading.texts}
    for token, start, now in _tokens(word.text, changed):
        place = _place(word, start, texts)
        if place is not None:
            yield _Carried(option, word.text, token, now, place)


def _place(word: Word, start: int, texts: Mapping[str, Text]) -> Place | None:
    """Return where the character stands in a file; of one from elsewhere, where the word is used."""
    for piece in word.pieces:
        if start < len(piece.text):
            place = piece.place
            if place is None or place.file not in texts:
                break
            offset = len(piece.text[:start].encode())
            return texts[place.file].place(min(place.start + offset, place.end), place.end)
        start -= len(piece.text)
    return word.place if word.place.file in texts else None


def _of_text(text: Text, changed: Mapping[str, tuple[int, int]]) -> Iterator[_Carried]:
    """Yield what stands literally in a line's words, whatever becomes of them; comments say what they like."""
    start = 0
    for line in text.data.splitlines(keepends=True):
        words = _COMMENT.sub("", line.decode("utf-8", "replace"))
        for token, at, now in _tokens(words, changed):
            begin = start + len(words[:at].encode())
            place = text.place(begin, begin + len(token.encode()))
            yield _Carried("", words.strip(), token, now, place)
        start += len(line)


def _tokens(text: str, changed: Mapping[str, tuple[int, int]]) -> Iterator[tuple[str, int, str]]:
    """Yield the parts of a text that say a number as it was, where each starts, and what the run has now."""
    for match in _TOKEN.finditer(text):
        degree = (match[1] or match[4]).lower()
        name = SPELLED[degree]
        if name in changed and int(match[2] or match[3]) == changed[name][0]:
            yield match[0], match.start(), f"{degree} {changed[name][1]}"


def _line(text: Text, mine: Sequence[_Carried]) -> Stale:
    """Return one sentence for all that a line carries: under the variable that it sets, or the option."""
    first = min((each.place for each in mine), key=lambda place: place.start)
    line = text.data[text.data.rfind(b"\n", 0, first.start) + 1 :].split(b"\n", 1)[0].decode("utf-8", "replace")
    options = tuple(dict.fromkeys(each.option for each in mine if each.option))
    assigned = _ASSIGNED.match(line)
    name = assigned[1] if assigned is not None else options[0] if options else "the line"
    others = [option for option in options if option != name]
    label = f"{name} (in {', '.join(others)})" if others else name
    tokens = dict.fromkeys((each.token, each.now) for each in mine)
    return Stale(
        option=label,
        value=next((each.value for each in mine if each.option), mine[0].value),
        token=_joined([token for token, _ in tokens]),
        now=_joined(list(dict.fromkeys(now for _, now in tokens))),
        place=first,
        advice=_advice(options),
    )


def _advice(options: Sequence[str]) -> str:
    names = {plain(option.rpartition(".")[2]) for option in options}
    saves, loads = not names.isdisjoint(SAVES), not names.isdisjoint(LOADS)
    if saves and loads:
        return _BOTH
    return _SAVED if saves else _LOADED if loads else _LOGGED


def _joined(words: Sequence[str]) -> str:
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} and {words[-1]}"
