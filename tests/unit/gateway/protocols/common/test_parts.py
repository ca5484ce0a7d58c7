"""How a request is cut into pieces, and how the pieces' answers become one."""

from __future__ import annotations

import base64
import json
from typing import Any

import pytest

from gateway.protocols.common.fan_out import ANSWER_FORMS, PiecedAnswer, add_counts, count_images, plan_split
from gateway.protocols.common.file_parts import FILE_TYPES, find_files, find_named_files
from gateway.protocols.common.grounding import Passage, add_passages
from gateway.protocols.common.request import find_part_types
from tests.fakes.fake_controller import route
from tests.fakes.fake_retrieval import file_hit, hit
from tests.support.outcomes import error_of, present, refusal

DOCUMENTS = [f"document {number}" for number in range(40)]


def pieced(path: str, name: str, fields: dict[str, Any], **how: Any) -> PiecedAnswer:
    split = present(plan_split(fields, (name,), route("m", target_inflight=2, **how)))
    return PiecedAnswer(ANSWER_FORMS[path], split, fields)


@pytest.mark.parametrize("path", ["/v1/rerank", "/rerank", "/v2/rerank"])
def test_a_ranking_in_pieces_has_the_best_of_all(path: str) -> None:
    answer = pieced(path, "documents", {"query": "q", "documents": DOCUMENTS, "top_n": 5})
    for number, documents in [*enumerate(answer.split.pieces())][::-1]:
        asked = answer.piece_fields(documents)
        assert (asked["query"], asked["top_n"]) == ("q", None)
        # The worse, the further from document 20; two are always equal.
        scores = [-abs(20 - DOCUMENTS.index(each)) for each in asked["documents"]]
        results = [{"index": place, "relevance_score": score} for place, score in enumerate(scores)]
        results.sort(key=lambda each: -each["relevance_score"])
        meta = {"api_version": {"version": "1"}, "tokens": {"input_tokens": len(documents), "output_tokens": 0}}
        answer.take_answer(number, json.dumps({"id": f"r{number}", "results": results, "meta": meta}).encode())
    whole = json.loads(answer.join())
    assert [each["index"] for each in whole["results"]] == [20, 19, 21, 18, 22]
    assert whole["meta"] == {"api_version": {"version": "1"}, "tokens": {"input_tokens": 40, "output_tokens": 0}}


def test_vectors_stay_as_they_came_also_in_odd_answers() -> None:
    answer = pieced("/v1/embeddings", "input", {"input": ["a"] * 40})
    vectors = ["[0.10, -2.50e-1]", '"AAAA"', "[[1, 2], [3, 4]]"]
    for number, vector in enumerate(vectors):
        item = f'{{"index" : 0, "embedding" : {vector}, "note": "\\"embedding\\":[1] \\"index\\": 7"}}'
        answer.take_answer(number, f'{{"model": "m", "data": [{item}], "usage": {{"prompt_tokens": 2}}}}'.encode())
    body = answer.join()
    assert b"[0.10, -2.50e-1]" in body
    whole = json.loads(body)
    assert [each["index"] for each in whole["data"]] == [0, 16, 32]
    assert [each["embedding"] for each in whole["data"]] == [json.loads(vector) for vector in vectors]
    assert {each["note"] for each in whole["data"]} == {'"embedding":[1] "index": 7'}
    assert whole["usage"] == {"prompt_tokens": 6}


@pytest.mark.parametrize("path", [*ANSWER_FORMS])
@pytest.mark.parametrize("body", [b"", b"3", b'{"data": [], "results": 1}', b"[4]"])
def test_an_answer_of_another_form_is_the_engines_failure(path: str, body: bytes) -> None:
    answer = pieced(path, "prompt", {"prompt": ["a"] * 9})
    if path in ("/completion", "/embedding") and body.startswith(b"{"):
        return  # an answer of llama.cpp's is any object
    assert error_of(lambda: answer.take_answer(0, body)).entry.code == "engine_disconnected"


def test_the_usage_of_all_streams_is_one_event_at_the_end() -> None:
    answer = pieced("/v1/completions", "prompt", {"prompt": ["a"] * 9, "n": 2})
    for number in (1, 0):
        choice = {"id": f"c{number}", "created": number, "choices": [{"index": 1, "text": "x"}]}
        usage = {"id": f"c{number}", "choices": [], "usage": {"completion_tokens": 3, "details": {"cached": 1}}}
        part = b": a comment\n\n" + b"".join(b"data: %b\n\n" % json.dumps(each).encode() for each in (choice, usage))
        events, error = answer.take_events(number, part + b"data: [DONE]\n\n")
        assert error is None
        [event] = [json.loads(line[6:]) for line in events.splitlines() if line]
        assert (event["id"], event["created"], event["choices"][0]["index"]) == ("c1", 1, 2 * number + 1)
    last = answer.end_events()
    assert json.loads(last.split(b"\n")[0][6:])["usage"] == {"completion_tokens": 6, "details": {"cached": 2}}
    assert last.endswith(b"data: [DONE]\n\n")
    assert answer.take_events(2, b'data: {"error": {"code": "x"}}\n\n') == (b"", {"code": "x"})


