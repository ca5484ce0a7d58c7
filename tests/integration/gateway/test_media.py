"""Images and sounds through a whole gateway, to a real llama-server with a projector: exact answers in every API."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from typing import Any

import anthropic
import openai
import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from controller.engines.llama_server import LlamaServer, LlamaServerDefinition
from tests.fakes.fake_controller import route
from tests.fakes.gateway_harness import GatewayHarness, gateway_harness
from tests.support.installed_engines import Kind, started
from tests.support.seeing_model import (
    BRIGHT,
    DARK,
    encode,
    make_image,
    make_projector,
    make_seeing_model,
    make_sound,
)
from tests.support.worker_process import Worker
from worker.clockwork import SENTENCE

pytestmark = [pytest.mark.engines, pytest.mark.embedded]

TOKEN = "replica-token"
CONTEXT = 4096
DEFINITIONS: dict[str, dict[str, Any]] = {
    "seeing": {"llama_server_mmproj": "p.gguf"},
    "blind": {},
    "hearing": {"llama_server_mmproj": "p.gguf", "modalities": ["text", "image", "audio"]},
    "fetching": {"llama_server_mmproj": "p.gguf", "media_urls": True},
}
LIGHT, NIGHT = make_image(230), make_image(20)
SEEN: list[tuple[tuple[bytes, ...], str]] = [
    ((), SENTENCE),
    ((LIGHT,), BRIGHT),
    ((NIGHT,), DARK),
    ((NIGHT, NIGHT), DARK),
    # One for the other: neither is lost.
    ((NIGHT, LIGHT), SENTENCE),
    ((NIGHT, LIGHT, NIGHT), DARK),
    ((LIGHT, NIGHT, LIGHT), BRIGHT),
]
QUESTION = "Is it day?"
CHAT = "/v1/chat/completions"


@pytest.fixture(scope="module")
def engine(kind: Kind, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Worker]:
    """A llama-server that sees and hears: in a worker's process, and the program itself."""
    folder = tmp_path_factory.mktemp("engine")
    make_seeing_model(folder / "m.gguf")
    make_projector(folder / "p.gguf", hears=True)
    flags = ("--mmproj", str(folder / "p.gguf"))
    with started(kind, folder, "m", folder / "m.gguf", *flags, token=TOKEN) as made:
        yield made.ready()


@pytest.fixture
async def gateway(engine: Worker) -> AsyncIterator[GatewayHarness]:
    """A gateway that knows it under each name of `DEFINITIONS`, with what is declared there."""
    models = []
    for name, more in DEFINITIONS.items():
        definition = LlamaServerDefinition.model_validate({"model_path": "m.gguf", **more})
        made = route(
            name,
            [f"http://127.0.0.1:{engine.port}"],
            backend="llama_server",
            token=TOKEN,
            served_name="inner-m",
            apis=LlamaServer().list_apis(definition),
            capabilities=LlamaServer().derive_capabilities(definition),
            context_length=CONTEXT,
            longest_token=6,
            target_inflight=4,
        )
        models.append(made)
    async with gateway_harness() as built:
        await built.publish(*models)
        yield built


def chat_content(*images: bytes) -> list[Any]:
    parts = [{"type": "image_url", "image_url": {"url": data_url(image)}} for image in images]
    return [*parts, {"type": "text", "text": QUESTION}]


def response_content(*images: bytes) -> list[Any]:
    parts = [{"type": "input_image", "detail": "auto", "image_url": data_url(image)} for image in images]
    return [*parts, {"type": "input_text", "text": QUESTION}]


def message_content(*images: bytes) -> list[Any]:
    sources = [{"type": "base64", "media_type": "image/png", "data": encode(image)} for image in images]
    return [*({"type": "image", "source": source} for source in sources), {"type": "text", "text": QUESTION}]


def data_url(image: bytes) -> str:
    return f"data:image/png;base64,{encode(image)}"


def sdk(gateway: GatewayHarness) -> openai.AsyncOpenAI:
    return openai.AsyncOpenAI(base_url=gateway.url + "/v1", api_key="any", max_retries=0)


def user(content: list[Any]) -> list[Any]:
    return [{"role": "user", "content": content}]


