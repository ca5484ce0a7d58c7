"""Calls of tools in what a model writes, in the forms of its family. Pure."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from typing import Any, Final

from worker.engine import Piece
from worker.errors import RequestError
from worker.schema import ChatRequest, NamedTool
from worker.text.answer_text import SpaceTrimmer, StopStringFinder

QUOTE: Final = '<|"|>'
_HEAD: Final = re.compile(r"call:([^{\s]+)(?=\{)")
_KEY: Final = re.compile(r"\s*([^:{}\[\],]+?)\s*:")
_BARE: Final = re.compile(r"[^,{}\[\]]+")
_SPACE: Final = re.compile(r"\s*")
DEPTH: Final = 64
"""Maximum nesting that is read."""


def gemma_call(text: str) -> tuple[str, dict[str, Any]]:
    """Return the name and the arguments of a call in Gemma 4's markup, which must be the whole text, without blanks in
    front. A value without quotes is read as JSON, else as text. Raises ValueError if the text is no such call, or is
    nested deeper than DEPTH."""
    head = _HEAD.match(text)
    if head is None:
        raise ValueError("no `call:name{`")
    reader = _ValueReader(text, head.end())
    arguments = reader.read_value()
    reader.check_end()
    return head[1], arguments


class _ValueReader:
    """Reads values of a text from a position on."""

    def __init__(self, text: str, position: int) -> None:
        self._text = text
        self._at = position
        self._depth = 0

    def read_value(self) -> Any:
        self._skip_space()
        if self._take_mark(QUOTE):
            return self._read_quoted()
        if self._take_mark("{"):
            return self._read_nested("}", {}, self._read_member)
        if self._take_mark("["):
            return self._read_nested("]", [], lambda items: items.append(self.read_value()))
        match = _BARE.match(self._text, self._at)
        if match is None:
            raise ValueError(f"no value at {self._at}")
        self._at = match.end()
        try:
            return json.loads(match[0], parse_constant=str)
        except ValueError:
            return match[0].strip()

    def check_end(self) -> None:
        self._skip_space()
        if self._at != len(self._text):
            raise ValueError(f"more at {self._at}")

    def _read_nested(self, closing_mark: str, container: Any, read_member: Any) -> Any:
        self._depth += 1
        if self._depth > DEPTH:
            raise ValueError("too deep")
        self._skip_space()
        if not self._take_mark(closing_mark):
            read_member(container)
            while self._has_more(closing_mark):
                read_member(container)
        self._depth -= 1
        return container

    def _has_more(self, closing_mark: str) -> bool:
        self._skip_space()
        if self._take_mark(closing_mark):
            return False
        if not self._take_mark(","):
            raise ValueError(f"no `,` or `{closing_mark}` at {self._at}")
        return True

    def _read_member(self, members: dict[str, Any]) -> None:
        self._skip_space()
        if self._take_mark(QUOTE):
            key = self._read_quoted()
            self._skip_space()
            if not self._take_mark(":"):
                raise ValueError(f"no `:` at {self._at}")
        else:
            match = _KEY.match(self._text, self._at)
            if match is None:
                raise ValueError(f"no key at {self._at}")
            key, self._at = match[1], match.end()
        members[key] = self.read_value()

    def _read_quoted(self) -> str:
        end = self._text.find(QUOTE, self._at)
        if end < 0:
            raise ValueError("a text is not closed")
        text, self._at = self._text[self._at : end], end + len(QUOTE)
        return text

    def _take_mark(self, mark: str) -> bool:
        if not self._text.startswith(mark, self._at):
            return False
        self._at += len(mark)
        return True

    def _skip_space(self) -> None:
        space = _SPACE.match(self._text, self._at)
        self._at = space.end() if space else self._at


Call = tuple[str, Any]
"""A tool's name and its arguments."""
Schemas = Mapping[str, Mapping[str, Any]]
"""Names of tools to the JSON Schemas of their arguments."""

_PARAMETER: Final = re.compile(r"<parameter=([^>\s]+)>\n?(.*?)\n?</parameter>", re.DOTALL)


@dataclass(frozen=True, slots=True)
class Markup:
    """How one family of models writes tool calls in its text: the marks around them, and how the text between the marks
    is read."""

    begin: str
    """The mark before a call."""
    end: str | None
    """The mark after a call; None: a call ends at the next one, or with the answer."""
    read_calls: Callable[[str, Schemas], list[Call]]
    """Returns the calls in a text between the marks. Raises ValueError if there are none."""
    tokens: tuple[str, ...]
    """Texts whose tokens must appear in the answer's text; in some vocabularies they are special tokens, which have no
    text otherwise."""


def _qwen(body: str, schemas: Schemas) -> list[Call]:
    body = body.strip()
    if not body.startswith("<function="):
        return [_call_in(_json(body))]
    function = re.fullmatch(r"<function=([^>\s]+)>(.*)</function>", body, re.DOTALL)
    if function is None or _PARAMETER.sub("", function[2]).strip():
        raise ValueError("no function, or not all of it")
    properties = schemas.get(function[1], {}).get("properties")
    fields = properties if isinstance(properties, dict) else {}
    return [
        (function[1], {name: _parse_value(value, fields.get(name)) for name, value in _PARAMETER.findall(function[2])})
    ]