@pytest.mark.parametrize(
    ("name", "fields", "how", "sizes"),
    [
        ("prompt", {"prompt": ["a", "b"]}, {}, None),
        ("prompt", {"prompt": ["a", "b"], "n": 2}, {}, [1, 1]),
        ("prompt", {"prompt": ["a", "b"]}, {"max_choices": 1}, [1, 1]),
        ("prompt", {"prompt": [1, 2, 3]}, {"max_choices": 1}, None),
        ("prompt", {"prompt": ["a"] * 3}, {"choices_take_slots": False}, None),
        ("input", {"input": ["a"] * 16}, {}, None),
        ("input", {"input": ["a"] * 33}, {}, [16, 16, 1]),
        ("input", {"input": "text"}, {}, None),
    ],
)
def test_what_an_engine_answers_at_once_stays_whole(
    name: str, fields: dict[str, Any], how: dict[str, Any], sizes: list[int] | None
) -> None:
    split = plan_split(fields, (name,), route("m", target_inflight=2, **how))
    assert (None if split is None else [len(each) for each in split.pieces()]) == sizes


def test_images_count_at_any_depth_and_numbers_add_up() -> None:
    picture = {"type": "image", "source": {"type": "base64", "data": "A"}}
    result = {"type": "tool_result", "content": [picture, {"type": "text", "text": "image"}]}
    document = {"type": "document", "source": {"type": "content", "content": [picture]}}
    output = {"type": "function_call_output", "output": [{"type": "input_image", "image_url": "data:,"}]}
    assert count_images([{"content": [picture, result, document]}, output, "text", {"content": "image"}]) == 4
    total: dict[str, Any] = {"a": True, "b": 1, "c": None}
    add_counts(total, {"a": False, "b": 2.5, "c": 4, "d": {"e": 1}})
    assert total == {"a": True, "b": 3.5, "c": None, "d": {"e": 1}}


PDF = base64.b64encode(b"%PDF-1.4 x").decode()
URL = f"data:application/pdf;base64,{PDF}"
TEXT_URL = "data:text/markdown;charset=utf-8;base64," + base64.b64encode("# ü".encode()).decode()


def user(*parts: Any) -> dict[str, Any]:
    return {"role": "user", "content": list(parts)}


def document(**source: Any) -> dict[str, Any]:
    return {"type": "document", "title": "T", "source": source}


FILE = {"type": "input_file", "file_data": URL}
PDF_DOCUMENT = document(type="base64", media_type="application/pdf", data=PDF)


@pytest.mark.parametrize(
    ("fields", "places"),
    [
        *(
            ({"input": [user(part), 7]}, [])
            for part in ({"type": "input_text", "text": "x"}, FILE | {"file_data": TEXT_URL})
        ),
        ({"input": "a text", "messages": 7}, []),
        ({"input": [user({"type": "input_file", "file_id": "f"})]}, []),
        *(({"input": [user(FILE | {"file_data": data})]}, ["input[0].content[0].file_data"]) for data in (URL, PDF)),
        ({"input": [{"type": "function_call_output", "output": [FILE]}]}, ["input[0].output[0].file_data"]),
        (
            {"messages": [user({"type": "text", "text": "x"}, {"type": "file", "file": {"file_data": URL}})]},
            ["messages[0].content[1].file.file_data"],
        ),
        ({"messages": [user(PDF_DOCUMENT)]}, ["messages[0].content[0].source.data"]),
        ({"messages": [user(document(type="text", data="x")), user(document(type="url", url="x"))]}, []),
        (
            {"messages": [user({"type": "tool_result", "content": [PDF_DOCUMENT]})]},
            ["messages[0].content[0].content[0].source.data"],
        ),
    ],
)
def test_pdfs_are_found_wherever_content_has_parts(fields: dict[str, Any], places: list[str]) -> None:
    pdfs, has_changed = find_files(fields)
    assert [each.place for each in pdfs] == places
    assert {each.data for each in pdfs} <= {PDF}
    assert not has_changed


