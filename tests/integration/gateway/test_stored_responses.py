"""Stored responses through the `openai` package: continued, read, listed, deleted, each for its own tenant."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import openai
import pytest
from openai.types.responses import ResponseInputParam

from tests.fakes.fake_controller import route
from tests.fakes.gateway_harness import engines, until
from tests.fakes.mock_engine import WORDS
from tests.support.queueing import key
from tests.support.response_state import refusal, site

TEXT = " ".join(WORDS)
FIRST = [("user", "one"), ("assistant", TEXT)]
NOT_FOUND = (404, "response_not_found", "response_id")
NO_PREVIOUS = (400, "previous_response_not_found", "previous_response_id")


async def test_a_conversation_goes_on_from_what_is_stored() -> None:
    async with site() as here:
        first = await here.make("one")
        assert here.messages() == [("user", "one")]
        second = await here.make("two", previous_response_id=first.id, instructions="Be brief.")
        assert here.messages() == [("system", "Be brief."), *FIRST, ("user", "two")]
        third = await here.make("three", previous_response_id=second.id)
        assert here.messages() == [*FIRST, ("user", "two"), ("assistant", TEXT), ("user", "three")]
        branch = await here.make("other", previous_response_id=first.id)
        assert here.messages() == [*FIRST, ("user", "other")]
        made = [first, second, third, branch]
        assert [each.previous_response_id for each in made] == [None, first.id, second.id, first.id]
        assert [await here.client.responses.retrieve(each.id) for each in made] == made
        assert len({each.id for each in made}) == 4


async def test_another_model_may_go_on() -> None:
    async with engines(1) as (other,), site(route("n", [other.url])) as here:
        first = await here.make("one")
        await here.client.responses.create(model="n", input="two", previous_response_id=first.id)
        assert [each["content"] for each in other.requests[0].body["messages"]] == ["one", TEXT, "two"]


@pytest.mark.parametrize("then", ["read", "continue", "refer", "cancel", "delete", "list"])
async def test_what_the_last_event_told_may_be_counted_on(then: str) -> None:
    """The engine's connection may end later than its stream."""
    async with site() as here:
        stream = await here.client.responses.create(
            model="m", input="one", stream=True, extra_body={"fault": "late_end"}
        )
        told = None
        async for event in stream:
            if event.type == "response.completed":
                told = event.response
                break  # and not when the connection has ended
        assert told is not None
        assert here.engine.running == 1
        responses = here.client.responses
        if then == "read":
            assert await responses.retrieve(told.id) == told
        elif then == "continue":
            await here.make("two", previous_response_id=told.id)
            assert here.messages() == [("user", "one"), ("assistant", told.output_text), ("user", "two")]
        elif then == "refer":
            await responses.create(model="m", input=[{"type": "item_reference", "id": told.output[0].id or ""}])
            assert here.messages() == [("assistant", told.output_text)]
        elif then == "cancel":
            assert await responses.cancel(told.id) == told
        elif then == "delete":
            await responses.delete(told.id)
            assert await refusal(responses.retrieve(told.id)) == NOT_FOUND
        else:
            assert len([item async for item in responses.input_items.list(told.id)]) == 1
        assert here.engine.running == 1
        here.engine.release.set()
        await until(lambda: here.engine.running == 0, "the connection ends")
        if then != "delete":
            assert await responses.retrieve(told.id) == told
        else:
            assert await refusal(responses.retrieve(told.id)) == NOT_FOUND
        assert not here.running


async def test_items_are_listed_the_oldest_or_the_newest_first() -> None:
    async with site() as here:
        first = await here.make("one")
        given: ResponseInputParam = [
            {"role": "developer", "content": "two"},
            {"role": "user", "content": [{"type": "input_text", "text": "three"}]},
        ]
        second = await here.client.responses.create(model="m", input=given, previous_response_id=first.id)

        async def texts(**asked: Any) -> list[str]:
            pages = here.client.responses.input_items.list(second.id, **asked)
            return [item.to_dict()["content"][0]["text"] async for item in pages]  # type: ignore[index]

        assert await texts(order="asc") == ["one", TEXT, "two", "three"]
        assert await texts() == ["three", "two", TEXT, "one"]
        assert await texts(limit=1) == ["three", "two", TEXT, "one"], "page by page"
        page = await here.client.responses.input_items.list(second.id, limit=3, order="asc")
        assert (len(page.data), page.has_more, page.data[1].id) == (3, True, first.output[0].id)
        listed = (await here.gateway.get(f"/v1/responses/{second.id}/input_items?limit=2")).body
        assert (listed["object"], listed["has_more"]) == ("list", True)
        assert (listed["first_id"], listed["last_id"]) == (listed["data"][0]["id"], listed["data"][1]["id"])


@pytest.mark.parametrize(
    ("query", "place"),
    [
        ("limit=0", "limit"),
        ("limit=101", "limit"),
        ("limit=x", "limit"),
        ("limit=²", "limit"),
        ("limit=", "limit"),
        ("order=up", "order"),
        ("after=msg_nobodys", "after"),
    ],
)
async def test_a_list_that_cannot_be_is_refused(query: str, place: str) -> None:
    async with site() as here:
        made = await here.make()
        reply = await here.gateway.get(f"/v1/responses/{made.id}/input_items?{query}")
        assert (reply.status, reply.code, reply.error["param"]) == (400, "invalid_request", place)
        assert reply.error["request_id"] == reply.headers["x-request-id"]


