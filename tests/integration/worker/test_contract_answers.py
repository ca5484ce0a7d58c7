"""What every engine of the worker answers: its text, its end, its counts, how they are steered, and what it refuses.

One worker of each engine serves the whole file.
"""

from __future__ import annotations

import json
from typing import Any

import openai
import pytest

from tests.support.scripted_models import CHAT, USER, choice, joined, post, streamed, tool
from tests.support.worker_engines import Fleet, WorkerEngine, each_engine
from tests.support.worker_process import Worker
from worker.clockwork import SENTENCE

pytestmark = pytest.mark.engines

COMPLETIONS = "/v1/completions"
CUT = SENTENCE.partition(" it ")[0]
"""Its first `CUT_TOKENS` tokens."""
CUT_TOKENS = 12


@pytest.fixture
def worker(fleet: Fleet, engine: WorkerEngine) -> Worker:
    return fleet.plain(engine)


def completes(engine: WorkerEngine) -> bool:
    return "completions" in engine.apis


def ours(engine: WorkerEngine) -> bool:
    return engine.chats and not engine.own_surface


@each_engine(lambda engine: engine.chats)
def test_exact_text_and_counts_through_the_openai_sdk(worker: Worker, engine: WorkerEngine) -> None:
    client: Any = worker.openai()
    assert [each.id for each in client.models.list()] == ["demo"]
    prompts, created = worker.figure("prompt_tokens_total"), worker.figure("tokens_predicted_total")
    for content in ("hello", "hello", [{"type": "text", "text": "hello"}]):  # the second time from the cache
        chat = client.chat.completions.create(model="any", messages=[{"role": "user", "content": content}])
        assert (chat.choices[0].message.content, chat.choices[0].finish_reason) == (SENTENCE, "stop")
        expected = (engine.prompt_tokens, engine.completion_tokens)
        assert (chat.usage.prompt_tokens, chat.usage.completion_tokens) == expected
        assert engine.own_surface or chat.model == "demo"
    assert worker.figure("tokens_predicted_total") - created == 3 * engine.completion_tokens
    if not engine.own_surface:  # llama-server counts those that it did not have
        assert worker.figure("prompt_tokens_total") - prompts == 3 * engine.prompt_tokens


@each_engine(lambda engine: engine.chats)
def test_a_stream_holds_the_same_text_and_usage_where_it_was_asked_for(worker: Worker, engine: WorkerEngine) -> None:
    create: Any = worker.openai().chat.completions.create
    events = [*create(model="demo", messages=USER, stream=True, stream_options={"include_usage": True})]
    texts = [event.choices[0].delta.content for event in events if event.choices and event.choices[0].delta.content]
    assert "".join(texts) == SENTENCE
    tokens = engine.completion_tokens - (engine.name != "stub")  # the others' last token is the end, without a text
    assert len(texts) == tokens, "one event for each token"
    assert events[0].choices[0].delta.role == "assistant"
    assert events[-2].choices[0].finish_reason == "stop"
    assert events[-1].choices == []
    expected = (engine.prompt_tokens, engine.completion_tokens)
    assert (events[-1].usage.prompt_tokens, events[-1].usage.completion_tokens) == expected
    assert [event.usage for event in events[:-1]] == [None] * (len(events) - 1)
    assert len({event.id for event in events}) == 1
    plain = [*create(model="demo", messages=USER, stream=True)]
    assert "".join(event.choices[0].delta.content or "" for event in plain) == SENTENCE
    assert all(event.usage is None for event in plain)


@each_engine(completes)
def test_a_text_is_completed_as_it_is(worker: Worker, engine: WorkerEngine) -> None:
    create: Any = worker.openai().completions.create
    prompt = "<|assistant|>"
    tokens = post(worker, "/tokenize", content=prompt)["tokens"]
    assert len(tokens) == 1
    for sent in (prompt, [prompt], tokens):
        whole = create(model="m", prompt=sent, stream=False)
        assert (whole.choices[0].text, whole.choices[0].finish_reason) == (SENTENCE, "stop")
        assert (whole.usage.prompt_tokens, whole.usage.completion_tokens) == (1, engine.completion_tokens)
    cut = create(model="m", prompt=prompt, max_tokens=3)
    assert (cut.choices[0].text, cut.choices[0].finish_reason) == ("The quick brown", "length")
    parts = [*create(model="m", prompt=prompt, max_tokens=3, stream=True)]
    assert "".join(part.choices[0].text for part in parts) == "The quick brown"
    assert parts[-1].choices[0].finish_reason == "length"
    assert engine.own_surface or all(part.usage is None for part in parts)


