"""From the data of a page to one HTML file: no request to anywhere, and no script but its own."""

from __future__ import annotations

import json
import unicodedata
from base64 import b64encode
from collections.abc import Mapping, Sequence
from hashlib import sha256
from html import escape
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from symconfig.format import masked

ASSETS = Path(__file__).parent / "assets"
SCRIPTS = (
    "echarts.js",
    "views/base.js",
    "views/findings.js",
    "views/files.js",
    "views/plans.js",
    "views/lattice.js",
    "views/why.js",
    "views/ranks.js",
    "views/schedule.js",
    "views/main.js",
)
FRAME_PIXELS = 900  # of a notebook's cell
_HIDING = ("Cf", "Cc", "Co", "Cs")  # categories of letters that change how others look, or do not show


def page(data: Mapping[str, Any], title: str) -> str:
    """Return the HTML of a page; equal data give equal bytes. Its policy allows only its own scripts, by digest."""
    scripts = _scripts(SCRIPTS)
    return _rendered(title, scripts, as_json(data), policy(scripts, _style()))


def drawn(data: Mapping[str, Any]) -> str:
    """Return the HTML of a page's data, with the title in them."""
    return page(data, data["title"])


def framed(html: str) -> str:
    """Return a page in a sandboxed iframe that may run scripts and download only."""
    return (
        f'<iframe sandbox="allow-scripts allow-downloads" style="width:100%;height:{FRAME_PIXELS}px;border:0" '
        f'title="plan" srcdoc="{escape(html, quote=True)}"></iframe>'
    )


def served() -> tuple[str, str]:
    """Return (HTML, content security policy) of the server's page with its form."""
    scripts = _scripts((*SCRIPTS[:-1], "views/form.js", SCRIPTS[-1]))
    allowed = policy(scripts, _style()) + "; connect-src 'self'"
    return _rendered("symconfig", scripts, as_json({"schema": "symconfig.page/1", "served": True}), allowed), allowed


def _scripts(names: Sequence[str]) -> list[str]:
    return [(ASSETS / name).read_text(encoding="utf-8") for name in names]


def _style() -> str:
    return (ASSETS / "style.css").read_text(encoding="utf-8")


def _rendered(title: str, scripts: list[str], data: str, allowed: str) -> str:
    template = Environment(
        loader=FileSystemLoader(ASSETS), autoescape=True, undefined=StrictUndefined, keep_trailing_newline=True
    ).get_template("page.html")
    return template.render(title=shown(title), scripts=scripts, style=_style(), data=data, policy=allowed)


def policy(scripts: list[str], style: str) -> str:
    """Return the content security policy that allows these scripts and this style alone."""
    allowed = " ".join(digest(script) for script in scripts)
    return (
        f"default-src 'none'; script-src {allowed}; style-src {digest(style)}; img-src data: blob:; "
        "base-uri 'none'; form-action 'none'"
    )


def digest(text: str) -> str:
    """Return a text's SHA-256 in the form of a content security policy."""
    return f"'sha256-{b64encode(sha256(text.encode()).digest()).decode()}'"


def as_json(data: Mapping[str, Any]) -> str:
    """Return data as JSON that is safe within HTML: <, >, & and line separators are escaped."""
    text = masked(json.dumps(data, ensure_ascii=False, allow_nan=False, separators=(",", ":")))
    unsafe = {"<", ">", "&", "\u2028", "\u2029"}
    return "".join(f"\\u{ord(letter):04x}" if letter in unsafe else letter for letter in text)


def shown(text: str) -> str:
    """Return a text with invisible and direction-changing characters written out, as `<U+202E>`; newline and tab
    stay.
    """
    return "".join(f"<U+{ord(x):04X}>" if unicodedata.category(x) in _HIDING and x not in "\n\t" else x for x in text)
