"""Write the files of an addition, with what is to be filled in: `python -m tools new KIND NAME`.

What an addition consists of lies in tools/new_files/KIND, as the repository has it: `PATH.new` becomes the file PATH,
and what `PATH.insert` holds behind a line `@@ START` is put into PATH behind the line that begins so (`@@ end`: at its
end). In paths and texts NEW_NAME is the name, NEW_MODULE the same as a module has it, NEW_FILE the file of `--in`.
Everything is looked at before anything is written.
"""

from __future__ import annotations

import argparse
import keyword
import re
import sys
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from tools.pages import ROOT

PARTS = ROOT / "tools" / "new_files"
LONGEST = 32  # letters of a name: lines of the files stay below the limit
WORDS, DOTTED, SNAKE = r"[a-z][a-z0-9]*(-[a-z0-9]+)*", r"[a-z0-9]+([.-][a-z0-9]+)*", r"[a-z][a-z0-9]*(_[a-z0-9]+)*"
LEFT = re.compile(r"fill in(?: \S+)?(?:: |\b)([^\"\n]*).*")  # the first of a line, with the line's rest


class RefusedError(Exception):
    """A sentence: why nothing was written."""


@dataclass(frozen=True, slots=True)
class Kind:
    """A kind of addition. form, example: of its names; taken: those that there are; tests: what is run, with NEW_NAME
    and the like; inside: files of which `--in` names one, the first where it names none; then: what follows."""

    form: str
    example: str
    taken: Callable[[], Collection[str]]
    tests: str
    inside: Callable[[], list[str]] = list
    then: str = ""


def blocks() -> Collection[str]:
    from symconfig.graph.parts import parts

    return parts().mixers


def models() -> Collection[str]:
    from symconfig.descriptor.load import zoo_models

    return zoo_models()


def clusters() -> Collection[str]:
    from symconfig.descriptor.load import zoo_clusters

    return zoo_clusters()


def targets() -> Collection[str]:
    from symconfig.render import targets

    return targets()


def rules() -> Collection[str]:
    from symconfig.existing.audit.audit import RULES

    return {rule.name for rule in RULES}


def files_of_rules() -> list[str]:
    """Return the files of rows about Megatron-LM, the most general one first."""
    from symconfig.existing.rules.megatron import FILES, PAIRS

    return sorted({*FILES} - {PAIRS}, key=lambda name: (name != "megatron_switches", name))


KINDS = {
    "block": Kind(SNAKE, "short_conv", blocks, "tests/graph/blocks/test_NEW_MODULE.py"),
    "model": Kind(
        DOTTED,
        "llama3.1-8b",
        models,
        "tests/descriptor/test_load.py tests/descriptor/test_parameter_counts.py -k NEW_NAME",
        then="python -m tools verify real builds its ranks at the size in tools/verify/real.yaml",
    ),
    "cluster": Kind(
        DOTTED,
        "h100",
        clusters,
        "tests/descriptor/test_clusters.py",
        then="python -m tools priors FOLDER, then make accuracy",
    ),
    "target": Kind(
        WORDS,
        "ms-swift",
        targets,
        "tests/render/test_NEW_MODULE.py tests/render/test_run_settings.py tests/render/test_target_pins.py "
        "tests/test_training.py tests/test_formats.py",
        then="python -m tools verify formats NEW_NAME, and verify training",
    ),
    "rule": Kind(
        WORDS, "heads-over-tp", rules, "tests/existing/rules", files_of_rules, "python -m tools generate rules"
    ),
}
PAGE = "docs/contributing.md"


def named(kind: str, name: str, inside: str | None) -> dict[str, str]:
    """Return what stands in the place of each NEW_ word. Raises RefusedError for a name that cannot be one."""
    known, module = KINDS[kind], re.sub(r"[.-]", "_", name)
    if not re.fullmatch(known.form, name) or len(name) > LONGEST or keyword.iskeyword(module):
        raise RefusedError(
            f"{name!r} cannot name a {kind} (need up to {LONGEST} small letters and digits, as {known.example})"
        )
    if name in known.taken():
        raise RefusedError(f"there is a {kind} {name} already")
    files = known.inside()
    if inside and inside not in files:
        raise RefusedError(f"--in {inside} is no file for a {kind} (need {', '.join(files) or 'none'})")
    return {"NEW_NAME": name, "NEW_MODULE": module, "NEW_FILE": inside or (files[0] if files else "")}


def spelled(text: str, words: Mapping[str, str]) -> str:
    """Return a text with the words of the addition."""
    for word, own in words.items():
        text = text.replace(word, own)
    return text


