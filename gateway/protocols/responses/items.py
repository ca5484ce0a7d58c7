"""Items of responses and conversations: read into turns, described, and added by clients. Pure.

Consecutive items of the model (thoughts, a message, calls) become one turn. A call that the gateway ran (`mcp_call`)
becomes a call and its result. Consecutive ones become the calls of one turn if they are of one round of the model
(`mcp.round_of`), and else turns of their own, each followed by its result.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Final, NamedTuple

from gateway.protocols.chat.tool_forms import custom_arguments
from gateway.protocols.common.conversation import (
    Assistant,
    Audio,
    Call,
    Fields,
    Image,
    Part,
    System,
    Text,
    ToolResult,
    Turn,
    User,
)
from gateway.protocols.common.field_reader import (
    choice_error,
    describe_value,
    field_error,
    optional_field,
    require_choice,
    require_field,
    require_text,
    require_value,
)
from gateway.protocols.common.file_parts import decode_text, no_files
from gateway.protocols.responses.mcp import read_call, read_request, refusal_text, round_of

_ROLES: Final = ("user", "assistant", "system", "developer")
_TEXTS: Final = ("input_text", "output_text", "text")
"""Types of text parts. Clients send parts back as they got them and mean the same by all of these."""
_THOUGHTS: Final = ("reasoning_text", "summary_text", "text")
INTRODUCTION: Final = "Summary of the conversation so far, which was compacted here:\n\n"
_PREFIXES: Final = {
    "message": "msg",
    "reasoning": "rs",
    "function_call": "fc",
    "function_call_output": "fco",
    "custom_tool_call": "ctc",
    "custom_tool_call_output": "ctco",
    "file_search_call": "fs",
    "mcp_list_tools": "mcpl",
    "mcp_call": "mcp",
    "mcp_approval_request": "mcpr",
    "mcp_approval_response": "mcpa",
    "compaction": "cmp",
    "compaction_summary": "cmp",
}
_MARK: Final = "roundhouse-summary-1:"


def read_turns(items: Iterable[tuple[Fields, str]], *, runs_calls: bool = False) -> list[Turn]:
    """Return the turns that the items make up, in order. Consecutive items of the model (thoughts, messages, calls)
    become one turn; the item of a search in vector stores, a list of tools and an unanswered `mcp_approval_request`
    become none. Each item comes with its path in the request, such as `input[0]`, for errors; references must be
    resolved already (`resolve_item`). `runs_calls`: the request's `tools` name a server whose calls the gateway runs,
    so that an approval makes sense.

    Raises:
        RoundhouseError: `invalid_request`: an item is wrong, or is the result of a call or the answer to a request that
            does not come before it, or approves a call that is not run. `modality_unsupported`: a file is not text. Its
            `param` is the path to the value.
    """
    reader = _TurnReader(runs_calls=runs_calls)
    for item, place in items:
        reader.read_item(item, place)
    reader.close_turn()
    return reader.turns


def check_items(items: Iterable[tuple[Fields, str]]) -> None:
    """Refuse items that a conversation cannot hold, by the rules of `read_turns`, with its errors. Each item comes with
    its path in the request, references already resolved. The result of a call is accepted without the call, and the
    answer to a request for an approval without the request: those may be stored already."""
    reader = _TurnReader(runs_calls=True)
    for item, place in items:
        call_id, request_id = item.get("call_id"), item.get("approval_request_id")
        if isinstance(call_id, str):
            reader.known_call_ids.add(call_id)
        if isinstance(request_id, str):
            reader.known_requests.setdefault(request_id, None)
        reader.read_item(item, place)


def resolve_item(item: Fields, referenced_items: Mapping[str, Fields], place: str) -> Fields:
    """Return the stored item that an `item_reference` names; any other item unchanged. `referenced_items` are stored
    items by their id. Raises RoundhouseError `invalid_request` if the id is not among them, or as `kind_of`."""
    if kind_of(item, place) != "item_reference":
        return item
    item_id = require_text(item.get("id"), f"{place}.id")
    if item_id not in referenced_items:
        raise field_error(f"{place}.id", f"must be the id of an item of a stored response; {describe_value(item_id)}")
    return referenced_items[item_id]


def kind_of(item: Fields, place: str) -> str:
    """Return the item's type, which messages and references may leave out: with a `role` it is `message`, with nothing
    but an `id` `item_reference`. A type that is given is returned unchecked. Raises RoundhouseError `invalid_request`
    if the type is neither given nor clear."""
    kind = item.get("type")
    if isinstance(kind, str):
        return kind
    if kind is None and "role" in item:
        return "message"
    if kind is None and item.keys() <= {"type", "id"} and "id" in item:
        return "item_reference"
    raise choice_error(kind, _KINDS, f"{place}.type")


def describe_items(items: Iterable[tuple[Fields, str]], new_id: Callable[[str], str]) -> Iterator[Fields]:
    """Yield copies of the items as lists of items show them, in order: each with an id, a type and a status, messages
    in parts. An item without an id gets one from `new_id`, which takes a prefix such as `msg`. Each item comes with its
    path in the request, and must have been checked (`read_turns` or `check_items`). Raises RoundhouseError
    `invalid_request`, when the item's turn comes, if its `id` or `status` is no string."""
    for item, place in items:
        kind = kind_of(item, place)
        item_id = optional_field(item, "id", str, f"{place}.") or new_id(_PREFIXES[kind])
        status = optional_field(item, "status", str, f"{place}.") or "completed"
        listed_item = {**item, "id": item_id, "type": kind, "status": status}
        if kind == "message" and isinstance(item["content"], str):
            listed_item["content"] = [_build_text_part(item["role"], item["content"])]
        yield listed_item