@each_engine(lambda engine: engine.chats)
def test_an_answer_ends_at_the_token_limit(worker: Worker, engine: WorkerEngine) -> None:
    whole = engine.completion_tokens
    for limit, text in ((1, "The"), (3, "The quick brown"), (whole - 1, None), (whole, SENTENCE)):
        answer = post(worker, max_tokens=limit)
        ended = answer["choices"][0]
        assert ended["finish_reason"] == ("stop" if limit == whole else "length"), limit
        assert ended["message"]["content"] == (text or SENTENCE.removesuffix("" if whole == 16 else " sleeps!"))
        assert answer["usage"]["completion_tokens"] == limit


@each_engine(ours)
def test_a_stop_string_ends_the_answer_and_the_work(worker: Worker, engine: WorkerEngine) -> None:
    for path in (CHAT, COMPLETIONS) if completes(engine) else (CHAT,):
        sent: dict[str, Any] = {"prompt": "<|assistant|>"} if path == COMPLETIONS else {}
        before = worker.figure("tokens_predicted_total")
        answer = post(worker, path, **sent, stop=["never", "k brown f"])
        ended = answer["choices"][0]
        text = ended["text"] if path == COMPLETIONS else ended["message"]["content"]
        assert (text, ended["finish_reason"], ended["stop_reason"]) == ("The quic", "stop", "k brown f")
        assert answer["usage"]["completion_tokens"] == worker.figure("tokens_predicted_total") - before == 4
        # Of one that is not all there, what was held back is told in the end.
        [whole] = post(worker, path, **sent, stop="sleeps!!")["choices"]
        assert (whole["text"] if path == COMPLETIONS else whole["message"]["content"]) == SENTENCE
        assert (whole["finish_reason"], "stop_reason" in whole) == ("stop", False)
    chunks = streamed(worker, stop="k brown f")
    assert joined(chunks, "content") == "The quic"
    assert (chunks[-1]["finish_reason"], chunks[-1]["stop_reason"]) == ("stop", "k brown f")
    assert all("stop_reason" not in each for each in chunks[:-1])
    assert choice(worker)["message"]["content"] == SENTENCE, "the next is whole"


@each_engine(lambda engine: engine.samples and not engine.own_surface)
def test_sampling_fields_reach_the_engine(worker: Worker, engine: WorkerEngine) -> None:
    def complete(**fields: Any) -> str:
        wild = {"temperature": 1000, "top_p": 1, "max_tokens": CUT_TOKENS, **engine.wild}
        text: str = choice(worker, **{**wild, **fields})["message"]["content"]
        return text

    assert complete(top_k=1) == complete(top_p=0.001) == complete(temperature=0) == CUT
    assert len({complete() for _ in range(3)}) == 3, "without a seed every answer has its own"
    if "seed" in engine.samples:
        assert complete(seed=1) == complete(seed=1) != complete(seed=2)
    if "min_p" in engine.samples:  # where the next word is four times as likely as any other token
        assert complete(temperature=30, min_p=0.9) == CUT != complete(temperature=30)
    long = {"max_tokens": 60, "seed": 1}
    for field in ("repeat_penalty", "presence_penalty"):
        if {field, "seed"} <= engine.samples:
            assert complete(**long, **{field: 1e6}) != complete(**long), field


