"""Files in requests: which are found, and what takes their places."""

from __future__ import annotations

import base64
from typing import Any

import pytest

from controller.schema.errors import RoundhouseError
from gateway.protocols.common.file_parts import find_files, holds_files

PDF = base64.b64encode(b"%PDF-1.4 x").decode()
URL = f"data:application/pdf;base64,{PDF}"
TEXT_URL = "data:text/markdown;charset=utf-8;base64," + base64.b64encode("# ü".encode()).decode()


def user(*parts: Any) -> dict[str, Any]:
    return {"role": "user", "content": list(parts)}


def document(**source: Any) -> dict[str, Any]:
    return {"type": "document", "title": "T", "source": source}


@pytest.mark.parametrize(
    ("fields", "places"),
    [
        ({"input": "a text", "messages": 7}, []),
        ({"input": [user({"type": "input_text", "text": "x"}), 7]}, []),
        ({"input": [user({"type": "input_file", "file_data": URL})]}, ["input[0].content[0].file_data"]),
        ({"input": [user({"type": "input_file", "file_data": PDF})]}, ["input[0].content[0].file_data"]),
        ({"input": [user({"type": "input_file", "file_data": TEXT_URL})]}, []),
        ({"input": [user({"type": "input_file", "file_id": "f"})]}, []),
        (
            {"input": [{"type": "function_call_output", "output": [{"type": "input_file", "file_data": URL}]}]},
            ["input[0].output[0].file_data"],
        ),
        (
            {"messages": [user({"type": "text", "text": "x"}, {"type": "file", "file": {"file_data": URL}})]},
            ["messages[0].content[1].file.file_data"],
        ),
        (
            {"messages": [user(document(type="base64", media_type="application/pdf", data=PDF))]},
            ["messages[0].content[0].source.data"],
        ),
        ({"messages": [user(document(type="text", data="x")), user(document(type="url", url="x"))]}, []),
        (
            {
                "messages": [
                    user(
                        {
                            "type": "tool_result",
                            "content": [document(type="base64", media_type="application/pdf", data=PDF)],
                        }
                    )
                ]
            },
            ["messages[0].content[0].content[0].source.data"],
        ),
    ],
)
def test_pdfs_are_found_wherever_content_has_parts(fields: dict[str, Any], places: list[str]) -> None:
    pdfs, has_changed = find_files(fields)
    assert [each.place for each in pdfs] == places
    assert {each.data for each in pdfs} <= {PDF}
    assert not has_changed


def test_their_texts_take_their_places() -> None:
    named = {"type": "input_file", "filename": "a.pdf", "file_data": URL}
    asked = {"input": [user(named, {"type": "input_file", "file_data": URL})]}
    chat = {"messages": [user({"type": "file", "file": {"filename": "a.pdf", "file_data": URL}})]}
    message = {"messages": [user(document(type="base64", media_type="application/pdf", data=PDF))]}
    for fields in (asked, chat, message):
        for each in find_files(fields).pdfs:
            each.put_text("Hello.")
    assert asked["input"][0]["content"] == [
        {"type": "input_text", "text": "Text of the file a.pdf:\n\nHello."},
        {"type": "input_text", "text": "Hello."},
    ]
    assert chat["messages"][0]["content"] == [{"type": "text", "text": "Text of the file a.pdf:\n\nHello."}]
    assert message["messages"][0]["content"] == [document(type="text", media_type="text/plain", data="Hello.")]


def test_texts_in_chats_are_read_where_they_stand() -> None:
    fields = {"messages": [user({"type": "file", "file": {"file_data": TEXT_URL}})]}
    assert find_files(fields) == ([], True)
    assert fields["messages"][0]["content"] == [{"type": "text", "text": "# ü"}]


@pytest.mark.parametrize(
    ("file", "code", "place"),
    [
        ({"file_id": "f"}, "invalid_request", "file_id"),
        ({}, "invalid_request", "file_data"),
        ({"file_data": "%"}, "invalid_request", "file_data"),
        ({"file_data": "data:image/png;base64,aGk="}, "modality_unsupported", "file_data"),
        ({"file_data": base64.b64encode(b"\xff\x00").decode()}, "modality_unsupported", "file_data"),
    ],
)
def test_other_files_in_chats_are_refused(file: dict[str, Any], code: str, place: str) -> None:
    with pytest.raises(RoundhouseError) as caught:
        find_files({"messages": [user({"type": "file", "file": file})]})
    assert (caught.value.entry.code, caught.value.param) == (code, f"messages[0].content[0].file.{place}")


def test_whether_there_are_any() -> None:
    inner = {"type": "tool_result", "content": [document(type="text", data="x")]}
    for content in ([{"type": "input_file"}], [{"type": "text"}, {"type": "file"}], [inner]):
        assert holds_files({"messages": [{"content": "x"}, {"content": content}]})
        assert holds_files({"input": [{"output": content}]})
    for fields in ({}, {"input": ["a", "b"]}, {"input": [[1, 2]]}, {"messages": [{"content": "a file"}, 7]}):
        assert not holds_files(fields)
    assert not holds_files({"messages": [user({"type": ["file"]}, {"type": "tool_result", "content": "x"}, 7)]})
