"""A file that a script writes, said in places of the script: `cat <<EOF > ds.json`."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from itertools import accumulate

from symconfig.existing.launch.reading import Piece, Span, Tree
from symconfig.existing.launch.text import Place, Text


def traced(tree: Tree, pieces: Sequence[Piece], texts: Sequence[Text]) -> Tree:
    """Return the tree with its places where its characters stand literally: in the script, or where a variable got its
    value.

    The tree as it is, where some come from elsewhere, or from more than one file.
    """
    by_file = {text.file: text for text in texts}
    literal = [_literal(piece, by_file) for piece in pieces]
    starts = [0, *accumulate(len(piece.text.encode()) for piece in pieces)]

    def moved(place: Place | None) -> Place | None:
        """Move both ends to where they come from; empty places have none."""
        if place is None or place.start >= place.end:
            return None
        first, last = (bisect_right(starts, offset) - 1 for offset in (place.start, place.end - 1))
        head, tail = literal[first], literal[last]
        if head is None or tail is None or head.file != tail.file:
            return None
        start, end = head.start + place.start - starts[first], tail.start + place.end - starts[last]
        return by_file[head.file].place(start, end) if start < end else None

    spans = {}
    for path, span in tree.spans.items():
        key, value = moved(span.key), moved(span.value)
        if value is None or (key is None) != (span.key is None):
            return tree
        spans[path] = Span(key, value)
    files = {span.value.file for span in spans.values()}
    return Tree(by_file[files.pop()], tree.data, spans, tree.syntax, tree.unread) if len(files) == 1 else tree


def _literal(piece: Piece, texts: dict[str, Text]) -> Place | None:
    """Return where the piece stands with exactly its characters."""
    place = piece.place
    if place is None or place.file not in texts or texts[place.file].at(place) != piece.text:
        return None
    return place