def inserted(text: str, parts: str, path: str) -> str:
    """Return a file's text with the parts of an `.insert` in their places."""
    for start, lines in re.findall(r"^@@ (.*?) *\n((?:(?!@@ ).*\n)*)", parts, re.MULTILINE):
        if start == "end":
            text += lines
            continue
        place = re.search(rf"^{re.escape(start)}.*\n", text, re.MULTILINE)
        if place is None:
            raise RefusedError(f"{path} has no line that begins with {start!r}; tools/new_files must follow it")
        text = text[: place.end()] + lines + text[place.end() :]
    return text


def made(kind: str, words: Mapping[str, str], root: Path) -> Iterator[tuple[Path, str, str]]:
    """Yield each file of an addition, its whole text, and the part of it that is new."""
    folder = PARTS / kind
    for source in sorted(path for path in folder.rglob("*") if path.is_file()):
        path = root / spelled(source.relative_to(folder).with_suffix("").as_posix(), words)
        shown, part = path.relative_to(root).as_posix(), spelled(source.read_text(encoding="utf-8"), words)
        if source.suffix == ".insert":
            yield path, inserted(path.read_text(encoding="utf-8"), part, shown), part
        elif path.exists():
            raise RefusedError(f"there is a file {shown} already")
        else:
            yield path, part, part


def write(texts: Mapping[Path, str]) -> None:
    """Write every file, or leave all as they were."""
    before: dict[Path, bytes | None] = {}
    try:
        before |= {path: path.read_bytes() if path.exists() else None for path in texts}
        for path, text in texts.items():
            path.parent.mkdir(parents=True, exist_ok=True)
            path.unlink(missing_ok=True)  # it may be a second name of another file
            path.write_text(text, encoding="utf-8")
    except OSError as error:
        for path, data in before.items():
            if data is not None:
                path.write_bytes(data)
            else:
                path.unlink(missing_ok=True)
        raise RefusedError(f"{error.filename} cannot be written: {error.strerror}") from error


def imported(config: str, name: str) -> str:
    """Return the descriptor of a config.json under a name."""
    from symconfig.descriptor.load import load_config
    from symconfig.descriptor.write import descriptor_yaml
    from symconfig.errors import SymconfigError

    try:
        model, _ = load_config(Path(config))
    except SymconfigError as error:
        raise RefusedError(str(error)) from error
    left = {"source": "fill in: the address of its config.json", "huggingface_id": "fill in: as Qwen/Qwen3-32B"}
    return descriptor_yaml(model.model_copy(update={"name": name, **left}))


def add(kind: str, name: str, inside: str | None = None, config: str | None = None, root: Path = ROOT) -> list[str]:
    """Write an addition's files and return what is to be read of it, line by line. Raises RefusedError."""
    words = named(kind, name, inside)
    files = list(made(kind, words, root))
    if config:
        files = [(path, *[imported(config, name)] * 2) if path.stem == name else (path, text, part)
                 for path, text, part in files]  # fmt: skip
    write({path: text for path, text, _ in files})
    lines = [f"{'wrote' if text == part else 'added to'} {path.relative_to(root)}" for path, text, part in files]
    lines += ["", "To be filled in:"]
    for path, text, part in files:
        begin = text.index(part) if part in text else 0
        for match in LEFT.finditer(text, begin):
            place = f"{path.relative_to(root)}:{text.count(chr(10), 0, match.start()) + 1}"
            key = text[text.rfind("\n", 0, match.start()) + 1 : match.start()].partition(":")[0].strip(" -")
            lines.append(f"  {place}: {match[1].rstrip(chr(39)) or key}")
    run = spelled(KINDS[kind].tests, words)
    lines += ["", f"Then: {spelled(KINDS[kind].then, words)}"] if KINDS[kind].then else [""]
    return [*lines, f"Tests: .venv/bin/python -m pytest {run}", f"How: {PAGE}, and make test before it is handed in"]


def main() -> None:
    """Write an addition; exit 2 with a sentence where it cannot be."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else None)
    parser.add_argument("kind", choices=KINDS)
    parser.add_argument("name")
    parser.add_argument("--in", dest="inside", help="of a rule: the file, as megatron_training")
    parser.add_argument("--config", help="of a model: its config.json, or the folder that has it")
    options = parser.parse_args()
    try:
        print("\n".join(add(options.kind, options.name, options.inside, options.config)))
    except RefusedError as refused:
        print(f"error: {refused}", file=sys.stderr)
        raise SystemExit(2) from refused