@each_engine(lambda engine: engine.context is not None and engine.chats)
def test_the_context_bounds_prompt_and_answer(worker: Worker, engine: WorkerEngine) -> None:
    context = json.loads(worker.request("GET", "/v1/models")[1])["data"][0]["meta"]["n_ctx"]
    assert context == engine.context
    for stream in (False, True):
        long = {"messages": [{"role": "user", "content": "x" * context}], "stream": stream}
        status, body = worker.request("POST", CHAT, long)
        assert status == 400
        if not engine.own_surface:
            error = json.loads(body)["error"]
            place = "messages" if engine.name == "litert_lm" else None
            assert (error["code"], error["param"]) == ("context_length_exceeded", place)
            bound = f"The prompt has {context + 3} tokens, more than fit the context of {context}."
            assert engine.name == "litert_lm" or error["message"] == bound
    # All but eight tokens: `<|user|>`, `<|end|>`, `<|assistant|>`, and five words.
    answer = post(worker, messages=[{"role": "user", "content": "x" * (context - 8)}])
    assert (answer["choices"][0]["finish_reason"], answer["usage"]["total_tokens"]) == ("length", context)
    assert answer["choices"][0]["message"]["content"] == "The quick brown fox jumps"


@each_engine(lambda engine: "tokens" in engine.apis)
def test_texts_are_tokens_and_back_and_conversations_are_counted(worker: Worker, engine: WorkerEngine) -> None:
    text = "<|user|>The quick Grüße 😀<|end|>"
    tokens = post(worker, "/tokenize", content=text)["tokens"]
    assert post(worker, "/detokenize", tokens=tokens) == {"content": text}
    before = worker.figure("prompt_tokens_total")
    counted = post(worker, f"{CHAT}/input_tokens")
    assert counted == {"input_tokens": engine.prompt_tokens, "object": "response.input_tokens"}
    assert worker.figure("prompt_tokens_total") == before, "counting is no work"
    prompt = post(worker, "/apply-template")["prompt"]
    assert len(post(worker, "/tokenize", content=prompt)["tokens"]) == engine.prompt_tokens
    if engine.name != "stub":  # whose words are never special
        assert prompt == "<|user|>hello<|end|><|assistant|>"
        assert post(worker, "/tokenize", content="<|user|><|end|>")["tokens"] == [tokens[0], tokens[-1]]
        as_text = post(worker, "/tokenize", content="<|user|>", parse_special=False)["tokens"]
        assert len(as_text) == len("<|user|>")


@each_engine(lambda engine: "embeddings" in engine.apis)
def test_embeddings_as_the_sdk_asks_for_them_and_as_numbers(worker: Worker, engine: WorkerEngine) -> None:
    client = worker.openai()
    before = worker.figure("prompt_tokens_total")
    answer = client.embeddings.create(model="any", input=["hello", "world", "hello"])
    one, other, again = (item.embedding for item in answer.data)
    assert one == again != other
    assert sum(number**2 for number in one) == pytest.approx(1)
    assert ([each.index for each in answer.data], answer.model) == ([0, 1, 2], "demo")
    assert answer.usage.prompt_tokens == answer.usage.total_tokens == worker.figure("prompt_tokens_total") - before > 0
    plain = client.embeddings.create(model="any", input="hello", encoding_format="float").data[0].embedding
    assert plain == pytest.approx(one, abs=1e-6)
    if "tokens" in engine.apis:
        texts = ("hello", "world")
        tokens = [post(worker, "/tokenize", content=text)["tokens"] for text in texts]
        by_tokens = client.embeddings.create(model="any", input=tokens)
        assert [each.embedding for each in by_tokens.data] == [one, other]
        assert client.embeddings.create(model="any", input=tokens[0]).data[0].embedding == one
    for unknown in ([10**9], [[-1]]):
        with pytest.raises(openai.BadRequestError) as refused:
            client.embeddings.create(model="any", input=unknown)
        assert "There is no token" in refused.value.message
        assert refused.value.param == "input"
    with pytest.raises(openai.BadRequestError) as raised:
        client.embeddings.create(model="any", input="hello", dimensions=8)
    assert (raised.value.code, raised.value.param) == ("dimensions_unsupported", "dimensions")


