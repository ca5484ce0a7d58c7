"""`python langchain_probe.py URL MODEL PAGE`: LangChain on documents, vector stores and embeddings, as one JSON object:
what was tried, to "held" or to what was wrong. The retriever is the block of Python in the Markdown file PAGE that
defines `RoundhouseRetriever`. Run by the interpreter that has the packages; imports nothing of the project."""

from __future__ import annotations

import importlib
import json
import math
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

TEXTS = {
    "coal": "Coal is stored beside the shed.",
    "tea": "Tea and bread are in the kitchen.",
    "fox": "The quick brown fox jumps over a lazy dog.",
}
BLOCK = re.compile(r"^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def read_retriever(page: Path) -> Any:
    """Return the class that the page defines. Raises StopIteration where it defines none."""
    block = next(block for block in BLOCK.findall(page.read_text()) if "class RoundhouseRetriever" in block)
    # A module of that name is looked up by pydantic when the class is made.
    names: dict[str, Any] = {"__name__": __name__}
    exec(compile(block, str(page), "exec"), names)
    return names["RoundhouseRetriever"]


class LangChainProbe:
    """What is tried against one gateway."""

    def __init__(self, url: str, model: str, page: Path) -> None:
        langchain_openai: Any = importlib.import_module("langchain_openai")
        vectorstores: Any = importlib.import_module("langchain_core.vectorstores")
        openai: Any = importlib.import_module("openai")
        self._client = openai.OpenAI(
            base_url=f"{url}/v1", api_key="none", max_retries=0, default_headers={"X-Client-Id": "langchain"}
        )
        self._retriever = read_retriever(page)
        self._embeddings = langchain_openai.OpenAIEmbeddings(
            base_url=f"{url}/v1", api_key="none", model=model, check_embedding_ctx_length=False
        )
        self._memory = vectorstores.InMemoryVectorStore

    def list_tries(self) -> dict[str, Callable[[], None]]:
        return {
            "OpenAIEmbeddings: documents and queries": self.embed,
            "OpenAIEmbeddings below InMemoryVectorStore": self.search_in_memory,
            "a retriever of /v1/search": self.retrieve_documents,
            "a retriever of a vector store": self.retrieve_files,
        }

    def embed(self) -> None:
        """Texts have unit vectors, and a query has the vector of the same text."""
        vectors = self._embeddings.embed_documents(list(TEXTS.values()))
        assert len(vectors) == len(TEXTS)
        assert all(math.isclose(math.hypot(*vector), 1.0, abs_tol=1e-3) for vector in vectors)
        again = self._embeddings.embed_query(TEXTS["coal"])
        assert all(math.isclose(a, b, abs_tol=1e-3) for a, b in zip(vectors[0], again, strict=True))

    def search_in_memory(self) -> None:
        """A text is found by itself, and metadata comes back."""
        store = self._memory(self._embeddings)
        store.add_texts(list(TEXTS.values()), [{"name": name} for name in TEXTS])
        [(found, score)] = store.similarity_search_with_score(TEXTS["tea"], k=1)
        assert (found.page_content, found.metadata) == (TEXTS["tea"], {"name": "tea"})
        assert score > 0.999, f"a score of {score}"

    def retrieve_documents(self) -> None:
        """Documents that were added by the REST route are found with what cites them."""
        for name, text in TEXTS.items():
            document = {"id": name, "text": text, "metadata": {"kind": "yard"}}
            self._client.post("/documents?wait=true", body=document, cast_to=object)
        retriever = self._retriever(client=self._client, fields={"top_k": 2, "mode": "sparse"})
        [found] = retriever.invoke("Where is the coal?")
        assert found.page_content == TEXTS["coal"]
        assert (found.id, found.metadata["kind"]) == ("coal", "yard"), found
        assert found.metadata["score"] > 0
        piped = retriever | (lambda documents: [each.page_content for each in documents])
        assert piped.invoke("Where is the fox?") == [TEXTS["fox"]]
        filtered = self._retriever(client=self._client, fields={"filter": {"kind": "other"}})
        assert filtered.invoke("Where is the coal?") == []

    def retrieve_files(self) -> None:
        """The same class finds what OpenAI's SDK has put into a vector store."""
        store = self._client.vector_stores.create(name="langchain")
        files = [(f"{name}.txt", text.encode()) for name, text in TEXTS.items()]
        self._client.vector_stores.file_batches.upload_and_poll(store.id, files=files, poll_interval_ms=50)
        path = f"/vector_stores/{store.id}/search"
        found = self._retriever(client=self._client, path=path, fields={"max_num_results": 3}).invoke(TEXTS["tea"])
        assert found[0].page_content == TEXTS["tea"], found
        assert found[0].metadata["filename"] == "tea.txt"
        self._client.vector_stores.delete(store.id)


def _result_of(attempt: Callable[[], None]) -> str:
    try:
        attempt()
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return "held"


if __name__ == "__main__":
    tries = LangChainProbe(sys.argv[1], sys.argv[2], Path(sys.argv[3])).list_tries()
    print(json.dumps({name: _result_of(attempt) for name, attempt in tries.items()}))
