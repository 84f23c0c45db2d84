"""Which fields of the descriptor a key of `config.json` gives."""

from __future__ import annotations

from symconfig.descriptor.architectures.architecture import Architecture
from symconfig.descriptor.architectures.keys import NAMES, RULED
from symconfig.descriptor.model import ModelDescriptor


def goes_to(architecture: Architecture, key: str) -> tuple[str, ...]:
    """Return the descriptor's fields that a key gives as it stands."""
    if key in architecture.ignored:
        return ()
    own = architecture.names.get(key)
    if own is not None or key in RULED or key in architecture.reads:
        return own or ()
    return NAMES.get(key) or ((key,) if key in ModelDescriptor.model_fields else ())


def is_read(architecture: Architecture, key: str) -> bool:
    """Tell whether a key is read at all; of the others nothing but the class's default is understood."""
    return key in RULED or key in architecture.reads or bool(goes_to(architecture, key))
