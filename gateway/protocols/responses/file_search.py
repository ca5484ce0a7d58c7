"""The tool `file_search` of responses: what is searched, what the model gets of it, and what the response says. Pure.

The search runs before the model is asked, for the user's last message; the passages stand in front of that message.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Final, Literal, NamedTuple

from pydantic import BaseModel, ConfigDict, Field

from contract.files import RankingOptions, VectorStoreHit, VectorStoreResults, VectorStoreSearch
from gateway.protocols.common.conversation import Fields
from gateway.protocols.common.field_reader import field_error, read_model
from gateway.protocols.common.grounding import (
    Passage,
    clean_query,
    describe_source,
    find_citations,
    fit_passages,
    write_context,
)

TYPE: Final = "file_search"
ITEM_TYPE: Final = "file_search_call"
RESULTS: Final = "file_search_call.results"
"""Name in `include` of a request that wants the passages in the item of the search."""
MOST_STORES: Final = 10
_TEXTS: Final = ("input_text", "output_text", "text")


class FileSearchTool(BaseModel):
    """A tool `file_search`, as OpenAI's with one more field, `max_tokens`: the most tokens of all passages together,
    estimated (None: see `grounding.fit_passages`)."""

    model_config = ConfigDict(extra="forbid", strict=True)

    type: Literal["file_search"]
    vector_store_ids: list[str] = Field(min_length=1, max_length=MOST_STORES)
    filters: dict[str, Any] | None = None
    max_num_results: int = Field(10, ge=1, le=50)
    ranking_options: RankingOptions | None = None
    max_tokens: int | None = Field(None, ge=50, le=1_000_000)

    def build_search(self, question: str) -> VectorStoreSearch:
        """Return the search for `question` in one vector store; the caller sends it to each of `vector_store_ids`.
        Nothing is searched here."""
        return VectorStoreSearch(
            query=clean_query(question),
            filters=self.filters,
            max_num_results=self.max_num_results,
            ranking_options=self.ranking_options,
        )


class FileSearch(NamedTuple):
    """The search that a request asks for. `place`: path of `tool` in the request. `includes_results`: the client wants
    the passages in the item of the search."""

    tool: FileSearchTool
    place: str
    """Path of the tool in the request, such as `tools[0]`."""
    includes_results: bool
    """The client wants the passages in the item of the search."""


class FoundFiles(NamedTuple):
    """What a search has found, of which `ResponseWriter` makes an item and annotations. `hits`: what the model got,
    best first."""

    question: str
    hits: tuple[VectorStoreHit, ...]
    """What the model got, best first."""
    includes_results: bool
    notice: str | None = None
    """Of the searches in the vector stores."""

    @property
    def passages(self) -> list[Passage]:
        """The hits as passages, whose numbers are their positions from 1."""
        return [Passage.of_file(hit) for hit in self.hits]

    def describe_search(self, item_id: str) -> Fields:
        """Return the output item of the search, with the status `completed`. Its results are null unless the client
        wants them. It has a `notice`, which is beyond OpenAI's form, only where the search has."""
        return {
            "id": item_id,
            "type": ITEM_TYPE,
            "status": "completed",
            "queries": [self.question],
            "results": [_describe_hit(hit) for hit in self.hits] if self.includes_results else None,
            **({} if self.notice is None else {"notice": self.notice}),
        }

    def annotate_text(self, text: str) -> list[Fields]:
        """Return an annotation for each `[n]` in an answer's text that is the number of a passage, in order.

        They have OpenAI's form, with our fields beside it. `index` is the citation's place in the text, in characters.
        """
        return [
            {
                "type": "file_citation",
                "index": each.start,
                "file_id": each.passage.document_id,
                "filename": each.passage.filename,
                "start_index": each.start,
                "end_index": each.end,
                **describe_source(each.number, each.passage),
            }
            for each in find_citations(text, self.passages)
        ]


def read_file_search(fields: Fields) -> FileSearch | None:
    """Return the search that a request asks for; None: it declares none, or its `tool_choice` leaves the search out.
    Raises RoundhouseError `invalid_request` if a tool `file_search` is wrong, or there are two of them."""
    tools = fields.get("tools")
    places = [n for n, tool in enumerate(tools if isinstance(tools, list) else ()) if is_file_search(tool)]
    if not places:
        return None
    place = f"tools[{places[0]}]"
    if len(places) > 1:
        raise field_error(f"tools[{places[1]}]", f"must not be a second file_search: {place} may name several stores")
    tool = read_model(FileSearchTool, fields["tools"][places[0]], place)
    included_names = fields.get("include")
    includes_results = isinstance(included_names, list) and RESULTS in included_names
    return FileSearch(tool, place, includes_results) if _is_chosen(fields.get("tool_choice")) else None


