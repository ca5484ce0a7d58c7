"""Properties of rankings, whatever an engine makes of the documents and in whatever order it tells it."""

from __future__ import annotations

from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.protocols.rerank import Version, build_answer, read_ranking, write_request
from tests.support.campaign import campaign_count

texts = st.text(max_size=5)
documents = st.lists(
    st.one_of(texts, st.fixed_dictionaries({"text": texts, "n": st.integers()})), min_size=1, max_size=12
)
scores = st.floats(-20, 20)


@settings(max_examples=campaign_count(40, 3_000))
@given(st.data())
def test_the_best_first_as_many_as_asked_for_and_each_with_its_own(data: st.DataObject) -> None:
    version: Version = data.draw(st.sampled_from((1, 2)))
    given_: list[Any] = data.draw(documents if version == 1 else st.lists(texts, min_size=1, max_size=12))
    top_n = data.draw(st.none() | st.integers(1, 15))
    fields: dict[str, Any] = {"query": "q", "documents": given_, "top_n": top_n, "return_documents": True}
    ranking = read_ranking(fields, version)
    asked = write_request(ranking)
    assert asked["documents"] == [each if isinstance(each, str) else each["text"] for each in given_]

    of = data.draw(st.lists(scores, min_size=len(given_), max_size=len(given_)))
    order = data.draw(st.permutations(range(len(given_))))
    told = {"results": [{"index": index, "relevance_score": of[index]} for index in order]}
    results = build_answer(ranking, told, "id", "m", version)["results"]

    indices = [result["index"] for result in results]
    assert len(indices) == len(set(indices)) == min(top_n or len(given_), len(given_))
    assert [result["relevance_score"] for result in results] == sorted(of, reverse=True)[: len(indices)]
    for result in results:
        assert result["relevance_score"] == of[result["index"]]
        document = given_[result["index"]]
        echoed = {"text": document} if isinstance(document, str) else document
        assert result.get("document") == (echoed if version == 1 else None)
