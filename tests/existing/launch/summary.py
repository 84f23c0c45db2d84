"""What a reading says, in few words, for tests to compare."""

from __future__ import annotations

from symconfig.existing.launch.files import read_document
from symconfig.existing.launch.reading import Reading
from symconfig.existing.launch.text import Text
from symconfig.existing.launch.trees import parse_yaml


def read_yaml(source: str, **variables: str) -> Reading:
    reading = read_document(parse_yaml(Text("run.yaml", source.encode())), variables)
    assert reading is not None
    return reading


def options(reading: Reading) -> list[str]:
    """One line for each option; a value that is not known is `?`."""
    return [
        " ".join((setting.name, *("?" if word.unknown else word.text for word in setting.values)))
        for setting in reading.settings
    ]


def unread(reading: Reading, *, matters: bool) -> list[str]:
    return [f"{item.place.line} {item.what}: {item.why}" for item in reading.unread if item.matters == matters]


def places_hold(reading: Reading) -> bool:
    """Whether every piece that has a place is what stands there."""
    texts = {text.file: text for text in reading.texts}
    words = [word for setting in reading.settings for word in setting.values]
    return all(
        texts[piece.place.file].at(piece.place) == piece.text
        for word in words
        for piece in word.pieces
        if piece.place is not None
    )
