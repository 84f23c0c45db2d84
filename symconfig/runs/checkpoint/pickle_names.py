"""Which names a pickle asks for, and whether it ends: read instruction by instruction, and nothing of it is run.

Whoever loads a pickle imports each name in it and calls what it likes with what it likes. Checkpoints ask for the names
of NAMES: those that torch loads with weights_only (torch/_weights_only_unpickler.py, 2.13), that Megatron-LM adds to
them (core/safe_globals.py, core_v0.19), of PyTorch's distributed checkpoints, and of DeepSpeed's and Megatron-LM's own
enumerations and settings. A name is known for certain where it stands in the instruction, or where two texts were put
on the stack right before; any other is none that a pickler writes.
"""

from __future__ import annotations

import pickletools
import re
from dataclasses import dataclass, field

MOST = 10_000_000  # instructions of a checkpoint's pickles, some seconds; a large index of tensors has a few millions
MADE_UP = "a name that is put together as it goes"

NAMES = re.compile(
    r"""
    torch\.(Size|Tensor|device|dtype|Generator|_C\.Generator|per_(tensor|channel)_\w+)
    |torch\.(b?float\d+\w*|u?int\d+|bool|complex\d+|q?u?int\d+\w*|bits\w+|half|long|double)
    |torch\.(cuda\.)?\w*(Storage|Tensor)|torch\.storage\.(Un)?[tT]ypedStorage
    |torch\._utils\._rebuild_\w+|torch\._tensor\._rebuild_from_type_v2|torch\.serialization\._get_layout
    |torch\.nn\.parameter\.(Parameter|Buffer)
    |torch\.distributed\.checkpoint\.((metadata|planner)\._?[A-Z]\w*|filesystem\._Storage\w+)
    |torch\.distributed\.tensor\.(DTensor|placement_types\.[A-Z]\w*|_dtensor_spec\.[A-Z]\w*)
    |collections\.(OrderedDict|defaultdict|deque|Counter)|argparse\.Namespace|types\.SimpleNamespace
    |(builtins|__builtin__)\.(set|frozenset|bytearray|bytes|complex|dict|list|tuple|int|float|str|bool|slice|object)
    |_codecs\.encode|(copyreg|copy_reg)\._reconstructor|_?io\.BytesIO|signal\.Signals
    |pathlib\.(_local\.)?(Pure)?(Posix|Windows)?Path|datetime\.(datetime|timedelta|date)
    |numpy\.(ndarray|dtype|dtypes\.\w+DType|_?core\.multiarray\.(_reconstruct|scalar))
    |megatron\.core\.((\w+\.)*enums\.\w+|optimizer(\.optimizer_config)?\.OptimizerConfig)
    |megatron\.core\.rerun_state_machine\.Rerun\w+
    |deepspeed\.runtime\.(fp16\.loss_scaler\.\w*LossScaler|zero\.(config|offload_config)\.[A-Z]\w*)
    |deepspeed\.utils\.tensor_fragment\.\w+|transformer_engine\.common\.recipe\.[A-Z]\w*
    """,
    re.VERBOSE,
)

# How many bytes follow an instruction: a number; -1, -4, -8: those of a length, and as many as it says; LINE, LINES.
LINE, LINES, NONE = -10, -20, -30
_PREFIX = {
    pickletools.TAKEN_FROM_ARGUMENT1: -1,
    pickletools.TAKEN_FROM_ARGUMENT4: -4,
    pickletools.TAKEN_FROM_ARGUMENT4U: -4,
    pickletools.TAKEN_FROM_ARGUMENT8U: -8,
}
_SIZES = [NONE] * 256
_CODES: dict[str, int] = {}
for _op in pickletools.opcodes:
    _CODES[_op.name] = ord(_op.code)
    if _op.arg is None or _op.arg.n >= 0:
        _SIZES[ord(_op.code)] = 0 if _op.arg is None else _op.arg.n
    elif _op.arg.n == pickletools.UP_TO_NEWLINE:
        _SIZES[ord(_op.code)] = LINES if _op.arg.name == "stringnl_noescape_pair" else LINE
    else:
        _SIZES[ord(_op.code)] = _PREFIX[_op.arg.n]