def _build_text_part(role: str, text: str) -> Fields:
    if role == "assistant":
        return {"type": "output_text", "text": text, "annotations": [], "logprobs": []}
    return {"type": "input_text", "text": text}


class _TurnReader:
    """Collects turns. The model's items gather in an open turn until another's item closes it."""

    def __init__(self, *, runs_calls: bool) -> None:
        self.turns: list[Turn] = []
        self.known_call_ids: set[str] = set()
        self.known_requests: dict[str, tuple[str, str] | None] = {}
        """Function and arguments of the calls that a client was asked to approve, by the id of that item; None: they
        are not known here."""
        self._round: str | None = None
        """The round of the open turn's calls (`round_of`); None: it has none, or their round is not known."""
        self._runs_calls = runs_calls
        self._place: str | None = None
        """Place of the open turn; None if no turn is open."""
        self._texts: list[str] = []
        self._is_cut = False
        """Whether the last message of the open turn is incomplete, so that the next one continues its text."""
        self._thoughts: list[str] = []
        self._refusals: list[str] = []
        self._calls: list[Call] = []
        self._results: list[ToolResult] = []
        """Results of calls of the open turn, to which the model has not said anything yet."""

    def read_item(self, item: Fields, place: str) -> None:
        kind = "message" if item.get("type") is None else item["type"]
        reader = _READERS.get(kind) if isinstance(kind, str) else None
        if reader is None:
            raise choice_error(kind, _KINDS, f"{place}.type")
        reader(self, item, place)

    def close_turn(self) -> None:
        """End the open turn of the model, if there is one."""
        if self._place is None:
            return
        texts, thoughts, refusals = ("\n\n".join(parts) for parts in (self._texts, self._thoughts, self._refusals))
        if texts or thoughts or refusals or self._calls:
            self.turns.append(Assistant(texts, thoughts, tuple(self._calls), refusals, place=self._place))
        self.turns += self._results
        self._place = self._round = None
        self._is_cut = False
        self._texts, self._thoughts, self._refusals, self._calls, self._results = [], [], [], [], []

    def read_message(self, item: Fields, place: str) -> None:
        role = item.get("role")
        content = item.get("content")
        if role == "assistant":
            self._read_assistant(content, place)
            self._is_cut = item.get("status") == "incomplete"
        elif role == "user":
            self.close_turn()
            self.turns.append(User(_parts(content, f"{place}.content"), place=place))
        else:
            require_choice(role, _ROLES, f"{place}.role")
            self.close_turn()
            self.turns.append(System(_plain_text(content, f"{place}.content"), place=place))

    def _read_assistant(self, content: Any, place: str) -> None:
        self._open_turn(place, answers_results=True)
        if isinstance(content, str):
            self._add_text(content)
            return
        text = ""
        for number, part in enumerate(require_value(content, list, f"{place}.content")):
            part_text = _part_text(part, _TEXTS)
            text += self._read_refusal(part, f"{place}.content[{number}]") if part_text is None else part_text
        if text:
            self._add_text(text)

    def _add_text(self, text: str) -> None:
        if self._is_cut and self._texts:
            self._texts[-1] += text
        else:
            self._texts.append(text)

    def _read_refusal(self, part: Any, place: str) -> str:
        """Read a part that is no text. Always returns an empty text."""
        if require_value(part, dict, place).get("type") in _TEXTS:
            raise field_error(f"{place}.text", f"must be a string; {describe_value(part.get('text'))}")
        if part.get("type") != "refusal":
            raise choice_error(part.get("type"), ("output_text", "refusal"), f"{place}.type")
        self._refusals.append(require_field(part, "refusal", str, place))
        return ""

    def read_reasoning(self, item: Fields, place: str) -> None:
        """Read thoughts, or else their summary. Encrypted thoughts cannot be read here and are skipped."""
        self._open_turn(place, answers_results=True)
        for name in ("content", "summary"):
            parts = optional_field(item, name, list, f"{place}.")
            text = _join_texts(parts, f"{place}.{name}", _THOUGHTS, "") if parts else ""
            if text:
                self._thoughts.append(text)
                return

    def read_call(self, item: Fields, place: str) -> None:
        self._add_call(item, place, require_field(item, "arguments", str, place))

    def read_custom_call(self, item: Fields, place: str) -> None:
        self._add_call(item, place, custom_arguments(require_field(item, "input", str, place)))

    def _add_call(self, item: Fields, place: str, arguments: str) -> None:
        self._open_call(place, round_of(item))
        name, call_id = (
            require_text(item.get("name"), f"{place}.name"),
            require_text(item.get("call_id"), f"{place}.call_id"),
        )
        self._calls.append(Call(call_id, name, arguments))
        self.known_call_ids.add(call_id)

    def read_result(self, item: Fields, place: str) -> None:
        call_id = require_text(item.get("call_id"), f"{place}.call_id")
        if call_id not in self.known_call_ids:
            rule = (
                "must be that of a call which comes before it, here or in `previous_response_id`; "
                f"{describe_value(call_id)}"
            )
            raise field_error(f"{place}.call_id", rule)
        self.close_turn()
        self.turns.append(ToolResult(call_id, _parts(item.get("output"), f"{place}.output"), place=place))

    def read_compaction(self, item: Fields, place: str) -> None:
        """Read the summary that /v1/responses/compact made of the conversation before it."""
        summary = decode_summary(item.get("encrypted_content"), f"{place}.encrypted_content")
        self.close_turn()
        self.turns.append(User((Text(INTRODUCTION + summary),), place=place))

    def read_mcp_call(self, item: Fields, place: str) -> None:
        """Read a call that the gateway ran, and its result."""
        call_id, function, arguments, result = read_call(item, place)
        self._add_run_call(call_id, function, arguments, result, place, round_of(item))

    def read_approval_request(self, item: Fields, place: str) -> None:
        request_id, function, arguments = read_request(item, place)
        self.known_requests[request_id] = (function, arguments)

    def read_approval_response(self, item: Fields, place: str) -> None:
        """Read a refusal as a call and its result. A call that was approved has an item of its own once it has run."""
        request_id = require_text(item.get("approval_request_id"), f"{place}.approval_request_id")
        if request_id not in self.known_requests:
            rule = "must be that of an mcp_approval_request which comes before it, here or in `previous_response_id`"
            raise field_error(f"{place}.approval_request_id", f"{rule}; {describe_value(request_id)}")
        request = self.known_requests[request_id]
        if require_field(item, "approve", bool, place):
            if not self._runs_calls and place.startswith("input"):
                raise field_error(f"{place}.approve", "must be false where `tools` has no mcp server to run the call")
        elif request is not None:
            self._add_run_call(request_id, *request, refusal_text(item, place), place, round_of(item))

    def _add_run_call(
        self, call_id: str, function: str, arguments: str, result: str, place: str, call_round: str | None
    ) -> None:
        self._open_call(place, call_round)
        self._calls.append(Call(call_id, function, arguments))
        self._results.append(ToolResult(call_id, (Text(result),), place=place))

    def skip_item(self, item: Fields, place: str) -> None:
        """Skip what was for an earlier response alone: its search in vector stores, its list of tools."""

    def _open_call(self, place: str, call_round: str | None) -> None:
        """Open a turn for a call, unless it belongs to the open one: of the calls that have a result there, only those
        of the same round were made before that result was known."""
        if self._results and (call_round is None or call_round != self._round):
            self.close_turn()
        self._open_turn(place)
        self._round = call_round or self._round

    def _open_turn(self, place: str, *, answers_results: bool = False) -> None:
        if answers_results and self._results:
            self.close_turn()
        if self._place is None:
            self._place = place


