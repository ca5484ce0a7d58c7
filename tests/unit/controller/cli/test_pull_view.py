"""How far a download is, on a terminal and without one."""

from __future__ import annotations

import io
from typing import Any

import pytest
from rich.console import Console
from rich.progress import Progress, TextColumn

from controller.cli.pull.bars import BarView, LineView, open_view
from controller.schema.downloads import Download, DownloadFile

GIB = 2**30


def download(state: str, *done: int, **more: Any) -> Download:
    """A download of files of one GiB each."""
    files = [DownloadFile(path=f"u/r/file-{n}.gguf", size=GIB, done_bytes=each) for n, each in enumerate(done)]
    fields = {
        "id": "dl_1",
        "reference": "hf:u/r",
        "state": state,
        "files": files,
        "total_bytes": sum(each.size for each in files),
        "done_bytes": sum(each.done_bytes for each in files),
        "main": files[0].path if files else None,
        "created_at": 1.0,
    }
    return Download.model_validate(fields | more)


def test_lines_come_with_each_state_reason_and_tenth(capsys: pytest.CaptureFixture[str]) -> None:
    with open_view() as view:
        assert isinstance(view, LineView)
        for each in (
            download("resolving"),
            download("resolving"),
            download("downloading", 0),
            download("downloading", GIB // 100),
            download("downloading", GIB // 2, bytes_per_s=10 * 2**20, remaining_s=51.2),
            download("downloading", GIB // 2, waiting="the source asks to wait 20 s"),
            download("verifying", GIB),
            download("finished", GIB),
        ):
            view.show_download(each)
    assert capsys.readouterr().err.splitlines() == [
        "roundhouse: resolving",
        "roundhouse: downloading: 0 % of 1.00 GiB",
        "roundhouse: downloading: 50 % of 1.00 GiB, 10.0 MiB/s, 51 s left",
        "roundhouse: downloading: the source asks to wait 20 s",
        "roundhouse: verifying",
        "roundhouse: finished",
    ]


def shown(*downloads: Download) -> list[tuple[str, float, float | None, str]]:
    """Name, bytes and words of each bar in the end."""
    progress = Progress(TextColumn("{task.description}"), console=Console(file=io.StringIO()))
    view = BarView(progress)
    for each in downloads:
        view.show_download(each)
    return [(task.description, task.completed, task.total, task.fields["words"]) for task in progress.tasks]


def test_several_files_have_a_bar_each_and_one_for_all() -> None:
    assert shown(
        download("resolving"),
        download("downloading", GIB, 5, bytes_per_s=2048.0, remaining_s=3700.0),
    ) == [
        ("file-0.gguf", GIB, GIB, ""),
        ("file-1.gguf", 5, GIB, ""),
        ("all files", GIB + 5, 2 * GIB, "2.0 KiB/s, 1 h 1 min left"),
    ]


def test_one_file_has_one_bar() -> None:
    assert shown(download("resolving")) == [("r", 0, None, "resolving")]
    assert shown(download("resolving"), download("downloading", 7), download("verifying", GIB)) == [
        ("file-0.gguf", GIB, GIB, "verifying")
    ]
