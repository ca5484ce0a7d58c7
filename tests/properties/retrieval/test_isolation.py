"""Tenants are told apart: generated operations of two tenants with the same ids and texts, against a model of each."""

from __future__ import annotations

import asyncio
import tempfile
from pathlib import Path
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.campaign import campaign_count
from tests.support.retrieval_harness import RetrievalHarness, retrieval_harness

TENANTS = ("alice", "bob")
IDS = ("a", "b", "c")
TEXTS = ("A fox runs.", "A fox sleeps.\n\nA dog too.", "A dog barks.", "bad fox")
TAGS = ("x", "y")
Model = dict[str, dict[str, tuple[str, str]]]
"""Text and tag by tenant and document id."""

versions = st.tuples(st.sampled_from(TEXTS), st.sampled_from(TAGS))
operations = st.lists(
    st.one_of(
        st.tuples(st.just("add"), st.sampled_from(TENANTS), st.sampled_from(IDS), versions),
        # The same text again, with the other tag: nothing is parsed or embedded for it.
        st.tuples(st.just("tag"), st.sampled_from(TENANTS), st.sampled_from(IDS), st.sampled_from(TAGS)),
        st.tuples(st.just("delete"), st.sampled_from(TENANTS), st.sampled_from(IDS), st.none()),
        st.tuples(st.just("forget"), st.sampled_from(TENANTS), st.none(), st.none()),
        st.tuples(st.just("restart"), st.none(), st.none(), st.none()),
    ),
    max_size=12,
)


@settings(max_examples=campaign_count(15, 1000))
@given(operations)
def test_nobody_sees_anything_of_another_tenant(steps: list[tuple[str, Any, Any, Any]]) -> None:
    asyncio.run(run_steps(steps))


async def run_steps(steps: list[tuple[str, Any, Any, Any]]) -> None:
    """Run them, with a restart of the program where one is asked for, and compare after each."""
    model: Model = {tenant: {} for tenant in TENANTS}
    with tempfile.TemporaryDirectory() as folder:
        store = None
        position = 0
        while position <= len(steps):
            async with retrieval_harness(Path(folder), store=store) as here:
                store = here.store
                await check(here, model)
                while position < len(steps) and steps[position][0] != "restart":
                    await run_step(here, model, steps[position])
                    await check(here, model)
                    position += 1
            position += 1


async def run_step(here: RetrievalHarness, model: Model, step: tuple[str, Any, Any, Any]) -> None:
    """Run one step, and note in the model what it must have done."""
    kind, tenant, document_id, value = step
    if kind in ("add", "tag"):
        if kind == "tag" and document_id not in model[tenant]:
            return
        text, tag = value if kind == "add" else (model[tenant][document_id][0], value)
        body = {"text": text, "id": document_id, "metadata": {"tag": tag}}
        parsed = len(here.parser.parsed)
        answer = await here.request("POST", "/v1/documents?wait=true", body, tenant=tenant)
        if text.startswith("bad"):
            assert answer.status_code == 422
        else:
            assert answer.status_code == 200, answer.text
            model[tenant][document_id] = (text, tag)
        if kind == "tag":
            assert len(here.parser.parsed) == parsed
    elif kind == "delete":
        answer = await here.request("DELETE", f"/v1/documents/{document_id}", tenant=tenant)
        assert answer.status_code == (200 if model[tenant].pop(document_id, None) is not None else 404)
    else:
        answer = await here.request("DELETE", f"/v1/tenants/{tenant}", tenant=tenant)
        assert answer.status_code == (200 if model[tenant] else 404)
        model[tenant].clear()


async def check(here: RetrievalHarness, model: Model) -> None:
    """Compare everything that a tenant can see with the model."""
    for tenant in TENANTS:
        own = model[tenant]
        listed = (await here.request("GET", "/v1/documents?limit=100", tenant=tenant)).json()["data"]
        assert sorted(document["id"] for document in listed) == sorted(own)
        for word in ("fox", "dog"):
            hits = await here.search(word, tenant=tenant, top_k=100)
            expected = sorted(
                (document_id, paragraph, tag)
                for document_id, (text, tag) in own.items()
                for paragraph in text.split("\n\n")
                if word in paragraph.lower()
            )
            assert sorted((hit["document_id"], hit["text"], hit["metadata"]["tag"]) for hit in hits) == expected
            tagged = await here.search(word, tenant=tenant, top_k=100, filter={"tag": "x"})
            assert sorted((hit["document_id"], hit["text"], "x") for hit in tagged) == [
                each for each in expected if each[2] == "x"
            ]
            for hit in hits:
                text = (await here.request("GET", f"/v1/documents/{hit['document_id']}/text", tenant=tenant)).content
                assert text[hit["start"] : hit["end"]].decode() == hit["text"]
        tenants = (await here.request("GET", "/v1/tenants", tenant=tenant)).json()["data"]
        assert [(each["id"], each["documents"]) for each in tenants] == ([(tenant, len(own))] if own else [])