async def test_items_are_referred_to_by_their_ids() -> None:
    async with site() as here:
        first = await here.make("one")
        reply = first.output[0].id
        assert reply is not None
        [asked] = [item async for item in here.client.responses.input_items.list(first.id)]
        assert asked.id is not None
        second = await here.client.responses.create(
            model="m",
            input=[
                {"type": "item_reference", "id": asked.id},
                {"id": reply},
                {"role": "user", "content": "two"},
            ],
        )
        assert here.messages() == [*FIRST, ("user", "two")]
        listed = [item.id async for item in here.client.responses.input_items.list(second.id, order="asc")]
        assert listed[:2] == [asked.id, reply]
        unknown = here.client.responses.create(model="m", input=[{"type": "item_reference", "id": "msg_nobodys"}])
        status, code, place = await refusal(unknown)
        assert (status, code) == (400, "invalid_request")
        assert place is not None
        assert place.startswith("input[0]")


async def test_what_is_deleted_is_gone_and_what_went_on_from_it_ends() -> None:
    async with site() as here:
        first = await here.make("one")
        second = await here.make("two", previous_response_id=first.id)
        async with here.gateway.request("DELETE", f"/v1/responses/{first.id}") as answer:
            assert await answer.json() == {"id": first.id, "object": "response", "deleted": True}
        responses = here.client.responses
        for asking in (
            responses.retrieve(first.id),
            responses.delete(first.id),
            responses.cancel(first.id),
            responses.input_items.list(first.id),
        ):
            assert await refusal(asking) == NOT_FOUND
        for previous in (first.id, second.id):
            assert await refusal(here.make("x", previous_response_id=previous)) == NO_PREVIOUS
        assert (await responses.retrieve(second.id)) == second
        assert len(here.engine.requests) == 2


async def test_what_is_not_to_be_stored_is_not() -> None:
    async with site() as here:
        made = await here.make(store=False)
        assert made.to_dict()["store"] is False
        assert await refusal(here.client.responses.retrieve(made.id)) == NOT_FOUND
        assert await refusal(here.make(previous_response_id=made.id)) == NO_PREVIOUS
        kept = await here.make()
        again = await here.make("two", previous_response_id=kept.id, store=False)
        assert here.messages()[-3:] == [("user", "Hi"), ("assistant", TEXT), ("user", "two")]
        assert await refusal(here.client.responses.retrieve(again.id)) == NOT_FOUND


async def test_a_gateway_that_stores_nothing_says_so(tmp_path: Path) -> None:
    folder = tmp_path / "state"
    async with site(responses_retention_h=0, state=folder) as here:
        made = await here.make()
        assert made.to_dict()["store"] is False
        responses = here.client.responses
        for asking in (
            responses.retrieve(made.id),
            responses.delete(made.id),
            responses.cancel(made.id),
            responses.input_items.list(made.id),
        ):
            assert await refusal(asking) == NOT_FOUND
        assert await refusal(here.make(previous_response_id=made.id)) == NO_PREVIOUS
        assert await refusal(here.make(background=True)) == (400, "invalid_request", "background")
        assert "stored" not in await here.gateway.metrics()
    assert not folder.exists()


async def test_tenants_know_nothing_of_each_other() -> None:
    keys = (key("a"), key("a2", tenant="a"), key("b"))
    async with site(keys=keys) as here:
        made = await here.make("one")
        mine, others = here.as_key("a2"), here.as_key("b")
        assert await mine.responses.retrieve(made.id) == made
        await mine.responses.create(model="m", input="two", previous_response_id=made.id)
        assert here.messages()[:2] == FIRST

        async def retries(response_id: str) -> list[Any]:
            responses = others.responses
            item: ResponseInputParam = [{"type": "item_reference", "id": made.output[0].id or ""}]
            said = []
            for asking in (
                responses.retrieve(response_id),
                responses.input_items.list(response_id),
                responses.cancel(response_id),
                responses.delete(response_id),
                responses.create(model="m", input="x", previous_response_id=response_id),
                responses.create(model="m", input=item),
            ):
                with pytest.raises(openai.APIStatusError) as caught:
                    await asking
                said.append((caught.value.status_code, re.sub(r"req-[\w-]+", "", caught.value.message)))
            return said

        known, unknown = await retries(made.id), await retries("resp_" + "0" * 48)
        assert [(status, said.replace(made.id, "resp_" + "0" * 48)) for status, said in known] == unknown
        assert await here.client.responses.retrieve(made.id) == made


async def test_a_key_sees_responses_of_its_models_alone() -> None:
    keys = (key("a"), key("n", tenant="a", models=("n",)))
    async with engines(1) as (other,), site(route("n", [other.url]), keys=keys) as here:
        made = await here.make("one")
        limited = here.as_key("n")
        assert await refusal(limited.responses.retrieve(made.id)) == NOT_FOUND
        assert await refusal(limited.responses.delete(made.id)) == NOT_FOUND
        assert await refusal(limited.responses.input_items.list(made.id)) == NOT_FOUND
        item: ResponseInputParam = [{"type": "item_reference", "id": made.output[0].id or ""}]
        assert await refusal(limited.responses.create(model="n", input=item)) == (400, "invalid_request", "input[0].id")
        assert (await here.client.responses.create(model="n", input=item)).status == "completed"
        asking = limited.responses.create(model="n", input="x", previous_response_id=made.id)
        assert await refusal(asking) == NO_PREVIOUS
        own = await limited.responses.create(model="n", input="one")
        assert await here.client.responses.retrieve(own.id) == own
        # Nobody knows the model any more, so its name counts.
        await here.gateway.publish(keys=keys)
        assert await limited.responses.retrieve(own.id) == own
        assert await refusal(limited.responses.retrieve(made.id)) == NOT_FOUND
        assert await here.client.responses.retrieve(made.id) == made
