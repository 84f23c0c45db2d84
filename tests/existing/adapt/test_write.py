"""Writing in place: all or nothing, and a file's mode stays."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from symconfig.errors import InputError
from symconfig.existing.adapt.files import write
from symconfig.existing.launch.text import Text


def text(path: Path, content: bytes = b"A=1\r\n", mode: int = 0o755) -> Text:
    path.write_bytes(content)
    path.chmod(mode)
    return Text(str(path), content)


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_bytes_are_replaced_and_the_mode_is_kept(tmp_path: Path) -> None:
    script = text(tmp_path / "run.sh")
    write({script.file: b"A=2\r\n"}, {script.file: script}, tmp_path)
    assert (tmp_path / "run.sh").read_bytes() == b"A=2\r\n"
    assert (tmp_path / "run.sh").stat().st_mode & 0o7777 == 0o755
    assert names(tmp_path) == ["run.sh"]


def test_a_file_that_has_changed_meanwhile_is_left_alone_and_so_are_the_others(tmp_path: Path) -> None:
    one, two = text(tmp_path / "a.sh"), text(tmp_path / "b.sh")
    (tmp_path / "b.sh").write_bytes(b"somebody else\n")
    with pytest.raises(InputError, match="has changed since it was read"):
        write({one.file: b"new", two.file: b"new"}, {one.file: one, two.file: two}, tmp_path)
    assert (tmp_path / "a.sh").read_bytes() == b"A=1\r\n"
    assert names(tmp_path) == ["a.sh", "b.sh"]


def test_when_the_disk_is_full_no_file_has_changed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    one, two = text(tmp_path / "a.sh"), text(tmp_path / "b.sh")
    real, left = os.write, [1]

    def failing(handle: int, data: bytes) -> int:
        if not left:
            raise OSError(28, "No space left on device")
        return real(handle, data[: left.pop()])

    monkeypatch.setattr(os, "write", failing)
    with pytest.raises(InputError, match="No space left on device"):
        write({one.file: b"new", two.file: b"new"}, {one.file: one, two.file: two}, tmp_path)
    assert [(tmp_path / name).read_bytes() for name in names(tmp_path)] == [b"A=1\r\n"] * 2


def test_a_link_is_followed_in_the_folder_and_not_out_of_it(tmp_path: Path) -> None:
    inside, outside = tmp_path / "jobs", tmp_path / "elsewhere.sh"
    inside.mkdir()
    script = text(inside / "real.sh")
    link = inside / "run.sh"
    link.symlink_to("real.sh")
    write({str(link): b"new"}, {str(link): Text(str(link), script.data)}, inside)
    assert link.is_symlink()
    assert (inside / "real.sh").read_bytes() == b"new"
    text(outside)
    link.unlink()
    link.symlink_to("../elsewhere.sh")
    with pytest.raises(InputError, match="leads out of"):
        write({str(link): b"new"}, {str(link): Text(str(link), b"A=1\r\n")}, inside)
    assert outside.read_bytes() == b"A=1\r\n"


def test_a_file_that_is_gone_is_an_error_with_its_name(tmp_path: Path) -> None:
    script = text(tmp_path / "run.sh")
    (tmp_path / "run.sh").unlink()
    with pytest.raises(InputError, match=r"run\.sh"):
        write({script.file: b"new"}, {script.file: script}, tmp_path)