@pytest.mark.parametrize(("images", "said"), SEEN)
async def test_images_of_a_chat_are_seen(gateway: GatewayHarness, images: tuple[bytes, ...], said: str) -> None:
    async with sdk(gateway) as client:
        messages = user(chat_content(*images))
        response = await client.chat.completions.create(model="seeing", messages=messages)
        assert response.choices[0].message.content == said
        stream = await client.chat.completions.create(model="seeing", messages=messages, stream=True)
        assert "".join([chunk.choices[0].delta.content or "" async for chunk in stream if chunk.choices]) == said


@pytest.mark.parametrize(("images", "said"), SEEN)
async def test_images_of_a_response_are_seen(gateway: GatewayHarness, images: tuple[bytes, ...], said: str) -> None:
    async with sdk(gateway) as client:
        asked = user(response_content(*images))
        response = await client.responses.create(model="seeing", input=asked)
        assert response.output_text == said
        stream = await client.responses.create(model="seeing", input=asked, stream=True)
        events = [event async for event in stream]
        assert "".join(event.delta for event in events if event.type == "response.output_text.delta") == said


@pytest.mark.parametrize(("images", "said"), SEEN)
async def test_images_of_a_message_are_seen(gateway: GatewayHarness, images: tuple[bytes, ...], said: str) -> None:
    async with anthropic.AsyncAnthropic(base_url=gateway.url, api_key="any", max_retries=0) as client:
        body: dict[str, Any] = {"model": "seeing", "max_tokens": 64, "messages": user(message_content(*images))}
        response = await client.messages.create(**body)
        assert [block.text for block in response.content if block.type == "text"] == [said]
        async with client.messages.stream(**body) as stream:
            assert "".join([text async for text in stream.text_stream]) == said


async def test_an_earlier_image_stays_in_the_conversation(gateway: GatewayHarness) -> None:
    async with sdk(gateway) as client:
        first = await client.responses.create(model="seeing", input=user(response_content(NIGHT)))
        assert first.output_text == DARK
        later: dict[str, Any] = {"model": "seeing", "previous_response_id": first.id}
        assert (await client.responses.create(input="And now?", **later)).output_text == DARK
        assert (await client.responses.create(input=user(response_content(LIGHT)), **later)).output_text == SENTENCE


async def test_what_is_counted_is_what_the_engine_makes_of_an_image_and_not_its_size(gateway: GatewayHarness) -> None:
    # As text, these would be more tokens than the context has.
    large = make_image(20, 4000, 4000)
    assert len(encode(large)) > 6 * CONTEXT
    prompt_tokens = {}
    for name, images in {"none": (), "one": (NIGHT,), "two": (NIGHT, NIGHT), "large": (large,)}.items():
        messages = user(chat_content(*images))
        reply = await gateway.post("/v1/chat/completions", model="seeing", messages=messages)
        prompt_tokens[name] = reply.success["usage"]["prompt_tokens"]
        counted = await gateway.post("/v1/chat/completions/input_tokens", model="seeing", messages=messages)
        assert counted.body["input_tokens"] == prompt_tokens[name]
    each = prompt_tokens["one"] - prompt_tokens["none"]
    assert 0 < each < 100
    assert prompt_tokens["two"] == prompt_tokens["one"] + each
    assert prompt_tokens["large"] == prompt_tokens["one"]


@pytest.fixture
async def elsewhere() -> AsyncIterator[tuple[str, list[str]]]:
    """Where a dark image is served, and the paths that were asked for."""
    asked: list[str] = []

    async def serve(request: web.Request) -> web.Response:
        asked.append(request.path)
        return web.Response(body=NIGHT, content_type="image/png")

    app = web.Application()
    app.router.add_get("/{name}", serve)
    async with TestServer(app) as server:
        yield str(server.make_url("/")).rstrip("/"), asked


