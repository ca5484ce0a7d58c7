"""The tools of files: what they do in their folder, and that nothing leads out of it."""

from __future__ import annotations

import os
import socket
import stat
from pathlib import Path
from typing import Any

import pytest

from controller.schema.tools import ToolRoute
from gateway.tenancy.api_keys import ANONYMOUS
from gateway.tools.builtin import folder_tools
from gateway.tools.builtin.folder_tools import LARGEST_WRITE, FolderTool
from gateway.tools.files.job_runner import JobRunner
from gateway.tools.spec import ToolCall, ToolResult
from tests.fakes.gateway_harness import gateway_harness
from tests.support.tool_calls import call_code, call_text

TOOLS = {spec.name: spec for spec in vars(folder_tools).values() if hasattr(spec, "display_name")}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A declared folder, beside which a secret lies."""
    (tmp_path / "secret").write_text("the secret")
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside" / "secret").write_text("the secret")
    made = tmp_path / "folder"
    (made / "notes").mkdir(parents=True)
    (made / "notes" / "coal.md").write_text("Coal is in the shed.\nTea is in the kitchen.\nMore coal.\n")
    (made / "to-file").symlink_to(tmp_path / "secret")
    (made / "to-folder").symlink_to(tmp_path / "outside")
    (made / "to-itself").symlink_to("to-itself")
    (made / "notes" / "up").symlink_to("../..")
    os.mkfifo(made / "pipe")
    (made / "binary").write_bytes(b"\x7fELF\0\0\0 the secret")
    return made


async def run(tool: str, folder: Path, timeout_s: float = 30.0, **arguments: Any) -> ToolResult:
    """The answer of a tool on the folder."""
    call = ToolCall(ANONYMOUS, "anonymous", arguments, "req-1", timeout_s, 64 * 1024)
    return await FolderTool(TOOLS[tool], str(folder), JobRunner()).run(call)


async def text(tool: str, folder: Path, **arguments: Any) -> str:
    result = await run(tool, folder, **arguments)
    assert not result.is_error, result.text
    return result.text


async def error(tool: str, folder: Path, **arguments: Any) -> str:
    result = await run(tool, folder, **arguments)
    assert result.is_error, result.text
    return result.text


async def test_a_file_is_read_or_some_of_its_lines(folder: Path) -> None:
    path = "notes/coal.md"
    assert await text("read_file", folder, path=path) == (folder / path).read_text()
    assert await text("read_file", folder, path=f"./notes//{path[6:]}", first_line=2) == (
        "Tea is in the kitchen.\nMore coal.\n"
    )
    assert await text("read_file", folder, path=path, first_line=2, last_line=2) == "Tea is in the kitchen.\n"
    assert await error("read_file", folder, path=path, first_line=9) == "notes/coal.md has 3 lines."
    assert await text("read_file", folder, path=path, first_line=3, last_line=1) == ""


async def test_a_folder_is_listed(folder: Path) -> None:
    assert (await text("list_files", folder)).splitlines() == [
        "binary (18 bytes)",
        "notes/",
        "pipe (no regular file)",
        "to-file (a link, which is not followed)",
        "to-folder (a link, which is not followed)",
        "to-itself (a link, which is not followed)",
    ]
    assert "coal.md (55 bytes)" in await text("list_files", folder, path="notes")
    (folder / "empty").mkdir()
    assert await text("list_files", folder, path="empty/") == "The folder is empty."
    (folder / "empty" / "a\nb").touch()
    assert await text("list_files", folder, path="empty") == "a\N{REPLACEMENT CHARACTER}b (0 bytes)"


async def test_a_large_folder_is_listed_in_part(folder: Path) -> None:
    (folder / "many").mkdir()
    for number in range(2100):
        (folder / "many" / f"{number:05}").touch()
    lines = (await text("list_files", folder, path="many")).splitlines()
    assert len(lines) == 2001
    assert lines[-1] == "[These are 2000 of 2100 entries.]"


async def test_texts_are_searched(folder: Path) -> None:
    (folder / "notes" / "deep").mkdir()
    (folder / "notes" / "deep" / "more.txt").write_text("No COAL here.\n")
    assert await text("search_files", folder, text="oal") == (
        "notes/coal.md:1: Coal is in the shed.\nnotes/coal.md:3: More coal."
    )
    assert await text("search_files", folder, text="coal", ignore_case=True, files="*.txt") == (
        "notes/deep/more.txt:1: No COAL here."
    )
    assert await text("search_files", folder, text=r"^Tea\b.*", regex=True, path="notes/coal.md") == (
        "notes/coal.md:2: Tea is in the kitchen."
    )
    assert await text("search_files", folder, text=".*coal", path="notes") == "No match in 2 files."
    assert "no regular expression" in await error("search_files", folder, text="(", regex=True)


async def test_a_search_has_bounds(folder: Path) -> None:
    (folder / "many").write_text("coal\n" * 1000)
    lines = (await text("search_files", folder, text="coal")).splitlines()
    assert len(lines) == 501
    assert lines[-1] == "[The search ended early: there are 500 matches.]"


async def test_a_search_does_not_follow_links(folder: Path) -> None:
    """Nor does it open what is no regular file, or show what is no text."""
    assert await text("search_files", folder, text="the secret") == "No match in 2 files."


async def test_a_file_is_written_whole(folder: Path) -> None:
    assert await text("write_file", folder, path="new/deep/a.txt", content="Grüße") == (
        "new/deep/a.txt was written: 7 bytes."
    )
    written = folder / "new" / "deep" / "a.txt"
    assert written.read_text() == "Grüße"
    assert await error("write_file", folder, path="new/deep/a.txt", content="x") == (
        "new/deep/a.txt exists. Set `replace` to write it anew."
    )
    assert written.read_text() == "Grüße"
    written.chmod(0o640)
    assert await text("write_file", folder, path="new/deep/a.txt", content="", replace=True) == (
        "new/deep/a.txt was replaced: 0 bytes."
    )
    assert (written.read_text(), stat.S_IMODE(written.stat().st_mode)) == ("", 0o640)
    assert [each.name for each in written.parent.iterdir()] == ["a.txt"], "nothing else stays"


async def test_the_largest_file_is_written_and_no_larger_one(folder: Path) -> None:
    await text("write_file", folder, path="large", content="x" * LARGEST_WRITE)
    assert (folder / "large").stat().st_size == LARGEST_WRITE
    assert "are the most" in await error("write_file", folder, path="larger", content="ä" * LARGEST_WRITE)
    assert not (folder / "larger").exists()


OUTSIDE = (
    *("../secret", "notes/../../secret", "..", "/etc/passwd", "//etc/passwd", "to-file", "to-folder/secret"),
    *("notes/up/secret", "to-itself", "to-itself/x", "notes/coal.md/x", "a\0b", "x" * 300, "x/" * 40 + "x"),
    *("~/.ssh/id_rsa", "%2e%2e/secret", "..%2fsecret", "notes/..\\..\\secret", "file:///etc/passwd"),
)


@pytest.mark.parametrize("path", OUTSIDE)
async def test_no_path_leads_out(folder: Path, path: str) -> None:
    before = sorted(each.name for each in folder.parent.rglob("*"))
    assert "the secret" not in await error("read_file", folder, path=path)
    await error("list_files", folder, path=path)
    await error("search_files", folder, path=path, text="secret")
    if path in OUTSIDE[:14]:
        await error("write_file", folder, path=path, content="x", replace=True)
        assert sorted(each.name for each in folder.parent.rglob("*")) == before
    assert (folder.parent / "secret").read_text() == "the secret"
    assert (folder.parent / "outside" / "secret").read_text() == "the secret"


@pytest.mark.parametrize("path", ["pipe", "notes", ".", "", "socket", "null"])
async def test_only_regular_files_are_opened(folder: Path, path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A pipe would wait for a writer, and a device may do something."""
    listener = socket.socket(socket.AF_UNIX)
    monkeypatch.chdir(folder)  # a socket's path is short
    listener.bind("socket")
    (folder / "null").symlink_to("/dev/null")
    await error("read_file", folder, path=path)
    await error("write_file", folder, path=path, content="x", replace=True)
    listener.close()
    assert stat.S_ISFIFO((folder / "pipe").stat().st_mode)


