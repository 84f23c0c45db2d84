"""Edits of a shell script: another value for a word, an option less, an option more, in the style of what stands there.

Each function yields ways to do it, the most natural first; which of them are right only reading again can tell.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence

from symconfig.existing.launch.reading import Setting, Word
from symconfig.existing.launch.text import Edit, Place, Text
from symconfig.render.files import sh

PLAIN = re.compile(r"[A-Za-z0-9_@%+=:,./-]+")  # means itself in all kinds of quotes and without


def changed(word: Word, new: str, texts: Mapping[str, Text]) -> Iterator[tuple[Edit, ...]]:
    """Yield alternative edits that replace a word's text by `new`; the caller tries each and keeps one.

    First at the literal that the text comes from (as in `TP=4`), then the word where it is used (`$TP`).
    """
    pieces = [piece for piece in word.pieces if piece.text]
    place = pieces[0].place if len(pieces) == 1 else None
    if place is not None and place.file in texts and texts[place.file].at(place) == pieces[0].text:
        yield from ((Edit(place, spelled),) for spelled in _spelled(texts[place.file], place, new))
    if word.place.file in texts:
        source = texts[word.place.file].at(word.place)
        quote = source[:1]
        if quote in ("'", '"') and len(source) > 1 and source.endswith(quote) and (PLAIN.fullmatch(new)):
            yield (Edit(word.place, f"{quote}{new}{quote}"),)
        yield from ((Edit(word.place, spelled),) for spelled in _spelled(texts[word.place.file], word.place, new))


def valued(setting: Setting, new: str, texts: Mapping[str, Text]) -> Iterator[tuple[Edit, ...]]:
    """Yield alternative edits that replace an option's only value: its word, then the text behind the `=`."""
    yield from changed(setting.values[0], new, texts)
    text = texts.get(setting.place.file)
    if text is None or not (setting.joined or not setting.spelled.startswith("-")):
        return
    head, equals, tail = text.at(setting.place).partition("=")
    if equals:
        end = setting.place.end - (tail[-1:] in ("'", '"') and head[:1] == tail[-1:])
        yield (Edit(text.place(setting.place.start + len((head + equals).encode()), end), sh(new)),)


def _spelled(text: Text, place: Place, new: str) -> tuple[str, ...]:
    """Return alternative spellings of `new` at a place: itself, or shell-quoted and bare where it needs quotes."""
    around = text.data[max(place.start - 1, 0) : place.start], text.data[place.end : place.end + 1]
    if PLAIN.fullmatch(new) or around in ((b"'", b"'"), (b'"', b'"')):
        return (new,)
    return sh(new), new


def removed(setting: Setting, texts: Mapping[str, Text]) -> Iterator[tuple[Edit, ...]]:
    """Yield alternative edits that delete an option with its values, and its whole line if nothing else is on it.

    If the last line of a continued command is deleted, first with the backslash before it. Yield nothing if the
    option's name is not written literally in a file of `texts`.
    """
    if not _literal(setting, texts):
        return
    text, place = texts[setting.place.file], setting.place
    line = _Line(text.data, place)
    if line.alone:
        if not line.continued and line.follows:
            yield (Edit(text.place(line.joint, place.end + len(line.after)), ""),)
        yield (Edit(text.place(line.start, line.end), ""),)
        return
    space_after = len(line.after) - len(line.after.lstrip())
    space_before = len(line.before) - len(line.before.rstrip())
    forward = (Edit(text.place(place.start, place.end + space_after), ""),)
    if line.before.strip():
        yield (Edit(text.place(place.start - space_before, place.end), ""),) if space_before else forward
        return
    if line.after.lstrip()[:1] in (b'"', b"'", b")"):  # the last of a text or an array that ends on this line
        yield (Edit(text.place(line.joint, place.end), ""),)
    yield forward


def added(anchor: Setting, words: Sequence[str], texts: Mapping[str, Text]) -> Iterator[tuple[Edit, ...]]:
    """Yield alternative edits that insert `words` after the option `anchor`; the caller tries each and keeps one.

    First on a new line, continued as the anchor's is, then on the same line; each in up to four quotings. Yield nothing
    if the anchor's name is not written literally in a file of `texts`.
    """
    if not _literal(anchor, texts):
        return
    text, place = texts[anchor.place.file], anchor.place
    line = _Line(text.data, place)
    double = (word if PLAIN.fullmatch(word) else f'"{word}"' for word in words)  # inside of bash -c '...'
    twice = (sh(sh(word)) if sh(word) != word else word for word in words)  # for a shell that is given the words
    spellings = dict.fromkeys((" ".join(map(sh, words)), " ".join(words), " ".join(double), " ".join(twice)))
    for spelled in spellings:
        new_line = f"{line.newline}{line.before.decode('utf-8', 'replace')}{spelled}"
        if line.commented:
            end = place.end + len(line.after)
            yield (Edit(text.place(end, end), new_line),)
        if line.alone:
            if line.continued:  # the rest of the line, with its continuation, once more
                rest = line.after.decode("utf-8", "replace")
                yield (Edit(text.place(place.end, place.end), f"{rest}{new_line}"),)
            ways = [new_line, f" \\{new_line}"]
            for way in reversed(ways) if line.follows else ways:
                yield (Edit(text.place(place.end, place.end), way),)
        yield (Edit(text.place(place.end, place.end), f" {spelled}"),)


def _literal(setting: Setting, texts: Mapping[str, Text]) -> bool:
    """Return whether the option's name is written literally at its place in one of `texts`."""
    if setting.place.file not in texts:
        return False
    return texts[setting.place.file].at(setting.place).lstrip("'\"").startswith(setting.spelled)


class _Line:
    """The line or lines around an option.

    start, end: offsets of the lines. before, after: other text on them, without the line end. alone: nothing else is on
    them. commented: only a comment follows. continued, follows: a backslash ends it, or the line before. joint: offset
    of the end of the line before.
    """

    def __init__(self, data: bytes, place: Place) -> None:
        self.start = data.rfind(b"\n", 0, place.start) + 1
        end = data.find(b"\n", place.end)
        self.end = len(data) if end < 0 else end + 1
        self.before = data[self.start : place.start]
        self.after = data[place.end : self.end].rstrip(b"\r\n")
        self.alone = not self.before.strip() and self.after.strip() in (b"", b"\\")
        self.commented = not self.before.strip() and self.after.lstrip()[:1] == b"#"
        self.continued = self.after.strip() == b"\\"
        previous = data[: self.start].rstrip(b"\r\n")
        self.follows = previous.endswith(b"\\") and self.start > 0
        self.joint = len(previous.removesuffix(b"\\").rstrip() if self.follows else previous.rstrip())
        self.newline = "\r\n" if b"\r\n" in data[: self.end] else "\n"
