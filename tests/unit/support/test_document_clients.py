"""The verdict on clients of documents, and the retriever that the docs show."""

from __future__ import annotations

import ast

from tests.campaigns.campaign_document_clients import failures_of, tables_of
from tests.support.document_clients import PAGE
from tests.support.langchain_probe import BLOCK


def test_all_but_held_is_a_failure() -> None:
    results = {"LangChain": {"one": "held", "two": "AssertionError: no\nmore"}}
    assert failures_of(results) == ["LangChain, two: AssertionError: no\nmore"]
    rows = [tuple(row) for row in tables_of(results)[0].rows]
    assert rows == [("LangChain", "one", "held"), ("LangChain", "two", "AssertionError: no")]


def test_the_docs_show_a_retriever_that_python_can_read() -> None:
    [block] = [block for block in BLOCK.findall(PAGE.read_text()) if "class RoundhouseRetriever" in block]
    assert "RoundhouseRetriever" in {node.name for node in ast.walk(ast.parse(block)) if isinstance(node, ast.ClassDef)}