HF = ("ct2", "exllamav3")
OURS = ("stub", *HF, "llama_cpp", "litert_lm")
FREE = ("stub", *HF, "litert_lm")
"""Engines that hold an answer to nothing."""
UNSTRUCTURED = "structured_output_unsupported"
YES = 'root ::= "yes"'
TOOLS = [tool("plan", {"type": "object"})]
IMAGE = [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "data:image/png;base64,AA=="}}]}]
INVALID = "invalid_request"
PROMPT = {"prompt": "a"}
JSON_ANSWER: dict[str, Any] = {"response_format": {"type": "json_object"}}
PLACE = "messages[0].content[0].type"
REFUSED: list[tuple[str, dict[str, Any], str, str | None, tuple[str, ...]]] = [
    (CHAT, {"messages": []}, INVALID, "messages", OURS),
    (CHAT, {"n": 2}, INVALID, "n", OURS),
    (CHAT, {"logprobs": True}, INVALID, "logprobs", OURS),
    (CHAT, {"tools": TOOLS}, "tools_unsupported", "tools", OURS),
    (*(CHAT, {"response_format": {"type": "json_object"}}), *(UNSTRUCTURED, "response_format", FREE)),
    (CHAT, {"grammar": YES}, UNSTRUCTURED, "grammar", FREE),
    (CHAT, {"json_schema": {}}, UNSTRUCTURED, "json_schema", FREE),
    (CHAT, {"ignore_eos": True}, INVALID, "ignore_eos", FREE),
    (CHAT, {"ignore_eos": True, "grammar": YES}, INVALID, "ignore_eos", ("llama_cpp",)),
    (CHAT, {"grammar": YES, "json_schema": {}}, INVALID, "grammar", OURS),
    (CHAT, {"grammar": "root ::= broken"}, INVALID, "grammar", ("llama_cpp",)),
    (CHAT, {"guided_json": {}}, INVALID, "guided_json", OURS),
    (CHAT, {"structured_outputs": {"regex": "a"}}, INVALID, "structured_outputs", OURS),
    (COMPLETIONS, PROMPT | {"grammar": YES}, UNSTRUCTURED, "grammar", ("stub", *HF)),
    (COMPLETIONS, PROMPT | {"ignore_eos": True}, INVALID, "ignore_eos", ("stub", *HF)),
    (COMPLETIONS, PROMPT | JSON_ANSWER, UNSTRUCTURED, "response_format", ("stub", *HF)),
    (COMPLETIONS, PROMPT | {"grammar": "root ::= broken"}, INVALID, "grammar", ("llama_cpp",)),
    (CHAT, {"chat_template_kwargs": {"messages": []}}, INVALID, "chat_template_kwargs.messages", OURS[1:]),
    (CHAT, {"messages": IMAGE}, INVALID, PLACE, OURS[1:]),
    (CHAT, {"messages": [*USER, {"role": "assistant", "content": "a"}]}, INVALID, "messages[1].role", ("litert_lm",)),
    (CHAT, {"mirostat_mode": 2}, INVALID, "mirostat_mode", (*HF, "litert_lm")),
    (CHAT, {"typical_p": 0.5}, INVALID, "typical_p", (*HF, "litert_lm")),
    (CHAT, {"min_p": 0.1}, INVALID, "min_p", ("ct2", "litert_lm")),
    (CHAT, {"logit_bias": {"1": 2}}, INVALID, "logit_bias", ("ct2", "litert_lm")),
    (CHAT, {"logit_bias": {"999999": 1}}, INVALID, "logit_bias", ("exllamav3", "llama_cpp")),
    (CHAT, {"min_p": 2}, INVALID, "min_p", ("exllamav3",)),
    (CHAT, {"min_p": -0.1}, INVALID, "min_p", ("exllamav3",)),
    (CHAT, {"repeat_penalty": 0}, INVALID, "repeat_penalty", HF),
    (CHAT, {"repeat_penalty": -1}, INVALID, "repeat_penalty", HF),
    (CHAT, {"repeat_penalty": 0.5}, INVALID, "repeat_penalty", ("litert_lm",)),
    (CHAT, {"temperature": 1, "seed": 1}, INVALID, "seed", ("ct2",)),
    (COMPLETIONS, {"prompt": ""}, INVALID, "prompt", (*HF, "llama_cpp")),
    (COMPLETIONS, {"prompt": []}, INVALID, "prompt", (*HF, "llama_cpp")),
    (COMPLETIONS, {"prompt": [-1]}, INVALID, "prompt", (*HF, "llama_cpp")),
    (COMPLETIONS, {"prompt": [10**6]}, INVALID, "prompt", (*HF, "llama_cpp")),
    (COMPLETIONS, {"prompt": "x" * 5000}, "context_length_exceeded", None, (*HF, "llama_cpp")),
    ("/tokenize", {}, INVALID, "content", ("stub", *HF, "llama_cpp")),
    ("/detokenize", {"tokens": [10**6]}, INVALID, "tokens", ("stub", *HF, "llama_cpp")),
    ("/apply-template", {"messages": []}, INVALID, "messages", ("stub", *HF, "llama_cpp")),
    ("/v1/embeddings", {"input": 5}, INVALID, "input", ("stub", "onnx")),
]