def _mistral(body: str, schemas: Schemas) -> list[Call]:
    body = body.strip()
    if body.startswith("["):
        return [_call_in(each) for each in _json(body)]
    parts = re.fullmatch(r"([^\[{\s]+)(?:\[CALL_ID\][^\[]*)?(?:\[ARGS\])?(\{.*)", body, re.DOTALL)
    if parts is None:
        raise ValueError("no name and arguments")
    return [(parts[1], _json(parts[2]))]


def _gemma(body: str, schemas: Schemas) -> list[Call]:
    return [gemma_call(body.strip())]


QWEN: Final = Markup("<tool_call>", "</tool_call>", _qwen, ("<tool_call>", "</tool_call>"))
"""Markup of Qwen and Hermes: JSON, and XML in later Qwens."""
MISTRAL: Final = Markup("[TOOL_CALLS]", None, _mistral, ("[TOOL_CALLS]", "[ARGS]", "[CALL_ID]"))
GEMMA: Final = Markup("<|tool_call>", "<tool_call|>", _gemma, ("<|tool_call>", "<tool_call|>", '<|"|>'))

_OF_FORMAT: Final = {"qwen3_template": QWEN, "gemma4_template": GEMMA, "mistral_template": MISTRAL}


def markup_of(prompt_format: str | None, template: str) -> Markup | None:
    """Return the markup of the prompt format, else the first one whose begin mark is in the chat template's source;
    None if there is none."""
    if prompt_format in _OF_FORMAT:
        return _OF_FORMAT[prompt_format]
    return next((markup for markup in (QWEN, MISTRAL, GEMMA) if markup.begin in template), None)


def _call_in(value: Any) -> Call:
    if not isinstance(value, dict) or not isinstance(value.get("name"), str):
        raise ValueError("no name")  # noqa: TRY004 - it is the text that is wrong
    arguments = value.get("arguments", value.get("parameters", {}))
    if isinstance(arguments, str):
        arguments = _json(arguments)
    if not isinstance(arguments, dict):
        raise ValueError("no arguments")  # noqa: TRY004
    return value["name"], arguments


def _parse_value(text: str, schema: Any) -> Any:
    if _may_be_text(text, schema):
        return text
    try:
        return _json(text)
    except ValueError:
        return text


def _may_be_text(text: str, schema: Any) -> bool:
    if not isinstance(schema, dict):
        return False
    types, values, any_of, one_of = (_list(schema.get(name)) for name in ("type", "enum", "anyOf", "oneOf"))
    if schema.get("type") == "string" or "string" in types or text in values:
        return True
    return any(_may_be_text(text, branch) for branch in (*any_of, *one_of))


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


def _json(text: str) -> Any:
    return json.loads(text, parse_constant=_refuse)


def _refuse(constant: str) -> None:
    raise ValueError(f"{constant} is no JSON")


class _CallReader:
    """Separates text and calls of one answer, piece by piece."""

    def __init__(self, markup: Markup, schemas: Schemas, new_id: Callable[[], str], most: int | None) -> None:
        self._markup = markup
        self._most = most
        self._schemas = schemas
        self._new_id = new_id
        self._begin = StopStringFinder(markup.begin)
        self._end = StopStringFinder(markup.end or markup.begin)
        self._body: list[str] | None = None
        """Parts of the call that is being read; None outside of calls."""
        self._text = SpaceTrimmer(is_start=False)
        self.count = 0

    def feed_text(self, text: str) -> tuple[str, list[dict[str, Any]]]:
        """Return the next text and the calls that are complete now."""
        plain_text, calls = "", list[dict[str, Any]]()
        while text and not self.is_full:
            if self._body is None:
                before, mark, text = self._begin.feed_text(text)
                plain_text += self._text.trim_text(before)
                if mark is not None:
                    self._body = []
            else:
                before, mark, text = self._end.feed_text(text)
                self._body.append(before)
                if mark is not None:
                    plain_text += self._read_call("".join(self._body), mark, calls)
                    self._body = None if self._markup.end else []
        return plain_text, calls

    @property
    def is_full(self) -> bool:
        """Whether no more calls may follow."""
        return self._most is not None and self.count >= self._most

    def flush_text(self) -> tuple[str, list[dict[str, Any]]]:
        """Return the held text and the last calls. Call once, after the last text. A call may lack its end mark."""
        calls: list[dict[str, Any]] = []
        if self._body is None:
            plain_text = self._text.trim_text(self._begin.flush_text())
        else:
            plain_text = self._read_call("".join(self._body) + self._end.flush_text(), "", calls)
        return plain_text if self.count else plain_text + self._text.held, calls

    def _read_call(self, body: str, end: str, calls: list[dict[str, Any]]) -> str:
        try:
            parsed_calls = [
                (name, encode_arguments(arguments)) for name, arguments in self._markup.read_calls(body, self._schemas)
            ]
        except (ValueError, RecursionError):
            return self._text.trim_text(self._markup.begin + body + (end if self._markup.end else ""))
        self._text.held, self._text.is_start = "", True
        for name, arguments in parsed_calls[: self._most]:
            function = {"name": name, "arguments": arguments}
            calls.append({"index": self.count, "id": self._new_id(), "type": "function", "function": function})
            self.count += 1
        return ""


