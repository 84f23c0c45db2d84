"""What a descriptor must and may say of a block that stands in the place of attention."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence

from symconfig.descriptor.layers import Mixer


def check(
    needs: Sequence[str], switches: Sequence[str] = (), divides: Mapping[str, str] | None = None
) -> Callable[[Mixer], Sequence[str]]:
    """Make the check of one block: the sizes that it needs, the switches that it knows, and which size must divide by
    which other."""

    def problems(mixer: Mixer) -> Sequence[str]:
        return tuple(_problems(mixer, needs, switches, divides or {}))

    return problems


def _problems(mixer: Mixer, needs: Sequence[str], switches: Sequence[str], divides: Mapping[str, str]) -> Iterator[str]:
    sizes = mixer.sizes
    missing = [name for name in needs if not sizes.get(name)]
    if missing:
        yield f"{mixer.block} needs {', '.join(missing)} under sizes, each a positive number"
    unknown = sorted(set(sizes) - set(needs))
    if unknown:
        yield f"{mixer.block} has no size {', '.join(unknown)}; its sizes are {', '.join(needs)}"
    strange = sorted(set(mixer.switches) - set(switches))
    if strange:
        yield f"{mixer.block} has no switch {', '.join(strange)}; it knows {', '.join(switches) or 'none'}"
    for whole, part in divides.items():
        if sizes.get(whole) and sizes.get(part) and sizes[whole] % sizes[part]:
            yield f"{mixer.block}: {whole} {sizes[whole]} is not divisible by {part} {sizes[part]}"
