"""What a file's text means: YAML 1.2's core schema, with lines."""

from __future__ import annotations

import pytest

from controller.config.yaml12 import MAX_DEPTH, MAX_NODES, SourcePlace, Table, read_document, to_plain_value

TAG = "a tag that is not known here; a text that begins with ! is put in quotes"
INFINITE = "not a finite number; a text that looks like one is put in quotes"


def values(text: str) -> object:
    table, problems = read_document("f.yaml", text.encode())
    assert not problems, [str(problem) for problem in problems]
    assert table is not None
    return to_plain_value(table)


def problems(text: str | bytes) -> list[str]:
    content = text if isinstance(text, bytes) else text.encode()
    return [str(problem) for problem in read_document("f.yaml", content)[1]]


@pytest.mark.parametrize(
    ("written", "meant"),
    [
        *((text, text) for text in ("on", "off", "yes", "No", "1_000", "12:30:45", "2026-01-01", "=")),
        ("true", True),
        ("FALSE", False),
        ("012", 12),
        ("0o17", 15),
        ("0x1F", 31),
        ("-3", -3),
        ("1.5", 1.5),
        ("1e3", 1000.0),
        ("'4'", "4"),
        ('"true"', "true"),
        ("!!str 4", "4"),
        ("! 4", "4"),
        ('"\\ud83d\\ude00"', "😀"),
        ("|\n  x\n  y\n", "x\ny\n"),
    ],
)
def test_scalars_are_those_of_yaml_1_2(written: str, meant: object) -> None:
    found = values(f"a: {written}")
    assert found == {"a": meant}
    assert isinstance(found, dict)
    assert type(found["a"]) is type(meant)


def test_null_is_kept_until_the_merge_and_then_leaves_the_key_out() -> None:
    table, _ = read_document("f.yaml", b"a: null\nb: ~\nc:\nd: [null]\n")
    assert table is not None
    assert list(table.entries) == ["a", "b", "c", "d"]
    assert to_plain_value(table) == {"d": [None]}


def test_json_is_yaml_also_indented_with_tabs() -> None:
    assert values('{\n\t"models": {"a":{"backend":"stub",\n\t"replicas":2}}\n}') == {
        "models": {"a": {"backend": "stub", "replicas": 2}}
    }


def test_an_anchor_may_be_used_again() -> None:
    assert values("a: &x {b: [1]}\nc: *x\n") == {"a": {"b": [1]}, "c": {"b": [1]}}


@pytest.mark.parametrize("text", ["", "# only a comment\n", "---\n", "null\n", "\ufeff"])
def test_a_file_without_content_declares_nothing(text: str) -> None:
    assert values(text) == {}


def test_every_value_knows_its_line() -> None:
    table, _ = read_document("f.yaml", b"# c\na:\n  b: 1\n  c:\n    - x\n    - y\n")
    assert table is not None
    inner = table.get("a")
    assert isinstance(inner, Table)
    assert inner.entries["b"].place == SourcePlace("f.yaml", 3)
    assert inner.entries["c"].place == SourcePlace("f.yaml", 4)
    assert [item.place.line for item in inner.entries["c"].node.items] == [5, 6]  # type: ignore[union-attr]


def test_lines_are_counted_as_editors_count_them() -> None:
    # U+2028 and U+0085 begin a new line in YAML 1.1 only.
    assert problems("a: 'x\u2028y\u0085z'\nb: [\n") == [
        "f.yaml:2: not YAML 1.2: expected the node content, but found '<stream end>', while parsing a flow node"
    ]
    assert problems("a: 1\r\na: 2\r\n") == ["f.yaml:2: `a` stands twice; it is first on line 1"]


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("a: 1\nb: 2\na: 3\n", "f.yaml:3: `a` stands twice; it is first on line 1"),
        ("a:\n\tb: 1\n", "f.yaml:2: a tab; YAML indents with spaces"),
        ("a: b: c\n", "f.yaml:1: not YAML 1.2: mapping values are not allowed here"),
        *((f"{key}: x\n", "f.yaml:1: a key is a string: put it in quotes") for key in ("7", "true", "null")),
        ("[a]: x\n", "f.yaml:1: a key is a string"),
        (
            "a: *b\n",
            "f.yaml:1: an alias whose anchor does not stand before it; a text that begins with * is put in quotes",
        ),
        ("a: &b\n  c: *b\n", "f.yaml:2: an alias that stands within its own anchor"),
        (
            "a: &a {x: 1}\nb:\n  <<: *a\n",
            "f.yaml:3: `<<` is not part of YAML 1.2; write the fields, or use an alias for a whole value",
        ),
        ("a: 1\n---\nb: 2\n", "f.yaml:2: a second document begins; a file holds one"),
        ("%YAML 1.1\n---\na: on\n", "f.yaml:2: files are read as YAML 1.2; leave the %YAML line out"),
        *((f"a: {tagged}\n", f"f.yaml:1: {TAG}") for tagged in ("!secret x", "!!set {x}")),
        ("a: !hunter2!secret x\n", "f.yaml:1: not YAML 1.2: found undefined tag handle, while parsing a node"),
        *((f"a: {number}\n", f"f.yaml:1: {INFINITE}") for number in (".inf", "1e999")),
        ("a: 99999999999999999999\n", "f.yaml:1: too large a number; a text of digits is put in quotes"),
        ('a: "\\ud83d"\n', "f.yaml:1: half of a surrogate pair"),
        ("a: x\nb: \x07\n", "f.yaml:2: character U+0007 is not allowed"),
        (b"a: x\nb: caf\xe9\n", "f.yaml:2: not UTF-8: byte 0xe9"),
        *(
            (text, "f.yaml:1: a file is a mapping whose keys are `models` and `keys`")
            for text in ("- a\n- b\n", "hello\n")
        ),
    ],
)
def test_what_cannot_be_read_says_where_and_why(text: str | bytes, problem: str) -> None:
    assert problems(text) == [problem]


def test_every_fault_is_reported_and_a_file_that_ends_too_early_is_unknown_not_empty() -> None:
    assert problems("a: 1\na: 2\n3: x\nb: !x y\n") == [
        "f.yaml:2: `a` stands twice; it is first on line 1",
        "f.yaml:3: a key is a string: put it in quotes",
        f"f.yaml:4: {TAG}",
    ]
    table, found = read_document("f.yaml", b"models: {a: {backend: stub}\n")
    assert table is None
    assert found[0].line == 1


def test_neither_nesting_nor_aliases_grow_without_bound() -> None:
    assert problems("[" * 10_000) == [f"f.yaml:1: nested more than {MAX_DEPTH} levels deep"]
    laughs = "a0: &a0 [x, x, x, x, x, x, x, x, x, x]\n" + "".join(
        f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 10)}]\n" for i in range(1, 9)
    )
    assert problems(laughs) == [f"f.yaml:6: more than {MAX_NODES} values"]