async def test_an_address_is_fetched_by_a_model_that_declares_it_and_by_no_other(
    gateway: GatewayHarness, elsewhere: tuple[str, list[str]]
) -> None:
    url, asked = elsewhere
    chat = {"messages": user([{"type": "image_url", "image_url": {"url": f"{url}/chat"}}])}
    image = {"type": "image", "source": {"type": "url", "url": f"{url}/message"}}
    video = {"type": "video_url", "video_url": {"url": f"{url}/video"}}
    sound = {"type": "input_audio", "input_audio": {"data": f"{url}/sound", "format": "wav"}}
    requests: list[tuple[str, dict[str, Any], str]] = [
        *((path, chat, "messages") for path in (CHAT, f"{CHAT}/input_tokens", "/apply-template")),
        ("/v1/responses", {"input": user([{"type": "input_image", "image_url": f"{url}/response"}])}, "input"),
        ("/v1/messages", {"max_tokens": 64, "messages": user([image])}, "messages"),
        (CHAT, {"messages": user([video])}, "messages"),
        (CHAT, {"messages": user([sound])}, "messages"),
    ]
    for path, body, place in requests:
        reply = await gateway.post(path, model="hearing", **body)
        assert reply.refusal == (400, "invalid_request"), path
        assert reply.error["param"] == f"{place}[0].content[0]"
        assert reply.error["message"] == (
            "The model 'hearing' fetches no addresses: send the data itself, as base64 or as a `data:` URL."
        )
    assert asked == []
    fetched = await gateway.post("/v1/chat/completions", model="fetching", **chat)
    assert fetched.body["choices"][0]["message"]["content"] == DARK
    assert asked == ["/chat"]


CUT = LIGHT[: len(LIGHT) // 2]
BROKEN = {
    "cut": CUT,
    "head": LIGHT[:8],
    "text": b"no image",
    "empty": b"",
    "damaged": LIGHT.replace(b"IDAT", b"IDAT\xff"),
    "too large": LIGHT[:16] + b"\x7f\xff\xff\xff" * 2 + LIGHT[24:],
    "no pixels": LIGHT[:16] + bytes(8) + LIGHT[24:],
}


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("name", BROKEN)
async def test_a_broken_image_is_the_client_s_error_in_every_api(
    gateway: GatewayHarness, name: str, stream: bool
) -> None:
    image = BROKEN[name]
    for path, body in (
        ("/v1/chat/completions", {"messages": user(chat_content(image))}),
        ("/v1/responses", {"input": user(response_content(image))}),
        ("/v1/messages", {"max_tokens": 9, "messages": user(message_content(image))}),
    ):
        reply = await gateway.post(path, model="seeing", stream=stream, **body)
        told = (reply.status, reply.code, reply.error["type"], reply.error["message"])
        assert told == (400, "engine_error", "invalid_request_error", "Failed to load image or audio file"), path
    # The engine goes on.
    assert (await gateway.chat("seeing")).body["choices"][0]["message"]["content"] == SENTENCE


SOUNDS = [(make_sound(30_000), BRIGHT), (make_sound(300), BRIGHT), (make_sound(0), DARK)]


@pytest.mark.parametrize(("sound", "said"), SOUNDS, ids=["noise", "soft noise", "silence"])
async def test_a_sound_is_heard(gateway: GatewayHarness, sound: bytes, said: str) -> None:
    part: Any = {"type": "input_audio", "input_audio": {"data": encode(sound), "format": "wav"}}
    async with sdk(gateway) as client:
        messages = user([part, {"type": "text", "text": QUESTION}])
        answer = await client.chat.completions.create(model="hearing", messages=messages)
        assert answer.choices[0].message.content == said
        stream = await client.chat.completions.create(model="hearing", messages=messages, stream=True)
        assert "".join([chunk.choices[0].delta.content or "" async for chunk in stream if chunk.choices]) == said
        response = await client.responses.create(
            model="hearing", input=user([part, {"type": "input_text", "text": QUESTION}])
        )
        assert response.output_text == said
        with pytest.raises(openai.BadRequestError) as refused:
            await client.chat.completions.create(model="seeing", messages=messages)
    assert (refused.value.code, refused.value.param) == ("modality_unsupported", "messages[0].content[0]")


async def test_what_is_heard_and_what_is_seen_go_together(gateway: GatewayHarness) -> None:
    noise = {"type": "input_audio", "input_audio": {"data": encode(make_sound(30_000)), "format": "wav"}}
    for images, said in (((), BRIGHT), ((NIGHT,), SENTENCE), ((NIGHT, NIGHT), DARK)):
        messages = user([noise, *chat_content(*images)])
        reply = await gateway.post("/v1/chat/completions", model="hearing", messages=messages)
        assert reply.body["choices"][0]["message"]["content"] == said