_TEXTS = {_CODES[name] for name in ("SHORT_BINUNICODE", "BINUNICODE", "BINUNICODE8", "UNICODE")}
_PUTS = {_CODES[name] for name in ("BINPUT", "LONG_BINPUT", "PUT")}
_GETS = {_CODES[name] for name in ("BINGET", "LONG_BINGET", "GET")}
_EXTENSIONS = {_CODES[name] for name in ("EXT1", "EXT2", "EXT4")}
_NAMED = {_CODES["GLOBAL"], _CODES["INST"]}
_STOP, _MEMOIZE, _STACK_GLOBAL = (_CODES[name] for name in ("STOP", "MEMOIZE", "STACK_GLOBAL"))
_QUIET = {_CODES["PROTO"], _CODES["FRAME"]}
_SEEN = _TEXTS | _PUTS | _GETS | _EXTENSIONS | _NAMED | _QUIET | {_STOP, _MEMOIZE, _STACK_GLOBAL}


class NotWholeError(Exception):
    """A pickle that does not end, or none."""


class TooLongError(Exception):
    """More instructions than any checkpoint's pickles have."""


@dataclass(slots=True)
class Names:
    """The names in pickles that are not in NAMES. left: instructions that may still be read."""

    foreign: set[str] = field(default_factory=set)
    left: int = MOST

    def read(self, data: bytes, start: int = 0) -> int:
        """Read one pickle, and return where it ends. Raises NotWholeError, TooLongError."""
        try:
            return self._read(data, start)
        except (IndexError, ValueError):
            raise NotWholeError from None

    def _read(self, data: bytes, place: int) -> int:
        memo: dict[int, str | None] = {}
        texts: list[str | None] = []  # put on the stack one after the other, up to here
        while True:
            self.left -= 1
            if self.left < 0:
                raise TooLongError
            code = data[place]
            size, first = _SIZES[code], place + 1
            place = first + size if size >= 0 else _end(data, first, size)
            if code not in _SEEN:
                texts = []
            elif code in _TEXTS:
                body = data[first : place - 1] if size == LINE else data[first - size : place]
                texts.append(body.decode("raw-unicode-escape" if size == LINE else "utf-8", "replace"))
            elif code in _GETS:
                texts.append(memo.get(_index(data, first, place, size)))
            elif code in _PUTS or code == _MEMOIZE:
                where = len(memo) if code == _MEMOIZE else _index(data, first, place, size)
                memo[where] = texts[-1] if texts else None
            elif code == _STOP:
                return place
            elif code not in _QUIET:
                self._named(code, data[first:place], texts)
                texts = []

    def _named(self, code: int, argument: bytes, texts: list[str | None]) -> None:
        """Take the name that an instruction asks for."""
        pair = texts[-2:] if code == _STACK_GLOBAL else argument.decode("utf-8", "replace").split("\n")[:2]
        known = code not in _EXTENSIONS and len(pair) == 2 and None not in pair
        name = ".".join(map(str, pair)) if known else MADE_UP
        if not known or not NAMES.fullmatch(name):
            self.foreign.add(name)


def _end(data: bytes, first: int, size: int) -> int:
    """Return where an instruction ends whose size it says itself. Raises ValueError where that is behind the data."""
    if size == NONE:
        raise ValueError("no instruction")
    if size in (LINE, LINES):
        end = data.index(b"\n", first) + 1
        return end if size == LINE else data.index(b"\n", end) + 1
    end = first - size + int.from_bytes(data[first : first - size], "little")
    if end > len(data):
        raise ValueError("cut off")
    return end


def _index(data: bytes, first: int, end: int, size: int) -> int:
    return int(data[first : end - 1]) if size == LINE else int.from_bytes(data[first:end], "little")
