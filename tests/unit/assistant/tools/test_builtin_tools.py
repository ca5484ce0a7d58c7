"""The calculator: values, problems, and that no expression takes long."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from assistant.tools.builtin.arithmetic import ArithmeticProblem, evaluate
from assistant.tools.builtin.fetch_url import PageHosts
from assistant.tools.files.file_jobs import ConfinedFolder, FileProblem, list_files, read_file, search_files, split_path
from assistant.tools.files.html_text import extract_text
from assistant.tools.files.job_runner import SLICE_BYTES, decode_text


@pytest.mark.parametrize(
    ("expression", "value"),
    [
        *(("1 + 1", "2"), ("0.1 + 0.2", "0.3"), ("2 ** 3 ** 2", "512"), ("-2 ** 2", "-4"), ("2 ** -1", "0.5")),
        *(("2^10", "1024"), ("7 // -2", "-4"), ("7 % -2", "-1"), ("-7 % 3", "2")),
        *(("1 / 3", "0.33333333333333333333"), ("(3 + 4) * -(2 - 5)", "21")),
        *(("3 \u00d7 4 \u00f7 2 \u2212 1", "5"), ("1_000 * .5", "500"), ("1.5e3", "1500")),
        *(("1e-7", "0.0000001"), ("1e-30", "1E-30"), ("10 ** 59", "1" + "0" * 59), ("10 ** 60", "1E+60")),
        *(("123456789 ** 7", str(123456789**7)), ("sqrt(2)", "1.4142135623730950488"), ("sin(pi)", "0")),
        *(("cos(0)", "1"), ("log(8, 2)", "3"), ("ln(e)", "1"), ("log10(1000)", "3")),
        *(("round(2.567, 2)", "2.57"), ("round(1234, -2)", "1200"), ("floor(-1.5) + ceil(-1.5)", "-3")),
        *(("max(1, 2, min(9, 4))", "4"), ("abs(-3.50)", "3.5"), ("-0", "0"), ("2 ** -9999999", "0")),
        *(("round(10 ** 70)", "1E+70"), ("round(10 ** 62 + 0.5, 20)", "1E+62"), ("round(7, 64)", "7")),
        # Whole numbers of more digits than are shown.
        *(("10**70 % 7", "4"), ("(10**64 + 1) % 7", "5"), ("2**300 % 5", "1"), ("-(10**70) % 7", "3")),
        *(("10**200 // 3 % 10", "3"), ("10**80 // 7 * 7 + 10**80 % 7 - 10**80", "0"), ("1e-20000 + 1", "1")),
        *(("10**64 + 1 - 10**64", "1"), ("10**70 // 10**6", "1E+64"), ("(10**70 + 1) * 3 / 3 - 10**70", "1")),
        *(("-(10**70 + 1) + 10**70", "-1"), ("abs(-(10**70) - 1) % 10", "1"), ("7**999 % 1000", "143")),
        *((f"{10**99 + 7} % 10", "7"), ("round(10**70 + 51, -2) % 10**4", "100"), ("floor(10**70 + 1) % 10", "1")),
        *(("1e999 % 7", str(pow(10, 999, 7))), ("1e70 % 0.7", "0.5"), ("1e999 % 1e-9999", "0")),
        *(
            ("1e30 // 1e-40", "1E+70"),
            ("5e70 // 1e12", "5" + "0" * 58),
            ("-1 // 1e999", "-1"),
            ("-1 % 1e70 % 10", "9"),
        ),
        *(("floor(log(125, 5))", "3"), ("floor(log(1000, 10))", "3"), ("log(2, 10)", "0.30102999566398119521")),
    ],
)
def test_an_expression_has_its_value(expression: str, value: str) -> None:
    assert evaluate(expression) == value


@pytest.mark.parametrize(
    ("expression", "reason"),
    [
        *(("1 / 0", "It divides by zero."), ("1 % 0", "It divides by zero.")),
        *(("1 // 0", "It divides by zero."), ("0 ** -1", "It has no value"), ("0 / 0", "It has no value")),
        *(("sqrt(-1)", "It has no value"), ("ln(0)", "It has no value")),
        *(("(-8) ** (1 / 3)", "It has no value"), ("asin(2)", "It has no value")),
        ("9 ** 9 ** 9 ** 9", "A number in it is larger than 10 to the power of 9999."),
        *(("7**9999 % 7", "`//` and `%` take numbers of at most 1000 digits."), ("1 // 1e1000", "`//` and `%` take")),
        *(("1e999 // 1e-9999", "A number in it is larger"), ("1e5000 * 1e5000", "A number in it is larger")),
        *(("1e99999", "A number in it is larger"), ("exp(1e9)", "A number in it is larger")),
        ("round(1, 1e9)", "round takes at most 64 places."),
        ("", "A number is expected where the end stands."),
        ("1 +", "A number is expected where the end stands."),
        *(("(1", "`)` is expected where the end stands."), ("1 2", "the end is expected where `2` stands.")),
        *(("1)", "the end is expected where `)` stands."), ("max()", "A number is expected where `)` stands.")),
        *(("sqrt(1, 2)", "sqrt does not take 2 numbers."), ("x", "There is no constant 'x'")),
        *(("eval(1)", "There is no function 'eval'"), ("sqrt", "There is no constant 'sqrt'")),
        ("__import__('os')", "It cannot be read at character 12"),
        ("1 if 1 else 2", "the end is expected where `if` stands."),
        ("(1).real", "It cannot be read at character 4"),
        ("٣", "It cannot be read at character 1"),
        ("(" * 60 + "1" + ")" * 60, "More than 50 parentheses"),
        ("-" * 60 + "1", "More than 50 parentheses"),
        ("2**" * 60 + "1", "It has more than 32 functions and powers."),
        ("ln(2)+" * 33 + "1", "It has more than 32 functions and powers."),
        ("1" * 1001, "The expression is longer than 1000 characters."),
    ],
)
def test_an_expression_that_cannot_be_computed_says_why(expression: str, reason: str) -> None:
    with pytest.raises(ArithmeticProblem) as caught:
        evaluate(expression)
    assert str(caught.value).startswith(reason)


@given(st.text(st.sampled_from("0123456789.eE+-*/%^(), abclnoqrstxp"), max_size=60))
def test_whatever_is_written_has_a_value_or_a_problem(expression: str) -> None:
    try:
        told = evaluate(expression)
    except ArithmeticProblem as problem:
        told = str(problem)
    assert 0 < len(told) < 250


HOSTS = PageHosts(("docs.python.org", "*.example.org", "wiki:8080"))


@pytest.mark.parametrize(
    ("scheme", "host", "port", "reason"),
    [
        *((scheme, "docs.python.org", port, None) for scheme, port in (("https", 443), ("http", 80))),
        *(("https", host, 443, None) for host in ("docs.python.org.", "a.example.org")),
        ("https", "a.b.example.org", 80, None),
        ("http", "wiki", 8080, None),
        ("ftp", "docs.python.org", 21, "ftp: is not a scheme of pages"),
        ("https", "docs.python.org", 8443, "port 8443 is not among those that are allowed"),
        ("https", "a.example.org", 22, "port 22 is not among those that are allowed"),
        *(("https", host, 443, "the host is not among those that are allowed")
          for host in ("example.org", "notexample.org", "a.docs.python.org", "wiki", "")),
    ],
)  # fmt: skip
def test_pages_are_fetched_from_allowed_hosts_alone(scheme: str, host: str, port: int, reason: str | None) -> None:
    assert HOSTS.find_refusal(scheme, host, port) == reason
    # Only whole names may be private.
    private = [("docs.python.org", 443), ("wiki", 8080), ("a.example.org", 443)]
    assert [HOSTS.literal.has(*each) for each in private] == [True, True, False]


@pytest.mark.parametrize(
    ("markup", "text"),
    [
        *(("", ""), ("<p>a<p>b", "a\n\nb"), ("a<br>b", "a\nb"), ("<h1>A</h1><h3>B</h3>c", "# A\n\n### B\n\nc")),
        *(("<ul><li>a</li><li>b</li></ul>", "- a\n- b"), ("<title>T</title><p>a", "T\n\na")),
        ("<head><title>T</title><meta x><style>s</style></head><body>a", "T\n\na"),
        ("<head><title>T</title><body>a", "T\n\na"),
        # Without the end of the head and the start of the body, which may be left out.
        ('<!doctype html><head><meta charset="utf-8"><p>text', "text"),
        ("<head><title>T</title><script>x</script><link><noscript><p>n</noscript><h1>a</h1></head>b", "T\n\n# a\n\nb"),
        ("<head>\n<title>T</title>\na<b>b</b>", "T\n\nab"),
        ("<script>x<p>y</script>a<style>z</style>", "a"),
        ("<noscript>x</noscript><svg><text>y</text></svg>a", "a"),
        ("a &amp; b &lt;c&gt; &eacute;", "a & b <c> \u00e9"),
        ("a\u00a0 \t b", "a b"),
        ('<a href="https://x.org/">x</a>', "[x](https://x.org/)"),
        ('<a href="javascript:alert(1)">x</a><a>y</a></a>', "xy"),
        ("<table><tr><th>a<th>b<tr><td>1<td>2</table>", "| a | b\n\n| 1 | 2"),
        *(("<!-- c -->a", "a"), ("a</p></div></script></svg>b", "a\n\nb"), ("<![CDATA[x]]>a", "xa")),
        # What the standard library's parser raises for, or reads again and again.
        *(("a<![x[b]]>c", "a<![x[bc"), ("a<!--" * 100_000, "a"), ("a<b " * 100_000 + "c", ("a<b " * 100_000 + "c"))),
        ("<svg>x", ""),
    ],
)
def test_markup_is_reduced_to_its_text(markup: str, text: str) -> None:
    assert extract_text(markup) == text


TEXT = "Größe 日本語 \N{GRINNING FACE} end. " * 40_000


@pytest.mark.parametrize("charset", ["utf-8", "utf-16", "utf-16-le", "shift_jis", "iso2022_jp", "gb18030", "ascii"])
async def test_a_text_in_slices_is_the_whole(charset: str) -> None:
    whole = TEXT.encode(charset, errors="replace")
    assert len(whole) > 2 * SLICE_BYTES + 3
    for data in (whole, whole[:-1], whole[:-2], whole[:-3]):
        assert await decode_text(data, charset) == data.decode(charset, errors="replace")


async def test_the_event_loop_goes_on_in_between() -> None:
    turns = 0

    async def count() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    counting = asyncio.create_task(count())
    await decode_text(bytes(4 * SLICE_BYTES), "utf-8")
    counting.cancel()
    assert turns == 4
    with pytest.raises(LookupError):
        await decode_text(b"x", "martian")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    made = tmp_path / "folder"
    (made / "a" / "b").mkdir(parents=True)
    (made / "a" / "b" / "file").write_text("inside")
    (tmp_path / "outside" / "b").mkdir(parents=True)
    (tmp_path / "outside" / "b" / "file").write_text("the secret")
    return made


def read(folder: Path, path: str) -> str:
    with ConfinedFolder(str(folder)).open_file(split_path(path)) as descriptor:
        return os.read(descriptor, 100).decode()


def swap_before(monkeypatch: pytest.MonkeyPatch, name: str, swap: Any) -> None:
    """Have `swap` done once, just before the part `name` of a path is opened: as another program may."""
    opened, waiting = os.open, [swap]

    def open_after_swap(path: Any, *arguments: Any, **more: Any) -> int:
        if path == name and waiting:
            waiting.pop()()
        return opened(path, *arguments, **more)

    monkeypatch.setattr(os, "open", open_after_swap)


def replace_by_link(path: Path, target: Path) -> None:
    path.rename(path.with_name(f"{path.name}-before"))
    path.symlink_to(target)


def test_a_folder_that_becomes_a_link_is_not_followed(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (folder.parent / "link").symlink_to(folder)
    assert read(folder.parent / "link", "a/b/file") == "inside", "the declared folder may be a link"
    swap_before(monkeypatch, "a", lambda: replace_by_link(folder / "a", folder.parent / "outside"))
    with pytest.raises(FileProblem, match="links are not followed"):
        read(folder, "a/b/file")


def test_a_folder_that_becomes_a_link_later_is_the_one_before(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    swap_before(monkeypatch, "b", lambda: replace_by_link(folder / "a", folder.parent / "outside"))
    assert read(folder, "a/b/file") == "inside"


@pytest.mark.parametrize("becomes", ["link", "pipe"])
def test_a_file_that_becomes_another_is_not_opened(folder: Path, monkeypatch: pytest.MonkeyPatch, becomes: str) -> None:
    """After it was looked at, and before it is opened."""
    file = folder / "a" / "b" / "file"

    def swap() -> None:
        file.unlink()
        if becomes == "pipe":
            os.mkfifo(file)
        else:
            file.symlink_to(folder.parent / "outside" / "b" / "file")

    swap_before(monkeypatch, "file", swap)
    with pytest.raises(FileProblem, match="no regular file" if becomes == "pipe" else "links are not followed"):
        read(folder, "a/b/file")


def test_a_link_where_a_file_is_written_is_replaced_itself(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    secret = folder.parent / "outside" / "b" / "file"
    replaced = os.replace

    def link_and_replace(source: str, target: str, **more: Any) -> None:
        (folder / "new").symlink_to(secret)
        replaced(source, target, **more)

    monkeypatch.setattr(os, "replace", link_and_replace)
    ConfinedFolder(str(folder)).write_file(["new"], b"written", may_replace=False)
    assert secret.read_text() == "the secret"
    assert not (folder / "new").is_symlink()
    assert (folder / "new").read_text() == "written"


def test_a_write_that_fails_leaves_nothing_and_no_descriptor_stays_open(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = sorted(each.name for each in Path("/proc/self/fd").iterdir())
    read(folder, "a/b/file")
    for path in ("a/b", "a/x/y", "a/b/file/x"):
        with pytest.raises(FileProblem):
            read(folder, path)
    ConfinedFolder(str(folder)).write_file(["n", "m"], b"x", may_replace=False)
    assert sorted(each.name for each in Path("/proc/self/fd").iterdir()) == before

    def fail(_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(FileProblem, match="No space left"):
        ConfinedFolder(str(folder)).write_file(["a", "b", "file"], b"new", may_replace=True)
    assert (folder / "a" / "b" / "file").read_text() == "inside"
    assert [each.name for each in (folder / "a" / "b").iterdir()] == ["file"]


LINES = ["a fox", "a dog \f \v \u2028 \x85 \x1c", "", "größe", "the end"]
"""Of text editors: at what looks like a break in Python's texts, and is none there, no line ends."""