def test_texts_take_the_places_of_files() -> None:
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
    # Texts in chats are read where they stand.
    fields = {"messages": [user({"type": "file", "file": {"file_data": TEXT_URL}})]}
    assert find_files(fields) == ([], True)
    assert fields["messages"][0]["content"] == [{"type": "text", "text": "# ü"}]


@pytest.mark.parametrize(
    ("file", "code", "place"),
    [
        *(({"file_id": "f"}, "invalid_request", "file_id"), ({}, "invalid_request", "file_data")),
        ({"file_data": "%"}, "invalid_request", "file_data"),
        *(({"file_data": data}, "modality_unsupported", "file_data")
          for data in ("data:image/png;base64,aGk=", base64.b64encode(b"\xff\x00").decode())),
    ],
)  # fmt: skip
def test_other_files_in_chats_are_refused(file: dict[str, Any], code: str, place: str) -> None:
    told = refusal(lambda: find_files({"messages": [user({"type": "file", "file": file})]}))
    assert told == (code, f"messages[0].content[0].file.{place}")


def test_the_types_of_parts() -> None:
    inner = {"type": "tool_result", "content": [document(type="text", data="x")]}
    for content in ([{"type": "input_file"}], [{"type": "text"}, {"type": "file"}], [inner]):
        for fields in ({"messages": [{"content": "x"}, {"content": content}]}, {"input": [{"output": content}]}):
            assert not FILE_TYPES.isdisjoint(find_part_types(fields))
    plain: list[dict[str, Any]] = [
        {},
        {"input": ["a", "b"]},
        {"input": [[1, 2]]},
        {"messages": [{"content": "a file"}, 7]},
    ]
    assert not any(map(find_part_types, plain))
    others = [user({"type": ["file"]}, {"type": "tool_result", "content": "x"}, {"type": "text"}, 7)]
    assert find_part_types({"messages": others}) == {"tool_result", "text"}


PASSAGE = Passage("d1", "a.md", chunk=0, start=0, end=4, page=None, score=1.0, text="Coal")


def test_a_model_reads_what_stands_above_a_passage() -> None:
    rows, above = "| Ann | 12 |", ["Staff", "| Name | Pay |"]
    for passage in (Passage.of_hit(hit(1, rows, headings=above)), Passage.of_file(file_hit(1, rows, headings=above))):
        assert passage.text == "Staff\n| Name | Pay |\n| Ann | 12 |"
        assert (passage.start, passage.end) == (10, 22)


@pytest.mark.parametrize(("content", "behind"), [("What burns?", "\n\nWhat burns?"), (None, ""), ([], None)])
def test_passages_stand_before_what_the_message_has(content: Any, behind: str | None) -> None:
    fields: dict[str, Any] = {"messages": [{"role": "user", "content": content}], "rag": True}
    grounded = add_passages(fields, [PASSAGE])
    assert "rag" not in grounded
    [message] = grounded["messages"]
    if behind is None:
        assert [part["type"] for part in message["content"]] == ["text"]
    else:
        head, _, tail = message["content"].rpartition("Coal")
        assert (bool(head), tail.split("Question:")) == (True, ["\n\n", behind])
        assert "None" not in message["content"]
    assert fields["messages"][0]["content"] == content, "the request's own fields stay"


@pytest.mark.parametrize(
    "part",
    [
        None, "file-1", {}, {"type": ["input_file"], "file_id": "a"}, {"type": "text", "file_id": "a"},
        {"type": "input_file", "file_id": None}, {"type": "input_file", "file_id": "a", "file_data": "aGk="},
        {"type": "input_image", "file_id": "a", "image_url": "data:,"}, {"type": "file", "file": "a"}, {"type": "file"},
        {"type": "image", "source": {"type": "url", "file_id": "a"}}, {"type": "document", "source": None},
    ],
)  # fmt: skip
def test_what_names_no_file(part: Any) -> None:
    assert find_named_files({"messages": [{"content": [part]}, 3, {"content": "x"}], "input": [part]}) == []


def test_files_are_named_at_any_depth_and_with_an_id_alone() -> None:
    source = {"type": "file", "file_id": "a"}
    inner = {"type": "tool_result", "content": [{"type": "image", "source": source}]}
    fields = {"messages": [{"content": [inner]}], "input": [{"output": [{"type": "input_file", "file_id": "b"}]}]}
    assert [each.id_place for each in find_named_files(fields)] == [
        "messages[0].content[0].content[0].source.file_id",
        "input[0].output[0].file_id",
    ]
    for wrong in (None, "", 3, ["a"]):
        source["file_id"] = wrong  # type: ignore[assignment]
        error = error_of(lambda: find_named_files(fields))
        assert error.param == "messages[0].content[0].content[0].source.file_id"
