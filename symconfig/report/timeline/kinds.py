"""How each kind of event looks, everywhere: its letter in a terminal, its colour, and its words."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType


@dataclass(frozen=True, slots=True)
class Look:
    """letter: fills the event in plain text. style: of that letter, in colours that every terminal has. colour: RGB in
    hex, after Okabe and Ito's "Color Universal Design", which the colour-blind tell apart. traced: the nearest name of
    the Chrome trace format's own colours. alongside: it runs on the network while its stage works, so that it has a
    lane of its own. drawn: otherwise it is in traces only."""

    words: str
    letter: str
    style: str
    colour: str
    traced: str
    alongside: bool = False
    drawn: bool = True


OPTIMIZER = "optimizer"
LEFT_OUT = "left out"
# In the order of legends.
LOOKS: Mapping[str, Look] = MappingProxyType(
    {
        "forward": Look("forward", ">", "black on bright_blue", "#8fcaf0", "thread_state_runnable"),
        "recompute": Look("recompute", "r", "black on bright_yellow", "#f0e442", "yellow"),
        "backward": Look("backward", "<", "black on yellow", "#e08a00", "rail_animation"),
        "weight": Look("weight gradients", "w", "black on green", "#3fb08f", "good"),
        "receive": Look("receive", "-", "white on bright_black", "#8c8c8c", "grey"),
        # A message under way: whether its receiver waits for it is what a drawing shows.
        "send": Look("send", "-", "white on bright_black", "#b0b0b0", "grey", alongside=True, drawn=False),
        "gather": Look("weight gather", "=", "black on bright_magenta", "#cc79a7", "rail_load", alongside=True),
        "reduce": Look("gradient reduction", "=", "white on magenta", "#9a4f86", "terrible", alongside=True),
        OPTIMIZER: Look("optimizer", "o", "white on red", "#d55e00", "bad"),
    }
)
IDLE = "."
