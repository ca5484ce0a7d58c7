"""Which files `rag add` finds."""

from __future__ import annotations

import os
from pathlib import Path

from controller.cli.rag.adding import find_files


def test_a_pipe_below_a_folder_is_no_file(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("a")
    os.mkfifo(tmp_path / "b")
    assert [file.path.name for file in find_files([tmp_path])] == ["a.txt"]