_READERS: Final[Mapping[str, Callable[[_TurnReader, Fields, str], None]]] = {
    "message": _TurnReader.read_message,
    "reasoning": _TurnReader.read_reasoning,
    "function_call": _TurnReader.read_call,
    "function_call_output": _TurnReader.read_result,
    "custom_tool_call": _TurnReader.read_custom_call,
    "custom_tool_call_output": _TurnReader.read_result,
    "file_search_call": _TurnReader.skip_item,
    "mcp_list_tools": _TurnReader.skip_item,
    "mcp_call": _TurnReader.read_mcp_call,
    "mcp_approval_request": _TurnReader.read_approval_request,
    "mcp_approval_response": _TurnReader.read_approval_response,
    "compaction": _TurnReader.read_compaction,
    "compaction_summary": _TurnReader.read_compaction,  # a form in which Codex may send it back
}
_KINDS: Final = (*_READERS, "item_reference")


def _parts(content: Any, place: str) -> tuple[Part, ...]:
    if isinstance(content, str):
        return (Text(content),)
    parts = require_value(content, list, place)
    if not parts:
        raise field_error(place, "must not be empty")
    return tuple([_part(part, place, number) for number, part in enumerate(parts)])


def _part(part: Any, at: str, number: int) -> Part:
    text_value = _part_text(part, _TEXTS)
    if text_value is not None:
        return Text(text_value)
    place = f"{at}[{number}]"
    kind = require_value(part, dict, place).get("type")
    if kind in _TEXTS:
        return Text(require_field(part, "text", str, place))
    if kind == "input_image":
        return _image(part, place)
    if kind == "input_audio":
        sound = require_value(part.get("input_audio"), dict, f"{place}.input_audio")
        data, form = (require_text(sound.get(name), f"{place}.input_audio.{name}") for name in ("data", "format"))
        return Audio(data, form, place=place)
    if kind == "input_file":
        return _file(part, place)
    raise choice_error(kind, ("input_text", "input_image", "input_audio", "input_file"), f"{place}.type")