def split_calls(
    pieces: Generator[Piece], markup: Markup, schemas: Schemas, new_id: Callable[[], str], *, several: bool
) -> Generator[Piece]:
    """Yield the pieces of an answer with calls in `tool_calls` instead of in the text, each in one part when it is
    complete. The finish reason `stop` becomes `tool_calls` if there was a call. `schemas`: see `schemas_of`; `new_id`
    makes a call's id.

    Text that looks like a call and is none stays text. Unless `several`, the answer ends after its first call. Closes
    `pieces` at the end and when it is closed itself.
    """
    reader = _CallReader(markup, schemas, new_id, None if several else 1)
    with closing(pieces):
        for piece in pieces:
            text, calls = reader.feed_text(piece.text)
            finish = piece.finish_reason
            if finish is not None and not reader.is_full:
                last_text, last_calls = reader.flush_text()
                text, calls = text + last_text, calls + last_calls
            if reader.is_full:
                yield replace(piece, text=text, tool_calls=tuple(calls), finish_reason="tool_calls")
                return
            if finish == "stop" and reader.count:
                finish = "tool_calls"
            if text or calls or piece.thought or finish is not None:
                yield replace(piece, text=text, tool_calls=tuple(calls), finish_reason=finish)


def split_forced_call(pieces: Generator[Piece], name: str, new_id: Callable[[], str]) -> Generator[Piece]:
    """Yield the pieces of an answer whose whole text is the arguments of one call of the tool `name`, with the text as
    parts of that call. The arguments are not checked: an answer cut at the token limit leaves them incomplete. The
    finish reason `stop` becomes `tool_calls`. `new_id` makes the call's id. Closes `pieces` at the end and when it is
    closed itself."""
    part: dict[str, Any] = {"index": 0, "id": new_id(), "type": "function", "function": {"name": name, "arguments": ""}}
    with closing(pieces):
        for piece in pieces:
            calls: tuple[dict[str, Any], ...] = ()
            if piece.text or (piece.finish_reason == "stop" and "id" in part):
                part["function"]["arguments"] = piece.text
                calls, part = (part,), {"index": 0, "function": {}}
            finish = "tool_calls" if piece.finish_reason == "stop" else piece.finish_reason
            yield replace(piece, text="", tool_calls=calls, finish_reason=finish)


def split_json_calls(pieces: Generator[Piece], new_id: Callable[[], str]) -> Generator[Piece]:
    """Yield the pieces of an answer whose whole text is one call, as `{"name": ..., "arguments": ...}`; the call comes
    with the last piece, whose finish reason is then `tool_calls`. A text that is no such call (it was cut short) comes
    whole as text of the last piece. Closes `pieces` at the end and when it is closed itself."""
    parts = []
    with closing(pieces):
        for piece in pieces:
            parts.append(piece.text)
            if piece.finish_reason is None:
                if piece.thought:
                    yield replace(piece, text="")
                continue
            try:
                name, value = _call_in(_json("".join(parts)))
                arguments = encode_arguments(value)
            except (ValueError, RecursionError):
                yield replace(piece, text="".join(parts))
                continue
            function = {"name": name, "arguments": arguments}
            call = {"index": 0, "id": new_id(), "type": "function", "function": function}
            yield replace(piece, text="", tool_calls=(call,), finish_reason="tool_calls")


def forced_tools(request: ChatRequest) -> dict[str, dict[str, Any]]:
    """Return the tools of which the model must call one, by name, with the schemas of their arguments; empty if it need
    not call any. Raises RequestError if `tool_choice` requires or names a tool that is not offered."""
    tools = schemas_of(request.offered_tools)
    choice = request.tool_choice
    if isinstance(choice, NamedTool):
        name = choice.function.name
        if name not in tools:
            raise RequestError(f"`tool_choice` names {name!r}, which is not in `tools`.", param="tool_choice")
        return {name: tools[name]}
    if choice == "required" and not tools:
        raise RequestError("`tool_choice` is required, and `tools` has none.", param="tool_choice")
    return tools if choice == "required" else {}


def encode_arguments(arguments: Any) -> str:
    """Return arguments as the JSON text that clients get. Raises ValueError for a number that JSON cannot express."""
    return json.dumps(arguments, ensure_ascii=False, allow_nan=False)


def schemas_of(tools: Sequence[Mapping[str, Any]]) -> dict[str, dict[str, Any]]:
    """Return the JSON Schemas of the tools' arguments by the tools' names. A tool without a schema takes no arguments.
    Of two tools of one name, the last one counts."""
    nothing = {"type": "object", "properties": {}}
    return {tool["function"]["name"]: tool["function"].get("parameters") or nothing for tool in tools}
