"""llama-cpp-python: GPUs that its libraries tell of, and sessions: which are kept, how much of a prompt is cached.

The library is a fake; the real one is in tests/integration/worker/test_sessions.py.
"""

from __future__ import annotations

import ctypes
from types import SimpleNamespace
from typing import Any

import pytest

from worker.engines.llama_cpp import SessionStates, check_gpus
from worker.errors import LoadError

CPU, GPU, INTEGRATED, ACCELERATOR = 0, 1, 2, 3
"""`ggml_backend_dev_type` of ggml-backend.h."""
NOT_STARTED = "ggml_cuda_init: failed to initialize CUDA: no CUDA-capable device is detected"


def fake_llama_cpp(*devices: int, has_cuda: bool = True, offloads: bool | None = None) -> Any:
    """The part of the module `llama_cpp` that is asked; its devices are their types."""
    library = SimpleNamespace(
        ggml_backend_dev_count=lambda: len(devices),
        ggml_backend_dev_get=lambda number: number,
        ggml_backend_dev_type=lambda number: devices[number],
        ggml_backend_reg_by_name=lambda name: 1 if has_cuda and name == b"CUDA" else None,
    )
    can_offload = bool({GPU, INTEGRATED} & set(devices)) if offloads is None else offloads
    return SimpleNamespace(llama_cpp=SimpleNamespace(_lib=library), llama_supports_gpu_offload=lambda: can_offload)


def refusal(llama_cpp: Any, count: int, first_error: str = "") -> str:
    with pytest.raises(LoadError) as raised:
        check_gpus(llama_cpp, count, lambda: first_error)
    return str(raised.value)


def test_gpus_that_are_seen_are_enough() -> None:
    check_gpus(fake_llama_cpp(GPU, GPU, CPU), 2, lambda: "")
    check_gpus(fake_llama_cpp(INTEGRATED, CPU), 1, lambda: "")


def test_without_a_gpu_the_reason_is_said() -> None:
    none = "llama.cpp sees no GPU, and was given 1"
    assert refusal(fake_llama_cpp(CPU, has_cuda=False), 1) == f"llama-cpp-python: it was built without CUDA: {none}"
    assert refusal(fake_llama_cpp(CPU), 1, NOT_STARTED) == f"llama-cpp-python: {NOT_STARTED}: {none}"
    assert refusal(fake_llama_cpp(CPU), 1) == f"llama-cpp-python: CUDA did not start: {none}"
    # `llama_supports_gpu_offload` is true of each build that could ask another machine (RPC).
    assert none in refusal(fake_llama_cpp(CPU, ACCELERATOR, has_cuda=False, offloads=True), 1)


def test_fewer_gpus_than_were_given_are_too_few() -> None:
    error = "llama.cpp sees 1 of the 2 GPUs that it was given: look after the driver"
    assert refusal(fake_llama_cpp(GPU, CPU), 2) == error


def test_libraries_that_tell_no_devices_tell_whether_there_is_one() -> None:
    library = SimpleNamespace(_lib=SimpleNamespace())
    check_gpus(SimpleNamespace(llama_cpp=library, llama_supports_gpu_offload=lambda: True), 2, lambda: "")
    without = SimpleNamespace(llama_cpp=library, llama_supports_gpu_offload=lambda: False)
    assert "it was built without CUDA" in refusal(without, 2)


CONTEXT = 20


