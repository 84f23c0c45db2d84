"""How each kind of event looks, everywhere: its letter in a terminal, its colour, and its words."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType


@dataclass(frozen=True, slots=True)
class Look:
    """letter: fills the event in plain text. colour: RGB in hex, after Okabe and Ito's "Color Universal Design", which
    the colour-blind tell apart. traced: the nearest name of the Chrome trace format's own colours. beside: it runs on
    the network while its stage works, so that it has a lane of its own. drawn: otherwise it is in traces only."""

    words: str
    letter: str
    colour: str
    traced: str
    beside: bool = False
    drawn: bool = True


OPTIMIZER = "optimizer"
LEFT_OUT = "left out"
# In the order of legends.
LOOKS: Mapping[str, Look] = MappingProxyType({
    "forward": Look("forward", ">", "#8fcaf0", "thread_state_runnable"),
    "recompute": Look("recompute", "r", "#f0e442", "yellow"),
    "backward": Look("backward", "<", "#e08a00", "rail_animation"),
    "weight": Look("weight gradients", "w", "#3fb08f", "good"),
    "receive": Look("receive", "-", "#8c8c8c", "grey"),
    # A message under way: whether its receiver waits for it is what a drawing shows.
    "send": Look("send", "-", "#b0b0b0", "grey", beside=True, drawn=False),
    "gather": Look("weight gather", "=", "#cc79a7", "rail_load", beside=True),
    "reduce": Look("gradient reduction", "=", "#9a4f86", "terrible", beside=True),
    OPTIMIZER: Look("optimizer", "o", "#d55e00", "bad"),
})
IDLE = "."
