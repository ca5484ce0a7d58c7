"""Which files `rag add` finds."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest

from controller.cli.rag.adding import document_id_of, find_files
from retrieval.schema.documents import DOCUMENT_ID_PATTERN


def test_a_pipe_below_a_folder_is_no_file(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("a")
    os.mkfifo(tmp_path / "b")
    assert [file.path.name for file in find_files([tmp_path])] == ["a.txt"]


@pytest.mark.parametrize(
    ("path", "document_id"),
    [("__init__.py", "init__.py"), ("_drafts/a.md", "drafts:a.md"), ("../a b.md", "a-b.md"), ("/", "document")],
)
def test_a_documents_id_is_one_that_retrieval_takes(path: str, document_id: str) -> None:
    assert document_id_of(Path(path)) == document_id
    assert re.fullmatch(DOCUMENT_ID_PATTERN, document_id)
