"""README.md as a package index shows it, where a link to a file beside it would lead nowhere.

With the address of the source (`Source` of [project.urls]) such links become absolute, of this version's tag; without
one they become their text, with the file's name, which is in the source distribution, and pictures are left out.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from hatchling.metadata.plugin.interface import MetadataHookInterface

LINK = re.compile(r"\[([^\]]+)\]\((?!https?://|mailto:|#)([^)\s]+)\)")
PICTURE = re.compile(r"\[!\[([^\]]*)\]\(([^)\s]+)\)\]\(([^)\s]+)\)\n*")  # which is a link
COMMENT = re.compile(r"<!--.*?-->\n*", re.DOTALL)


def of_index(text: str, source: str | None, version: str) -> str:
    """Return the page without comments of the tools that write it, and without links that lead nowhere."""

    def link(match: re.Match[str]) -> str:
        words, file = match[1], match[2]
        if source is not None:
            return f"[{words}]({source.rstrip('/')}/blob/v{version}/{file})"
        return f"`{file}`" if words == file else f"{words} (`{file}`)"

    def picture(match: re.Match[str]) -> str:
        if source is None:
            return ""
        at = source.rstrip("/")
        return f"[![{match[1]}]({at}/raw/v{version}/{match[2]})]({at}/blob/v{version}/{match[3]})\n\n"

    return LINK.sub(link, PICTURE.sub(picture, COMMENT.sub("", text)))


class IndexReadme(MetadataHookInterface):
    """Gives the package the page for an index as its long description."""

    def update(self, metadata: dict[str, Any]) -> None:
        text = Path(self.root, "README.md").read_text(encoding="utf-8")
        source = metadata.get("urls", {}).get("Source")
        metadata["readme"] = {
            "content-type": "text/markdown",
            "text": of_index(text, source, metadata["version"]),
        }