def _image(part: Fields, place: str) -> Image:
    if part.get("image_url") is None and part.get("file_id") is not None:
        raise no_files(f"{place}.file_id", "`image_url`, which may be a data: URL")
    url = require_text(part.get("image_url"), f"{place}.image_url")
    return Image(url, optional_field(part, "detail", str, f"{place}."), place=place)


def _file(part: Fields, place: str) -> Text:
    """Read a file of text. PDFs were replaced by their text before (`find_files`)."""
    for name in ("file_id", "file_url"):
        if part.get("file_data") is None and part.get(name) is not None:
            raise no_files(f"{place}.{name}", "`file_data`")
    return Text(decode_text(require_text(part.get("file_data"), f"{place}.file_data"), f"{place}.file_data"))


def _plain_text(content: Any, place: str) -> str:
    if isinstance(content, str):
        return content
    return _join_texts(require_value(content, list, place), place, _TEXTS, "\n")


def _join_texts(parts: list[Any], place: str, kinds: tuple[str, ...], separator: str) -> str:
    texts = []
    for number, part in enumerate(parts):
        part_text = _part_text(part, kinds)
        if part_text is None:
            at = f"{place}[{number}]"
            require_choice(require_value(part, dict, at).get("type"), kinds, f"{at}.type")
            part_text = require_field(part, "text", str, at)
        texts.append(part_text)
    return separator.join(texts)