async def test_a_binary_file_is_said_to_be_one(folder: Path) -> None:
    assert await error("read_file", folder, path="binary") == "binary is a binary file, and no text."
    assert await error("read_file", folder, path="binary", first_line=1, last_line=1) == (
        "binary is a binary file, and no text."
    )


async def test_a_huge_file_is_read_in_part(folder: Path) -> None:
    with (folder / "huge").open("wb") as file:
        file.write(b"line\n" * 10)
        file.truncate(100 * 1024 * 1024 * 1024)  # a hole, which takes no space
    assert "binary" in await error("read_file", folder, path="huge")
    with (folder / "long").open("wb") as file:
        file.write(b"x" * (17 * 1024 * 1024))
    assert (await run("read_file", folder, path="long")).text.count("x") == 64 * 1024 + 1
    assert "1 lines in its first" in await error("read_file", folder, path="long", first_line=2)


async def test_a_folder_that_is_missing_is_said(tmp_path: Path) -> None:
    assert await error("list_files", tmp_path / "nowhere") == (
        "The folder of this tool cannot be opened: No such file or directory."
    )


async def test_a_folder_that_the_system_does_not_let_write_is_said() -> None:
    """Not root either may make a file there."""
    assert "x cannot be written: " in await error("write_file", Path("/proc"), path="x", content="x")


async def test_through_a_gateway_writing_needs_its_own_tool(folder: Path) -> None:
    async with gateway_harness() as gateway:
        await gateway.publish(tools=(ToolRoute(name="read_file", folder=str(folder)), ToolRoute(name="write_file")))
        assert await call_text(gateway, "read_file", path="notes/coal.md", last_line=1) == "Coal is in the shed.\n"
        assert await call_code(gateway, "write_file", path="x", content="x") == (404, "tool_not_found")
        assert await call_code(gateway, "read_file", path=1) == (400, "tool_arguments_invalid")