def is_file_search(tool: object) -> bool:
    """Return whether a declared or allowed tool, which need not be valid, is a `file_search`."""
    return isinstance(tool, dict) and tool.get("type") == TYPE


def find_question(items: Sequence[object]) -> str:
    """Return the text of the last message of the user among input items, which need not be valid; empty if there is no
    message of the user, or no text in the last one."""
    index = _question_index(items)
    content = None if index is None else _message_content(items[index])
    texts = [content] if isinstance(content, str) else [part["text"] for part in _text_parts(content)]
    return "\n".join(texts).strip()


def ground_items(items: list[tuple[Fields, str]], found: FoundFiles | None) -> list[tuple[Fields, str]]:
    """Return the items with the passages put in front of the text of the message that `find_question` reads, in a copy
    of that item. The same list if `found` is None or has no hits, or if there is no such message, or no text in it.
    Each item comes with its path in the request."""
    index = _question_index([item for item, _ in items])
    if found is None or not found.hits or index is None:
        return items
    item, place = items[index]
    context, content = write_context(found.passages), item.get("content") or ()
    if isinstance(content, str):
        grounded: Any = f"{context}\n\n{content}"
    else:
        first = next(iter(_text_parts(content)), None)
        if first is None:
            return items
        text = f"{context}\n\n{first['text']}"
        grounded = [{**part, "text": text} if part is first else part for part in content]
    return [*items[:index], ({**item, "content": grounded}, place), *items[index + 1 :]]


def merge_results(
    search: FileSearch, question: str, results: Iterable[VectorStoreResults], context_length: int | None
) -> FoundFiles:
    """Return the best hits of all vector stores together, best first: at most `max_num_results` of the tool, and no
    more than fit the model (`grounding.fit_passages`). `context_length`: tokens of the model's context; None: it is not
    known. A chunk that is in several stores is there once, with its best score."""
    best: dict[tuple[str, int], VectorStoreHit] = {}
    notices: dict[str | None, None] = {}
    for result in results:
        notices[result.notice] = None
        for hit in result.data:
            key = (hit.file_id, hit.chunk)
            if key not in best or best[key].score < hit.score:
                best[key] = hit
    ranked = sorted(best.values(), key=lambda hit: (-hit.score, hit.file_id, hit.chunk))
    wanted = ranked[: search.tool.max_num_results]
    fitting = fit_passages([Passage.of_file(hit) for hit in wanted], search.tool.max_tokens, context_length)
    notice = " ".join(filter(None, notices)) or None
    return FoundFiles(question, tuple(wanted[: len(fitting)]), search.includes_results, notice)


def _is_chosen(choice: object) -> bool:
    """Whether a tool choice, which need not be valid, has the search run."""
    if not isinstance(choice, dict):
        return choice != "none"
    if choice.get("type") == "allowed_tools":
        allowed_tools = choice.get("tools")
        return isinstance(allowed_tools, list) and any(map(is_file_search, allowed_tools))
    return is_file_search(choice)


def _question_index(items: Sequence[object]) -> int | None:
    for index in reversed(range(len(items))):
        item = items[index]
        if isinstance(item, dict) and item.get("role") == "user" and item.get("type") in (None, "message"):
            return index
    return None


def _message_content(item: object) -> object:
    return item.get("content") if isinstance(item, dict) else None


def _text_parts(content: object) -> list[Fields]:
    parts = content if isinstance(content, list) else []
    return [
        part
        for part in parts
        if isinstance(part, dict) and part.get("type") in _TEXTS and isinstance(part.get("text"), str)
    ]


def _describe_hit(hit: VectorStoreHit) -> Fields:
    passage = Passage.of_file(hit)
    return {
        "file_id": hit.file_id,
        "filename": hit.filename,
        "score": hit.score,
        "attributes": hit.attributes,
        "text": passage.text,
        "chunk": hit.chunk,
        "start": hit.start,
        "end": hit.end,
        "page": hit.page,
    }