def _part_text(part: Any, kinds: tuple[str, ...]) -> str | None:
    """Return the text of a part of these types; None if the part is something else or invalid. Runs for nearly every
    part, so it comes before the detailed checks."""
    text = part.get("text") if type(part) is dict and part.get("type") in kinds else None
    return text if type(text) is str else None


def encode_summary(summary: str) -> str:
    """Return a summary as the `encrypted_content` of a `compaction` item, which clients keep between requests.

    It is encoded, not encrypted: it holds nothing that its client did not send or get.
    """
    return _MARK + base64.b64encode(summary.encode(errors="replace")).decode()


def decode_summary(content: Any, place: str) -> str:
    """Return the summary in an item's `encrypted_content`. Raises RoundhouseError `invalid_request` if it was not made
    by `encode_summary`."""
    encoded = require_text(content, place)
    try:
        if encoded.startswith(_MARK):
            return base64.b64decode(encoded.removeprefix(_MARK), validate=True).decode()
    except (binascii.Error, ValueError):
        pass
    raise field_error(place, f"must be as /v1/responses/compact of this gateway told it; {describe_value(encoded)}")


MOST_ADDED: Final = 1000
"""Maximum items in one request. OpenAI's API takes 20."""


class BranchStart(NamedTuple):
    """Where added items begin a new branch, instead of following the item before them: below the item `parent_id`;
    None: at the root."""

    parent_id: str | None
    """Id of the item below which they are added; None: they begin a branch at the root."""


class AddedItem(NamedTuple):
    """An item that a client adds to a conversation, checked, and where it stands in the tree. `start` None: it follows
    the item before it in the request."""

    item: Fields
    """The item as it is stored, with an id."""
    start: BranchStart | None
    """Where it begins a branch; None: it follows the item before it in the request."""


def read_added_items(
    values: Any, referenced_items: Mapping[str, Fields], new_id: Callable[[str], str]
) -> list[AddedItem]:
    """Return the `items` of a request as they are stored, in order: each with an id, references replaced by the items
    they name, and the place that its `parent_id` gives it. May be empty.

    `values` is the decoded field. `referenced_items`: stored items by their id. `new_id` returns a fresh id with the
    given prefix. Whether an item has the id `parent_id` is not checked.

    Raises:
        RoundhouseError: `invalid_request`, also for more than `MOST_ADDED` items, an unknown reference or an id that
            occurs twice; or `modality_unsupported`. Its `param` is the path, such as `items[1].id`.
    """
    items = require_value(values, list, "items")
    if len(items) > MOST_ADDED:
        raise field_error("items", f"must have at most {MOST_ADDED} items at a time; it has {len(items)}")
    placed_items, starts = [], []
    for index, item in enumerate(items):
        place = f"items[{index}]"
        # The stored item that a reference names has another parent, so the request's own is read.
        starts.append(read_start(require_value(item, dict, place), f"{place}."))
        bare_item = _without_notes(item)
        placed_items.append((_without_notes(resolve_item(bare_item, referenced_items, place)), place))
    check_items(placed_items)
    described_items = describe_items(placed_items, new_id)
    added_items = [AddedItem(*each) for each in zip(described_items, starts, strict=True)]
    seen_ids: set[str] = set()
    for index, (item, _) in enumerate(added_items):
        if item["id"] in seen_ids:
            raise field_error(f"items[{index}].id", f"must be another than those before it; it is {item['id']!r:.100}")
        seen_ids.add(item["id"])
    return added_items


def read_start(fields: Fields, at: str = "") -> BranchStart | None:
    """Return where the `parent_id` of a request, or of one item, begins a branch; None: there is no such field.

    `at`: path of the item in the request, followed by a dot; empty for the request itself. Raises RoundhouseError
    `invalid_request` if `parent_id` is neither a string nor null.
    """
    return BranchStart(optional_field(fields, "parent_id", str, at)) if "parent_id" in fields else None


def _without_notes(item: Fields) -> Fields:
    """Return the item without `parent_id`, which is stored beside it, and without `answer`, by which the gateway tells
    how a response made an item."""
    return {name: value for name, value in item.items() if name not in ("parent_id", "answer")}