@pytest.mark.parametrize("end", ["\n", "\r\n", "\r"])
@pytest.mark.parametrize("is_ended", [True, False])
def test_a_search_counts_the_lines_that_are_read(folder: Path, end: str, is_ended: bool) -> None:
    (folder / "text").write_bytes((end.join(LINES) + end * is_ended).encode())
    limits: dict[str, Any] = {"is_regex": True, "ignores_case": False, "files": "text", "within_s": 10}
    found = search_files(str(folder), "", "^", **limits).split("\n")
    assert found == [f"text:{number}: {line.strip()}" for number, line in enumerate(LINES, start=1)]
    assert search_files(str(folder), "", "x$", **limits) == "text:1: a fox"
    read_lines = [
        read_file(str(folder), "text", first_line=number, last_line=number, most_bytes=100)
        for number in range(1, len(LINES) + 1)
    ]
    assert "".join(read_lines).encode() == (folder / "text").read_bytes()
    assert [line.rstrip("\r\n") for line in read_lines] == LINES
    with pytest.raises(FileProblem, match="text has 5 lines"):
        read_file(str(folder), "text", first_line=6, last_line=None, most_bytes=100)


def test_a_hard_link_is_neither_read_nor_replaced_nor_searched(folder: Path) -> None:
    """It may be a second name of a file outside."""
    secret = folder.parent / "outside" / "b" / "file"
    (folder / "a" / "linked").hardlink_to(secret)
    with pytest.raises(FileProblem, match=r"a/linked has a second name \(a hard link\)"):
        read(folder, "a/linked")
    with pytest.raises(FileProblem, match="a hard link"):
        ConfinedFolder(str(folder)).write_file(["a", "linked"], b"new", may_replace=True)
    assert secret.read_text() == "the secret"
    assert list_files(str(folder), "a") == "b/\nlinked (a hard link, which is not opened)"
    found = search_files(str(folder), "", "e", is_regex=False, ignores_case=False, files="*", within_s=10)
    assert found == "a/b/file:1: inside"
    secret.unlink()
    assert read(folder, "a/linked") == "the secret", "it has one name now"
