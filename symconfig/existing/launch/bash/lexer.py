"""Where quotes, brackets and words of bash end, in bytes."""

from __future__ import annotations

from itertools import pairwise

_CLOSERS = {ord("("): ord(")"), ord("{"): ord("}"), ord("["): ord("]")}
BLANK = b" \t\n"
MAX_BRACES, MAX_WORDS = 20, 10_000  # of brace expansion


def skip(data: bytes, at: int, end: int) -> int:
    """Return the place after the character, the quoted string or the expansion at `at`; `end` where it has no end."""
    byte = data[at : at + 1]
    if byte == b"\\":
        return min(at + 2, end)
    if byte == b"'":
        quote = data.find(b"'", at + 1, end)
        return end if quote < 0 else quote + 1
    if byte == b'"':
        return after_double(data, at, end)
    if byte == b"`":
        return after_backtick(data, at, end)
    if byte == b"$" and data[at + 1 : at + 2] in (b"(", b"{"):
        return min(closing(data, at + 1, end) + 1, end)
    if byte == b"$" and data[at + 1 : at + 2] == b"'":
        at += 2
        while at < end and data[at : at + 1] != b"'":
            at += 2 if data[at : at + 1] == b"\\" else 1
        return min(at + 1, end)
    if byte in (b"<", b">") and data[at + 1 : at + 2] == b"(":
        return min(closing(data, at + 1, end) + 1, end)
    return at + 1


def after_double(data: bytes, at: int, end: int) -> int:
    """Return the place after the string that starts at `at` with a double quote."""
    at += 1
    while at < end and data[at : at + 1] != b'"':
        special = data[at : at + 1] in (b"\\", b"`") or data[at : at + 2] in (b"$(", b"${")
        at = skip(data, at, end) if special else at + 1
    return min(at + 1, end)


def after_backtick(data: bytes, at: int, end: int) -> int:
    """Return the place after the substitution that starts at `at` with a backtick."""
    at += 1
    while at < end and data[at : at + 1] != b"`":
        at += 2 if data[at : at + 1] == b"\\" else 1
    return min(at + 1, end)


def closing(data: bytes, at: int, end: int) -> int:
    """Return the bracket that closes the one at `at`; `end` where none does. Never recurses."""
    stack = [_CLOSERS[data[at]]]
    at += 1
    while at < end:
        byte = data[at]
        if stack[-1] == ord('"'):
            if byte == ord("\\"):
                at += 2
                continue
            if byte == ord('"'):
                stack.pop()
            elif byte == ord("$") and data[at + 1 : at + 2] in (b"(", b"{"):
                at += 1
                stack.append(_CLOSERS[data[at]])
        elif byte == stack[-1]:
            stack.pop()
            if not stack:
                return at
        elif byte == ord('"'):
            stack.append(byte)
        elif byte == ord("(") or (byte == ord("{") and data[at - 1 : at] == b"$"):
            stack.append(_CLOSERS[byte])
        elif byte in b"\\'`" and not (byte == ord("'") and ord('"') in stack and stack[-1] == ord("}")):
            at = skip(data, at, end)
            continue
        at += 1
    return end


def word_end(data: bytes, at: int, end: int, stops: bytes = BLANK) -> int:
    """Return the end of the word that starts at `at`."""
    while at < end and data[at] not in stops:
        at = skip(data, at, end)
    return min(at, end)


def words(data: bytes, start: int, end: int) -> list[tuple[int, int]]:
    """Return the words between blanks, of `[[ ]]` and of array literals, without comments."""
    ranges, at = [], start
    while at < end:
        byte = data[at : at + 1]
        if byte in (b" ", b"\t", b"\n"):
            at += 1
        elif byte == b"\\" and data[at + 1 : at + 2] == b"\n":
            at += 2
        elif byte == b"#":
            line = data.find(b"\n", at, end)
            at = end if line < 0 else line
        else:
            stop = word_end(data, at, end)
            ranges.append((at, stop))
            at = stop
    return ranges


def braces(data: bytes, start: int, end: int) -> list[list[tuple[int, int] | str]]:
    """Return what brace expansion makes of a word: runs of its bytes, and texts for the numbers of `{1..3}`."""
    at = start
    while at < end:
        if data[at : at + 1] == b"{" and data[at - 1 : at] != b"$":
            choices = _choices(data, at, end) if data.count(b"{", at, end) <= MAX_BRACES else None
            if choices is not None:
                close, inner = choices
                rest = braces(data, close + 1, end)
                if len(inner) * len(rest) > MAX_WORDS:
                    return [[(start, end)]]
                return [[(start, at), *middle, *after] for middle in inner for after in rest]
        at = skip(data, at, end)
    return [[(start, end)]]


def _choices(data: bytes, at: int, end: int) -> tuple[int, list[list[tuple[int, int] | str]]] | None:
    """Return where the brace at `at` closes, and what may stand in its place."""
    commas, depth, index = [at], 0, at + 1
    while index < end:
        byte = data[index : index + 1]
        if byte == b"{":
            depth += 1
        elif byte == b"}" and depth == 0:
            break
        elif byte == b"}":
            depth -= 1
        elif byte == b"," and depth == 0:
            commas.append(index)
        index = skip(data, index, end)
    if index >= end:
        return None
    if len(commas) == 1:
        texts = _sequence(data[at + 1 : index].decode("utf-8", "replace"))
        return None if texts is None else (index, [[text] for text in texts])
    bounds = [*commas, index]
    return index, [each for first, last in pairwise(bounds) for each in braces(data, first + 1, last)]


def _sequence(inside: str) -> list[str] | None:
    ends = inside.split("..")
    if len(ends) not in (2, 3):
        return None
    try:
        first, last = int(ends[0]), int(ends[1])
        step = abs(int(ends[2])) or 1 if len(ends) == 3 else 1
    except ValueError:
        return None
    if abs(last - first) // step > MAX_WORDS:
        return None
    sign = 1 if last >= first else -1
    width = (
        max(len(each) for each in ends[:2])
        if any(e.lstrip("-").startswith("0") and len(e) > 1 for e in ends[:2])
        else 0
    )
    return [str(number).zfill(width) for number in range(first, last + sign, sign * step)]