@each_engine(lambda engine: not engine.own_surface)
def test_what_cannot_be_served_is_refused_by_its_place(worker: Worker, engine: WorkerEngine) -> None:
    for path, fields, code, param, names in REFUSED:
        if engine.name not in names:
            continue
        sent = {"messages": USER, **fields} if path == CHAT else fields
        for stream in (False, True) if path in (CHAT, COMPLETIONS) else (False,):
            status, body = worker.request("POST", path, {**sent, "stream": stream})
            output = json.loads(body)["error"]
            assert (status, output["code"], output["param"]) == (400, code, param), (path, fields)
            assert output["message"]


ROUTES: dict[str, list[str]] = {
    "chat": [CHAT],
    "completions": [COMPLETIONS],
    "embeddings": ["/v1/embeddings"],
    "tokens": ["/tokenize", "/detokenize"],
    "prompts": ["/apply-template", f"{CHAT}/input_tokens"],
}


@each_engine(lambda engine: not engine.own_surface)
def test_what_an_engine_does_not_offer_is_said_to_be_so(worker: Worker, engine: WorkerEngine) -> None:
    for api, paths in ROUTES.items():
        for path in paths:
            status, body = worker.request("POST", path, {"messages": USER, "prompt": "a", "input": "a"})
            assert (status == 501) == (api not in engine.apis), path
            if status == 501:
                error = json.loads(body)["error"]
                offered = ", ".join(sorted(engine.apis))
                assert error["code"] == "not_supported"
                assert error["message"] == f"This engine does not offer {api}; it offers {offered}."


@each_engine(lambda engine: not engine.own_surface)
def test_errors_have_openai_s_form(worker: Worker, engine: WorkerEngine) -> None:
    path, _ = engine.request
    field = "messages" if engine.chats else "input"
    sent = {
        ("POST", path, b"{bad"): (400, "invalid_json", None),
        ("POST", path, b"{}"): (400, "invalid_request", field),
        ("GET", "/v1/nothing", None): (404, "unknown_route", None),
        ("GET", path, None): (405, "method_not_allowed", None),
    }
    for request, (status, code, param) in sent.items():
        answered, body = worker.request(*request)
        error = json.loads(body)["error"]
        assert (answered, error["code"], error["param"]) == (status, code, param)
        assert error["message"]
    if engine.chats:
        with pytest.raises(openai.BadRequestError, match="`messages`"):
            worker.openai().chat.completions.create(model="m", messages=[])


@each_engine()
def test_everything_but_health_needs_the_token(worker: Worker, engine: WorkerEngine) -> None:
    path, body = engine.request
    for method, where, sent in (
        *(("GET", "/metrics", None), ("GET", "/v1/models", None), ("GET", "/nothing", None)),
        *(("POST", path, body), ("POST", "/tokenize", {"content": "a"}), ("POST", "/apply-template", body)),
    ):
        status, text = worker.request(method, where, sent, token="wrong")
        assert status == 401, where
        assert engine.own_surface or json.loads(text)["error"]["code"] == "invalid_api_key"
        assert worker.request(method, where, sent)[0] in (200, 404, 501)
    assert worker.request("GET", "/health", token="wrong")[0] == 200
    if engine.own_surface:  # its slots tell prompts
        assert [worker.request("GET", "/slots", token=token)[0] for token in ("wrong", worker.token)] == [401, 200]
    with pytest.raises(openai.AuthenticationError):
        openai.OpenAI(base_url=f"http://127.0.0.1:{worker.port}/v1", api_key="wrong").models.list()