class FakeLlama:
    """A context, and the functions of the library that read and write it."""

    def __init__(self) -> None:
        self.input_ids: list[int] = [0] * CONTEXT
        self.n_tokens = 0
        self.has_memory = True
        self.restores = 0

    ctx = 0

    def n_ctx(self) -> int:
        return CONTEXT

    def reset(self) -> None:
        self.n_tokens = 0

    def eval(self, tokens: list[int]) -> None:
        self.input_ids[self.n_tokens : self.n_tokens + len(tokens)] = tokens
        self.n_tokens += len(tokens)

    def generate(self, prompt: list[int], answer: list[int]) -> None:
        """As the library: the beginning that the context has stays, and the last token is always computed."""
        held = self.input_ids[: self.n_tokens]
        shared = 0
        while shared < min(len(held), len(prompt) - 1) and held[shared] == prompt[shared]:
            shared += 1
        self.n_tokens = shared
        for tokens in (prompt[shared:], answer):
            self.eval(tokens)

    # The library

    def llama_state_seq_get_size(self, ctx: int, sequence: int) -> int:
        if not self.has_memory:
            raise MemoryError
        return self.n_tokens

    def llama_state_seq_get_data(self, ctx: int, data: Any, size: int, sequence: int) -> int:
        return size

    def llama_state_seq_set_data(self, ctx: int, data: Any, size: int, sequence: int) -> int:
        assert isinstance(data, ctypes.Array)
        self.restores += 1
        return size

    def llama_get_memory(self, ctx: int) -> int:
        return 0

    def llama_memory_clear(self, memory: int, data: bool) -> None:
        assert data


class Worker:
    """Answers each prompt with the token 99."""

    def __init__(self, capacity: int) -> None:
        self.llama = FakeLlama()
        self.states = SessionStates(self.llama, self.llama, capacity)

    def request(self, session_id: str | None, *prompt: int) -> int:
        """How many tokens of the prompt were in the cache."""
        tokens = list(prompt)
        self.states.enter(session_id, tokens)
        self.llama.generate(tokens, [99])
        return self.states.count_cached(tokens)


def test_without_room_for_sessions_the_context_is_as_the_last_request_left_it() -> None:
    worker = Worker(0)
    assert [worker.request("a", 1, 2), worker.request("b", 1, 2, 99, 3), worker.request("a", 7)] == [0, 3, 0]
    assert worker.llama.restores == 0


def test_a_session_finds_what_it_had_after_others() -> None:
    worker = Worker(4)
    assert worker.request("a", 1, 2) == 0
    assert [worker.request("b", 3, 4), worker.request(None, 5, 6)] == [0, 0]
    assert worker.request("a", 1, 2, 99, 7) == 3
    assert worker.request("a", 1, 2, 99, 7, 99, 8) == 5
    assert worker.llama.restores == 1, "what is in the context stays there"
    assert worker.request("b", 3, 4, 99, 7) == 3


def test_the_session_used_longest_ago_goes() -> None:
    worker = Worker(2)
    for name, token in (("a", 1), ("b", 2), ("c", 3)):
        worker.request(name, token, token)
    assert worker.request("b", 2, 2, 99, 5) == 3
    assert worker.request("a", 1, 1, 99, 5) == 0


def test_strangers_take_no_session_s_place() -> None:
    worker = Worker(1)
    worker.request("a", 1, 1)
    worker.request(None, 2, 2)
    assert worker.request("a", 1, 1, 99, 5) == 3
    worker.request("b", 3, 3)
    assert worker.request("a", 1, 1, 99, 5) == 0


def test_states_have_no_more_tokens_than_the_context() -> None:
    worker = Worker(4)
    worker.request("a", *[1] * 8)
    worker.request("b", *[2] * 10)
    worker.request("c", *[3] * 5)
    assert worker.request("b", *[2] * 10, 99, 5) == 11
    worker.request(None, 9)
    assert worker.request("a", *[1] * 8, 99, 5) == 0, "9 and 11 tokens fit, and 6 more do not"


def test_a_context_that_has_more_of_the_prompt_is_not_replaced() -> None:
    worker = Worker(4)
    worker.request("a", 1, 2)
    worker.request("b", 1, 2, 99, 3, 4)
    assert worker.request("a", 1, 2, 99, 3, 5) == 4
    assert worker.llama.restores == 0


@pytest.mark.parametrize("has_memory", [True, False])
def test_without_memory_for_a_state_its_session_is_dropped(has_memory: bool) -> None:
    worker = Worker(4)
    worker.request("a", 1, 2)
    worker.llama.has_memory = has_memory
    worker.request("b", 3, 4)
    assert worker.request("a", 1, 2, 99, 7) == (3 if has_memory else 0)
