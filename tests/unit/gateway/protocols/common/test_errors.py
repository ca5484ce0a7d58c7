"""Errors in each family's form."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest

from contract.errors import ERROR_CODES, ErrorEnvelope, RoundhouseError, fill_steps
from controller.runtimes.base import replica_name
from controller.state import ReplicaId
from gateway.protocols.anthropic.dialect import MESSAGES
from gateway.protocols.anthropic.via_chat import MESSAGES_VIA_CHAT
from gateway.protocols.chat.dialect import CHAT, COMPLETIONS
from gateway.protocols.common import errors
from gateway.protocols.common.dialect import Dialect
from gateway.protocols.common.errors import ContextOverflow, answer_status, client_status, engine_body, find_overflow
from gateway.protocols.common.hiding import HIDDEN, HIDDEN_PATH, hide_addresses, hide_in_json, hide_paths
from gateway.protocols.common.json_dialect import JSON_DIALECT
from gateway.protocols.common.request import InferenceRequest
from gateway.protocols.embeddings import EMBEDDINGS
from gateway.protocols.llama_native import NATIVE
from gateway.protocols.responses.context import ResponseContext
from gateway.protocols.responses.via_chat import RESPONSES_VIA_CHAT
from tests.support.outcomes import present

OPENAI_FORM = [CHAT, COMPLETIONS, RESPONSES_VIA_CHAT, NATIVE, JSON_DIALECT]
LLAMA = b'{"error":{"code":400,"message":"no such slot","type":"slot_error","id_slot":4096}}'
BUSY = RoundhouseError("queue_full", "Full.", param=None)


def body(content: bytes) -> Any:
    return json.loads(content)


@pytest.mark.parametrize("dialect", OPENAI_FORM)
def test_errors_in_openais_form_have_every_field(dialect: Dialect) -> None:
    assert body(dialect.error_body(BUSY, "r1")) == BUSY.build_envelope("r1").model_dump()
    assert body(dialect.engine_error_body(400, LLAMA, "r1"))["error"] == {
        "code": "engine_error",
        "message": "no such slot",
        "type": "slot_error",
        "id_slot": 4096,
        "param": None,
        "status": 400,
        "actionable": True,
        "next_steps": list(ERROR_CODES["engine_error"].next_steps),
        "request_id": "r1",
    }


def test_an_envelope_of_ours_and_an_engines_own_code_stay() -> None:
    theirs = b'{"error":{"message":"x","type":null,"code":"context_length_exceeded","param":"messages"}}'
    error = body(CHAT.engine_error_body(400, theirs, "r"))["error"]
    assert (error["code"], error["param"], error["type"]) == (
        "context_length_exceeded",
        "messages",
        "invalid_request_error",
    )
    ours = body(CHAT.engine_error_body(501, b'{"error":{"message":"x","code":"not_supported"}}', "r"))["error"]
    assert ours["next_steps"] == list(ERROR_CODES["not_supported"].next_steps)
    envelope = BUSY.json_bytes("r0")
    assert CHAT.engine_error_body(429, envelope, "r1") is envelope


@pytest.mark.parametrize("content", [b"", b"<html>Bad gateway</html>", b"[]", b'{"detail":"no"}', b"[" * 5000])
def test_what_is_no_error_object_becomes_one(content: bytes) -> None:
    for dialect in (CHAT, MESSAGES):
        error = body(dialect.engine_error_body(500, content, "r"))["error"]
        assert error["message"]
        assert error["status"] == 500


@pytest.mark.parametrize("code", ERROR_CODES)
def test_our_errors_in_anthropics_form(code: str) -> None:
    entry = ERROR_CODES[code]
    told = body(MESSAGES.error_body(RoundhouseError(code, "What.", param="p"), "r1"))
    next_steps = fill_steps(entry.next_steps, {"param": "p"})
    types = {
        400: "invalid_request_error", 401: "authentication_error", 403: "permission_error", 404: "not_found_error",
        408: "timeout_error", 413: "request_too_large", 429: "rate_limit_error", 500: "api_error", 502: "api_error",
        501: "invalid_request_error", 503: "overloaded_error", 504: "timeout_error", 507: "api_error",
    }  # fmt: skip
    assert told == {
        "type": "error",
        "error": {
            "type": types.get(entry.status, "invalid_request_error"),
            "message": "prompt is too long: What." if code == "context_length_exceeded" else "What.",
            "code": code,
            "param": "p",
            "status": entry.status,
            "actionable": bool(next_steps),
            "next_steps": next_steps,
        },
        "request_id": "r1",
    }


def test_an_engines_error_in_anthropics_form() -> None:
    told = body(MESSAGES.engine_error_body(400, LLAMA, "r1"))
    assert errors.is_anthropic(told)
    assert told["error"]["type"] == "invalid_request_error"
    assert told["error"]["id_slot"] == 4096
    assert told["request_id"] == "r1"
    theirs = b'{"type":"error","error":{"type":"overloaded_error","message":"busy"}}'
    assert MESSAGES.engine_error_body(529, theirs, "r1") is theirs


def test_errors_as_the_last_events_of_a_stream() -> None:
    pretty = json.dumps(BUSY.build_envelope("r").model_dump(), indent=1).encode()
    for dialect in (CHAT, COMPLETIONS, JSON_DIALECT):
        first, done, end = dialect.error_as_events(pretty).split(b"\n\n")
        assert (body(first.removeprefix(b"data: ")), done, end) == (body(pretty), b"data: [DONE]", b"")
    assert NATIVE.error_as_events(pretty).count(b"\n") == 2
    assert body(NATIVE.error_as_events(pretty).removeprefix(b"data: ")) == body(pretty)
    name, data, *rest = RESPONSES_VIA_CHAT.error_as_events(pretty).split(b"\n")
    assert (name, rest) == (b"event: error", [b"", b"data: [DONE]", b"", b""])
    openai = {"type": "error", "code": "queue_full", "message": "Full.", "param": None, "sequence_number": 0}
    assert body(data.removeprefix(b"data: ")) == {**openai, **body(pretty)}
    name, data, *rest = MESSAGES.error_as_events(MESSAGES.error_body(BUSY, "r")).split(b"\n")
    assert (name, rest) == (b"event: error", [b"", b""])
    assert errors.is_anthropic(body(data.removeprefix(b"data: ")))


@pytest.mark.parametrize(
    ("error", "status"),
    [
        *(({"code": 400}, 400), ({"code": "x", "status": 429}, 429), ({"type": "overloaded_error"}, 503)),
        *(({"type": "invalid_request_error"}, 400), ({"code": 200}, 500), ({"code": True}, 500)),
        *(({"type": []}, 500), ("text", 500)),
    ],
)
def test_the_status_that_an_error_tells(error: Any, status: int) -> None:
    assert errors.status_of(error) == status


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (b'{"detail": "no such temperature"}', "no such temperature"),
        (b'{"detail": [{"loc": ["body"], "msg": "missing"}]}', '[{"loc":["body"],"msg":"missing"}]'),
        (b'{"object":"error","message":"context is full","code":40303}', "context is full"),
        (b'{"error": "model not found"}', "model not found"),
        (b'{"error": {"code": 5}}', '{"code":5}'),
        (
            b"<html><head><title>t</title><style>p {}</style></head><body><h1>502</h1> Bad\n Gateway</body>",
            "502 Bad Gateway",
        ),
        (b"plain text", "plain text"),
        (b"", "The engine answered with status 500 and no message."),
        (b"{}", "{}"),
        (b"\xff\xfe", "\ufffd\ufffd"),
    ],
)
def test_the_engines_message_is_kept(body: bytes, message: str) -> None:
    error = ErrorEnvelope.model_validate_json(engine_body(500, body, "req-1")).error
    assert error.message == message
    assert (error.status, error.code, error.type, error.request_id) == (500, "engine_error", "server_error", "req-1")


def test_a_client_error_stays_one_and_a_long_message_is_cut() -> None:
    error = json.loads(engine_body(422, b"nope", "req-1"))["error"]
    assert (error["type"], error["status"]) == ("invalid_request_error", 422)
    error = ErrorEnvelope.model_validate_json(engine_body(500, b"x" * 10_000_000, "req-1")).error
    assert len(error.message) == 1000


def test_half_a_surrogate_pair_can_be_written() -> None:
    assert json.loads(errors.encode_json({"x": "\ud83d"})) == {"x": "\ud83d"}
    assert json.loads(errors.encode_json("ü")) == "ü"


def test_addresses_are_hidden_in_json_of_bounded_depth() -> None:
    said = {"message": "at 10.0.0.1", "10.0.0.2": [{"x": ["http://a/b", 1, None, True, 1.5]}]}
    assert hide_in_json(said) == {"message": f"at {HIDDEN}", HIDDEN: [{"x": [HIDDEN, 1, None, True, 1.5]}]}
    with pytest.raises(RecursionError):
        hide_in_json(_nested(100_000))


@pytest.mark.parametrize(
    ("told", "place"),
    [
        ("body.temperature", "temperature"),
        ("body.messages.0.role", "messages[0].role"),
        ("body.messages.0.ChatCompletionUserMessageParam.content", "messages[0].content"),
        ("body.tools.12", "tools[12]"),
        ("max_tokens", "max_tokens"),
        (None, None),
    ],
)
def test_the_place_of_an_error(told: str | None, place: str | None) -> None:
    body = {"error": {"message": "m", "type": "Bad Request", "param": told, "code": 400}}
    error = ErrorEnvelope.model_validate_json(engine_body(400, json.dumps(body).encode(), "req-1")).error
    assert (error.param, error.code, error.status) == (place, "engine_error", 400)


@pytest.mark.parametrize(("status", "sent"), [(200, 200), (201, 201), (400, 400), (503, 503), (307, 502), (304, 502)])
def test_an_engines_status_becomes_the_clients(status: int, sent: int) -> None:
    assert client_status(status) == sent


OVERFLOW = {
    "code": 400,
    "message": "request (10911 tokens) exceeds the available context size (4096 tokens), try increasing it",
    "type": "exceed_context_size_error",
    "n_prompt_tokens": 10911,
    "n_ctx": 4096,
}
OPENAI_WORDS = "This model's maximum context length is 4096 tokens. However, your messages resulted in 10911 tokens. "
"""Up to the advice."""
TOO_LONG = "This model's maximum context length is 512 tokens. However, your prompt contains "
REDUCE = " Please reduce the length of the input prompt."
ENGINES = {
    "vllm": (
        f"{TOO_LONG}600 input tokens, which exceeds this limit even without any output tokens.{REDUCE}",
        (512, 600, False, None),
    ),
    "vllm, not counted to the end": (
        f"{TOO_LONG}at least 513 input tokens, which exceeds this limit even without any output tokens.{REDUCE}",
        (512, 513, True, None),
    ),
    "vllm, not counted": (
        f"{TOO_LONG}99999 characters (more than 6656 characters, which is the upper bound for 512 input tokens)."
        f"{REDUCE}",
        (512, 513, True, None),
    ),
    "vllm, one token of room": (
        "The decoder prompt (length 512) plus the number of requested output tokens (at least 1) is longer than the "
        "maximum model length of 512. Make sure that `max_model_len` is no smaller than the number of text tokens.",
        (512, 512, False, None),
    ),
    "an earlier vllm": (
        "This model's maximum context length is 512 tokens. However, you requested 100 output tokens and your prompt "
        "contains at least 413 input tokens, for a total of at least 513 tokens.",
        (512, 413, True, 100),
    ),
    "openai": (
        "This model's maximum context length is 4097 tokens. However, you requested 4927 tokens (927 in the messages, "
        "4000 in the completion). Please reduce the length of the messages or completion.",
        (4097, 927, False, 4000),
    ),
    "openai, embeddings": (
        "This model's maximum context length is 8192 tokens, however you requested 10000 tokens (10000 in your prompt; "
        "0 for the completion). Please reduce your prompt; or completion length.",
        (8192, 10000, False, None),
    ),
    "anthropic": ("prompt is too long: 205148 tokens > 200000 maximum", (200000, 205148, False, None)),
    "anthropic, with the answer": (
        "input length and `max_tokens` exceed context limit: 188240 + 21333 > 200000, decrease input length or "
        "`max_tokens` and try again",
        (200000, 188240, False, 21333),
    ),
    "a worker": ("The prompt has 5000 tokens, more than fit the context of 4096.", (4096, 5000, False, None)),
    "llama-server, a text to embed": (
        "input (600 tokens) is too large to process. increase the physical batch size (current batch size: 512)",
        (512, 600, False, None),
    ),
}
"""What engines say of too long prompts: the limit, the tokens of the prompt, whether these are the least, those of the
answer."""
VLLM_WORDS = ENGINES["vllm"][0]


@pytest.mark.parametrize("engine", ENGINES)
def test_what_engines_say_is_understood_and_again_what_clients_are_told_of_it(engine: str) -> None:
    words, expected = ENGINES[engine]
    found = present(find_overflow({"message": words}))
    assert (found.limit, found.prompt_tokens, found.is_at_least, found.output_tokens) == expected
    for message in (found.describe_for_openai(), found.describe_for_anthropic()):
        again = present(find_overflow({"message": message}))
        assert again.describe_for_anthropic() == found.describe_for_anthropic()
    again = present(find_overflow({"message": found.describe_for_openai()}))
    assert again.describe_for_openai() == found.describe_for_openai()


@pytest.mark.parametrize(
    "error",
    [
        {"message": "Context size has been exceeded.", "type": "server_error", "code": 500},
        {"message": "max_tokens must be at least 1", "code": "invalid_request"},
        {"message": None, "type": 5},
        {"message": f"prompt is too long: {'9' * 5000} tokens > 5 maximum"},
        {},
    ],
)
def test_other_errors_are_others(error: dict[str, Any]) -> None:
    assert find_overflow(error) is None


@pytest.mark.parametrize("dialect", [CHAT, COMPLETIONS, EMBEDDINGS, RESPONSES_VIA_CHAT])
def test_openais_clients_are_told_in_openais_words(dialect: Dialect) -> None:
    error = read(dialect.engine_error_body(400, json.dumps({"error": OVERFLOW}).encode(), "r"))
    assert error["message"].startswith(OPENAI_WORDS)
    assert "exceeds the context window" in error["message"], "LangChain knows a response's by these"
    assert (error["code"], error["type"], error["status"]) == ("context_length_exceeded", "invalid_request_error", 400)
    assert (error["n_ctx"], error["n_prompt_tokens"]) == (4096, 10911)


@pytest.mark.parametrize("dialect", [MESSAGES, MESSAGES_VIA_CHAT])
def test_anthropics_clients_are_told_in_anthropics_words(dialect: Dialect) -> None:
    error = read(dialect.engine_error_body(400, json.dumps({"error": OVERFLOW}).encode(), "r"))
    assert error["message"] == "prompt is too long: 10911 tokens > 4096 maximum"
    assert (error["type"], error["code"]) == ("invalid_request_error", "context_length_exceeded")


def test_an_engine_that_speaks_anthropics_form_is_told_in_its_words_too() -> None:
    vllm = {"type": "error", "error": {"type": "invalid_request_error", "message": VLLM_WORDS}}
    error = read(MESSAGES.engine_error_body(400, json.dumps(vllm).encode(), "r"))
    assert error["message"] == "prompt is too long: 600 tokens > 512 maximum"
    own = json.dumps({"type": "error", "error": {"type": "x", "message": ENGINES["anthropic"][0]}}).encode()
    assert MESSAGES.engine_error_body(400, own, "r") is own
    stream = MESSAGES.open_stream(InferenceRequest(b"", {}, "m", stream=True, wants_usage=False))
    event = b"event: error\ndata: " + json.dumps(vllm).encode() + b"\n\n"
    assert b"prompt is too long: 600 tokens > 512 maximum" in stream.feed_data(event) + stream.finish_stream()


def test_without_numbers_the_engines_words_stay() -> None:
    told = {
        "error": {"message": "Your input exceeds the context window of this model.", "code": "context_length_exceeded"}
    }
    assert read(CHAT.engine_error_body(400, json.dumps(told).encode(), "r"))["message"].endswith(
        "Your input exceeds the context window of this model."
    )
    error = read(MESSAGES.engine_error_body(400, json.dumps(told).encode(), "r"))
    assert error["message"].startswith("prompt is too long: ")
    assert ContextOverflow().describe_for_anthropic() == "prompt is too long."


def test_an_overflow_that_is_told_as_plain_text_has_one_status() -> None:
    for body in (VLLM_WORDS.encode(), b"[" * 500 + VLLM_WORDS.encode()):
        assert errors.answer_status(500, body) == read(CHAT.engine_error_body(500, body, "r"))["status"]
    assert errors.answer_status(500, VLLM_WORDS.encode()) == 400


@pytest.mark.parametrize(
    ("status", "body", "told"),
    [
        (400, {"error": OVERFLOW}, 400),
        (413, {"error": OVERFLOW}, 400),
        (500, {"error": {"message": ENGINES["llama-server, a text to embed"][0], "code": 500}}, 400),
        (400, {"message": VLLM_WORDS}, 400),
        (500, {"error": {"message": "Context size has been exceeded."}}, 503),
        (302, {}, 502),
    ],
)
def test_the_status_is_that_of_both_families(status: int, body: dict[str, Any], told: int) -> None:
    encoded = json.dumps(body).encode()
    assert errors.answer_status(status, encoded) == told
    assert read(CHAT.engine_error_body(status, encoded, "r"))["status"] == told


def test_a_stream_of_a_response_is_told_by_events() -> None:
    body = RESPONSES_VIA_CHAT.engine_error_body(400, json.dumps({"error": OVERFLOW}).encode(), "r")
    assert RESPONSES_VIA_CHAT.is_told_by_events(body)
    assert not CHAT.is_told_by_events(body)
    other = RESPONSES_VIA_CHAT.engine_error_body(400, b'{"error":{"message":"x"}}', "r")
    assert not RESPONSES_VIA_CHAT.is_told_by_events(other)
    fields = {"model": "m", "input": "Hello"}
    request = InferenceRequest(
        b"", fields, "m", stream=True, wants_usage=False, state=ResponseContext("resp_1", 0, float, str)
    )
    request.prompt = RESPONSES_VIA_CHAT.read_request(request)
    events = RESPONSES_VIA_CHAT.error_as_events(body, request)
    assert re.findall(rb"event: (\S+)", events) == [
        b"response.created",
        b"response.in_progress",
        b"error",
        b"response.failed",
    ]
    failed = json.loads(re.findall(rb"data: (.*)\n", events)[3])
    assert failed["response"]["error"]["code"] == "context_length_exceeded"


def read(body: bytes) -> dict[str, Any]:
    error: dict[str, Any] = json.loads(body)["error"]
    return error


REPLICA = replica_name("prod", ReplicaId("org/Qwen-3.5", 1, "0123456789abcdef", 12))


@pytest.mark.parametrize(
    ("said", "told"),
    [
        ("connect to host engine-7:80 ssl:default [refused]", f"connect to host {HIDDEN} ssl:default [refused]"),
        ("see http://engine:8000/v1/models?x=1#y.", f"see {HIDDEN}."),
        ("(http://user:pass@10.0.0.1/x), and more", f"({HIDDEN}), and more"),
        ('{"url": "http:\\/\\/engine\\/v1"}', f'{{"url": "{HIDDEN}"}}'),
        ("dial tcp 10.1.2.3:9000: connect: refused", f"dial tcp {HIDDEN}: connect: refused"),
        ("listening on 0.0.0.0", f"listening on {HIDDEN}"),
        ("peer 10.0.0.0/24 left", f"peer {HIDDEN} left"),
        ("dial tcp [fe80::1%25eth0]:80", f"dial tcp {HIDDEN}"),
        ("dial tcp [::1]:8080: refused", f"dial tcp {HIDDEN}: refused"),
        *(("bound to [::]:8080", f"bound to {HIDDEN}"), ("from 2001:db8::7, gone", f"from {HIDDEN}, gone")),
        *(("from ::1: gone", f"from {HIDDEN}: gone"), ("from ::ffff:10.0.0.1", f"from {HIDDEN}")),
        *(("from 2001:db8:0:0:0:0:0:1:8080", f"from {HIDDEN}"), ("route fe80::1%eth0/64", f"route {HIDDEN}")),
        ("addr=fe80::1.", f"addr={HIDDEN}."),
        (f"container /{REPLICA} is gone", f"container /{HIDDEN} is gone"),
        (f"{REPLICA}: killed", f"{HIDDEN}: killed"),
        ("HTTPConnectionPool(host='engine', port=8000): no", f"HTTPConnectionPool(host='{HIDDEN}', port=8000): no"),
        ('{"host": "engine", "hostname":"e"}', f'{{"host": "{HIDDEN}", "hostname":"{HIDDEN}"}}'),
        ("no answer of engine.ns.svc.cluster.local", f"no answer of {HIDDEN}"),
        ("host gpu-1.internal.", f"host {HIDDEN}."),
        (r"\n10.0.0.1, \u003c10.0.0.1 \nfe80::1 \nengine:80", rf"\n{HIDDEN}, \u003c{HIDDEN} \n{HIDDEN} \{HIDDEN}"),
        ("10.0.0.1-10.0.0.9", f"{HIDDEN}-{HIDDEN}"),
        ("postgresql://db/x and me@db:5432", f"{HIDDEN} and me@{HIDDEN}"),
    ],
)  # fmt: skip
def test_addresses_in_an_engines_words_are_hidden(said: str, told: str) -> None:
    assert hide_addresses(said) == told


@pytest.mark.parametrize(
    "said",
    [
        *("", "the request exceeds the available context size (4096 tokens): 5000 > 4096"),
        "'max_tokens' is too large: 4096. At 12:30:45, on 2026-11-22T12:30:45Z",
        "body.messages.0.content: Input should be a valid string [type=string_type, input_value=7]",
        "messages[2].role: must be user; a ratio of 3:1, std::string, ::, cuda:0",
        "ubuntu:22.04, llama-cpp 0.3.16, v1.2.3.4, sha256:0123456789abcdef, data:image/png;base64,AAAA",
        "parse error at line 1, column 12: unexpected '}'; expected: port 8080 or a host: none",
        *("rh-negative is no replica, nor is rh-prod-m-0", "a slash // is no URL, and:// is none"),
    ],
)
def test_words_without_addresses_stay(said: str) -> None:
    assert hide_addresses(said) == said


def _nested(depth: int) -> list[object]:
    value: list[object] = []
    for _ in range(depth):
        value = [value]
    return value


@pytest.mark.parametrize(
    ("said", "told"),
    [
        (
            'model: a/b.gguf is missing from /srv/models; did you mean `a/c.gguf`?',
            f'model: a/b.gguf is missing from {HIDDEN_PATH}; did you mean `a/c.gguf`?',
        ),
        ("the models folder /home/bob/models does not exist", f"the models folder {HIDDEN_PATH} does not exist"),
        ("is a link to /x, which does not exist", f"is a link to {HIDDEN_PATH}, which does not exist"),
        ("api_key_file /run/key cannot be read: [Errno 2] No such file or directory: '/run/key'",
         f"api_key_file {HIDDEN_PATH} cannot be read: [Errno 2] No such file or directory: '{HIDDEN_PATH}'"),
        ('File "/usr/lib/python3.11/x y.py", line 3, in f', f'File "{HIDDEN_PATH}", line 3, in f'),
        ("open `/srv/my models/m.gguf`: no", f"open `{HIDDEN_PATH}`: no"),
        ("from /media/bob/My Passport/models", f"from {HIDDEN_PATH}"),
        ("(/srv/m.gguf), model=/srv/m.gguf:12:", f"({HIDDEN_PATH}), model={HIDDEN_PATH}:"),
        ("~/m.gguf and ~bob/m.gguf", f"{HIDDEN_PATH} and {HIDDEN_PATH}"),
        ('{"path":"\\/srv\\/m.gguf"}', f'{{"path":"{HIDDEN_PATH}"}}'),
        (r"failed:\n/srv/m.gguf \u003c/srv/m.gguf", rf"failed:\n{HIDDEN_PATH} \u003c{HIDDEN_PATH}"),
        ("cc -I/usr/include -L/opt/lib x.c", f"cc -I{HIDDEN_PATH} -L{HIDDEN_PATH} x.c"),
        ("in </srv/m.gguf>", f"in <{HIDDEN_PATH}>"),
        ("line one /a/b\n/c/d line two", f"line one {HIDDEN_PATH}\n{HIDDEN_PATH} line two"),
        ("//srv/m is missing", f"{HIDDEN_PATH} is missing"),
        ("at /healthy/m.gguf and /v1.gguf", f"at {HIDDEN_PATH} and {HIDDEN_PATH}"),
    ],
)  # fmt: skip
def test_absolute_paths_are_hidden(said: str, told: str) -> None:
    assert hide_paths(said) == told


@pytest.mark.parametrize(
    "said",
    [
        *("", "model: llama/m.gguf is empty, ./m.gguf and ../m.gguf too"),
        "12 tokens/s, 3/4 of it, and/or, n/a, / alone, a slash // is none",
        "the engine answered GET /v1/models with 500, /health with 503, and '/v1/models' again",
        *("EOS token = 2 '</s>', <|im_end|>, </think>", "image ghcr.io/ggml-org/llama.cpp:server is missing"),
        "org/Qwen-3.5 is no model of the hub",
    ],
)
def test_words_without_paths_stay(said: str) -> None:
    assert hide_paths(said) == said


@pytest.mark.parametrize(
    ("message", "param"),
    [
        ("Failed to parse tools: Missing tool type: {}; tools = [{}]", "tools"),
        ("Failed to parse messages: Missing 'role' in message: {}", "messages"),
        ("JSON schema error at #/properties/a: enum must be a non-empty array", None),
    ],
)
def test_what_llama_server_cannot_read_is_the_clients_fault(message: str, param: str | None) -> None:
    for told in ({"code": 500, "message": message, "type": "server_error"}, message):
        told_body = json.dumps({"error": told}).encode()
        assert answer_status(500, told_body) == 400
        error = body(CHAT.engine_error_body(500, told_body, "r"))["error"]
        assert (error["status"], error["code"], error["param"]) == (400, "invalid_request", param)
        assert message in error["message"]
        assert error["type"] == "invalid_request_error"
    assert answer_status(503, told_body) == 503
    assert answer_status(500, b'{"error":{"message":"CUDA error: failed to parse"}}') == 500
