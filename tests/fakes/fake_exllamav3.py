"""ExLlamaV3 1.6.5 without a GPU: its interface as far as the worker uses it, computing the demo model on the CPU.

It keeps to the real one's rules: the cache comes before the load and is paged, GPUs are filled one after the other up
to `use_per_device` (main memory stands for theirs), a job takes its pages when it starts and waits while there are
none, `iterate` makes one token for every job at work, `cancel` gives pages back, and what a job held back (half a
character, the end token) comes with its last result.
`tests/unit/fakes/test_fake_exllamav3.py` holds it to the real signatures. It tells what it does on stderr.
"""

from __future__ import annotations

import json
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from tokenizers import Tokenizer as HFTokenizer

from tests.fakes import fake_torch

PAGE_SIZE = 256
STEP_S = 0.003
"""How long one iteration takes."""


def _tell(what: str) -> None:
    sys.stderr.write(f"exllamav3: {what}\n")
    sys.stderr.flush()


class Config:
    """A folder's `config.json`."""

    def __init__(self, directory: str) -> None:
        self.directory = directory
        self.config_dict = json.loads((Path(directory) / "config.json").read_text())
        assert "architectures" in self.config_dict, f"No architecture defined in {directory}/config.json"
        [arch] = self.config_dict["architectures"]
        assert arch == "LlamaForCausalLM", f"Unknown architecture {arch} in {directory}/config.json"
        self.max_position_embeddings: int = self.config_dict.get("max_position_embeddings", 8192)

    @staticmethod
    def from_directory(directory: str) -> Config:
        return Config(directory)


class Model:
    """Weights of a demo model, whose next token is told by the last one alone."""

    def __init__(self, config: Config) -> None:
        self.config = config
        self.caches: list[Cache] = []
        self.following: Callable[[int], Any]

    @staticmethod
    def from_config(config: Config) -> Model:
        return Model(config)

    def load(self, **kwargs: Any) -> None:
        """As the real one: `load_gen` to its end."""
        for _ in self.load_gen(**kwargs):
            pass

    def load_gen(
        self,
        use_per_device: list[float] | float | None = None,
        tensor_p: bool = False,
        callback: Callable[[int, int], None] | None = None,
        max_batch_size: int = 1,
    ) -> Iterator[None]:
        """Reads the weights and allocates the caches that are attached by now."""
        from safetensors.numpy import load_file

        weights = load_file(Path(self.config.directory) / "model.safetensors")
        embedding, head = weights["model.embed_tokens.weight"], weights["lm_head.weight"]
        norm = np.sqrt(embedding.shape[1])
        per_device = [] if tensor_p else self._fill_devices(weights, find_limits(use_per_device))
        self.following = lambda token: head @ embedding[token] * norm
        for done in (0, 1, 2):
            if callback:
                callback(done, 2)
            yield
        for cache in self.caches:
            cache.initialized = True
        _tell(f"loaded, tensor_p={tensor_p}, max_batch_size={max_batch_size}, use_per_device={use_per_device}")
        _tell(f"modules on each GPU: {per_device}")

    def _fill_devices(self, weights: Mapping[str, Any], limits: Sequence[int]) -> list[int]:
        """How many modules each GPU gets. Embeddings stay in main memory; each layer brings its cache along."""
        config = self.config.config_dict
        names = [f"model.layers.{layer}." for layer in range(config["num_hidden_layers"])]
        cached = sum(each.bytes_of_layer for each in self.caches)
        sizes = [sum(each.nbytes for key, each in weights.items() if key.startswith(name)) + cached for name in names]
        sizes += [weights["model.norm.weight"].nbytes, weights["lm_head.weight"].nbytes]
        used, counts, device = [0] * len(limits), [0] * len(limits), 0
        for size in sizes:
            while used[device] + size > limits[device]:
                device += 1
                if device >= len(limits):
                    raise RuntimeError("Insufficient VRAM in split for model and cache")
            if device >= fake_torch.cuda.device_count():
                raise RuntimeError("CUDA error: invalid device ordinal")
            used[device] += size
            counts[device] += 1
        return counts


def find_limits(use_per_device: list[float] | float | None) -> list[int]:
    """Bytes that each GPU may give; the fake GPUs themselves have no end. GPUs with a limit of 0 are left out."""
    count = fake_torch.cuda.device_count()
    if use_per_device is None:
        return [sys.maxsize] * count
    if isinstance(use_per_device, float | int):
        use_per_device = [use_per_device] * count
    elif not isinstance(use_per_device, list):
        raise ValueError(  # noqa: TRY004 - as the real one
            "use_per_device must be float or list[float]"
        )
    return [int(each * 1024**3) for each in use_per_device]


class CacheLayer_fp16:  # noqa: N801 - the real name
    def __init__(self, config: Config | None, attention: Any, cache_id: int, max_num_tokens: int) -> None:
        assert max_num_tokens % PAGE_SIZE == 0, f"max_num_tokens must be a multiple of {PAGE_SIZE}."


class CacheLayer_quant(CacheLayer_fp16):  # noqa: N801 - the real name
    """The same with fewer bits."""

    def __init__(
        self, config: Config | None, attention: Any, cache_id: int, max_num_tokens: int, k_bits: int, v_bits: int
    ) -> None:
        super().__init__(config, attention, cache_id, max_num_tokens)
        assert 2 <= k_bits <= 8, "quantized cache must be from 2 to 8 bits"
        assert 2 <= v_bits <= 8, "quantized cache must be from 2 to 8 bits"


class Cache:
    def __init__(
        self,
        model: Model,
        max_num_tokens: int,
        layer_type: type[CacheLayer_fp16] | None = None,
        max_batch_size: int = 16,
        **kwargs: Any,
    ) -> None:
        self.initialized = False
        self.max_num_tokens = max_num_tokens
        (layer_type or CacheLayer_fp16)(model.config, None, id(self), max_num_tokens, **kwargs)
        config = model.config.config_dict
        bits = (kwargs["k_bits"] + kwargs["v_bits"]) if kwargs else 2 * 16
        self.bytes_of_layer = max_num_tokens * config["num_key_value_heads"] * config["head_dim"] * bits // 8
        model.caches.append(self)
        _tell(f"cache of {max_num_tokens}, {(layer_type or CacheLayer_fp16).__name__}, {kwargs}")


class Tokenizer:
    def __init__(self, config: Config) -> None:
        self.tokenizer = HFTokenizer.from_file(str(Path(config.directory) / "tokenizer.json"))

    @staticmethod
    def from_config(config: Config) -> Tokenizer:
        return Tokenizer(config)


class ComboSampler:
    """Temperature, penalties and bias."""

    def __init__(
        self,
        rep_p: float = 1.0,
        freq_p: float = 0.0,
        pres_p: float = 0.0,
        temperature: float = 1.0,
        min_p: float = 0.0,
        top_k: int = 0,
        top_p: float = 1.0,
        logit_bias: Mapping[int, float] | None = None,
    ) -> None:
        assert 0.0 <= top_p <= 1.0
        assert 0.0 <= min_p <= 1.0
        self._temperature, self._min_p, self._top_k, self._top_p = temperature, min_p, top_k, top_p
        self._penalties = (rep_p, freq_p, pres_p)
        self._bias = logit_bias or {}

    def pick(self, logits: Any, past: Sequence[int], rng: Any) -> int:
        rep_p, freq_p, pres_p = self._penalties
        for token, count in Counter(past).items():
            logits[token] = logits[token] / rep_p if logits[token] > 0 else logits[token] * rep_p
            logits[token] -= pres_p + freq_p * count
        for token, bias in self._bias.items():
            logits[token] += bias
        if self._temperature == 0 or self._top_k == 1:
            return int(logits.argmax())
        shares = np.exp((logits - logits.max()) / self._temperature)
        shares[shares < self._min_p * shares.max()] = 0
        order = np.argsort(-shares)
        order = order[: self._top_k] if self._top_k > 0 else order
        shares = shares[order] / shares[order].sum()
        kept = np.cumsum(shares) - shares < self._top_p
        return int(rng.choice(order[kept], p=shares[kept] / shares[kept].sum()))


class Job:
    def __init__(
        self,
        input_ids: Any,
        max_new_tokens: int | None = None,
        sampler: ComboSampler | None = None,
        seed: int | None = None,
        stop_conditions: Sequence[int] | None = None,
        identifier: object | None = None,
        max_rq_tokens: int | None = None,
    ) -> None:
        assert input_ids.shape[-1] > 0, "Input IDs cannot be empty."
        assert input_ids.shape[0] == 1, "input_ids must be [1, seq_len] tensor or list of [1, seq_len] tensors"
        assert max_new_tokens is None or max_new_tokens >= 1, "max_new_tokens must be >= 1, or None for no limit"
        self.tokens: list[int] = input_ids[0].tolist()
        self.prompt_tokens = len(self.tokens)
        self.sampler = sampler or ComboSampler()
        self.rng = np.random.default_rng(seed)
        self.stops = {*(stop_conditions or ())}
        self.identifier = identifier
        self.max_new_tokens = max_new_tokens
        self.max_rq_tokens = max_rq_tokens
        self.serial_number = -1
        self.pages = 0
        self.reserved = 0
        self.held: list[int] = []
        self.started = False

    @property
    def new_tokens(self) -> int:
        return len(self.tokens) - self.prompt_tokens

    def reserve(self, total: int) -> None:
        """Tokens to reach before it gives its pages back and queues again."""
        assert self.max_new_tokens is not None
        left = self.max_new_tokens - self.new_tokens + 1
        self.reserved = len(self.tokens) + left
        if self.max_rq_tokens is not None:
            page_end = -(-(len(self.tokens) - 1 + self.max_rq_tokens) // PAGE_SIZE) * PAGE_SIZE
            self.reserved = min(page_end, total, self.reserved)


class Generator:
    """Works on all jobs that have pages, one token each at a time."""

    def __init__(self, model: Model, cache: Cache, tokenizer: Tokenizer, max_batch_size: int = 256) -> None:
        self._model, self._cache, self._tokenizer, self._most = model, cache, tokenizer, max_batch_size
        self.max_total_tokens = cache.max_num_tokens
        self.pending_jobs: list[Job] = []
        self.active_jobs: list[Job] = []
        self._serial = 0
        self._thread: int | None = None

    def num_remaining_jobs(self) -> int:
        return len(self.pending_jobs) + len(self.active_jobs)

    def enqueue(self, job: Job) -> int:
        """As the real one: refuses what never fits."""
        self._alone()
        room = self.max_total_tokens - len(job.tokens) - 1
        assert room >= 1, f"Job requires more pages than {self.max_total_tokens // PAGE_SIZE} and cannot be enqueued."
        job.max_new_tokens = room if job.max_new_tokens is None else min(job.max_new_tokens, room)
        job.serial_number = self._serial
        self._serial += 1
        self.pending_jobs.append(job)
        return job.serial_number

    def cancel(self, job: Job) -> None:
        self._alone()
        for jobs in (self.pending_jobs, self.active_jobs):
            if job in jobs:
                jobs.remove(job)
                _tell(f"job {job.serial_number} cancelled after {job.new_tokens} tokens")

    def iterate(self) -> list[dict[str, Any]]:
        self._alone()
        assert self._cache.initialized, "Cache tensors were never allocated."
        time.sleep(STEP_S)
        started = [*self._start()]
        return started + [self._step(job) for job in [*self.active_jobs]]

    def _start(self) -> Iterator[dict[str, Any]]:
        for job in [*self.pending_jobs]:
            job.reserve(self.max_total_tokens)
            job.pages = -(-job.reserved // PAGE_SIZE)
            used = sum(each.pages for each in self.active_jobs)
            if len(self.active_jobs) < self._most and used + job.pages <= self.max_total_tokens // PAGE_SIZE:
                self.pending_jobs.remove(job)
                self.active_jobs.append(job)
                _tell(f"job {job.serial_number} starts beside {len(self.active_jobs) - 1}, {job.pages} pages")
                yield self._result(job, "started")

    def _step(self, job: Job) -> dict[str, Any]:
        token = job.sampler.pick(self._model.following(job.tokens[-1]), job.tokens, job.rng)
        job.tokens.append(token)
        job.held.append(token)
        assert job.max_new_tokens is not None
        result = self._result(job, "streaming")
        if token in job.stops:
            result |= {"eos": True, "eos_reason": "stop_token", "held": {"token_ids": np.array([job.held])}}
        elif job.new_tokens >= job.max_new_tokens:
            result |= {"eos": True, "eos_reason": "max_new_tokens", "token_ids": np.array([job.held])}
        elif not self._tokenizer.tokenizer.decode(job.held).endswith("\ufffd"):
            result |= {"token_ids": np.array([job.held])}
            job.held = []
        if result["eos"]:
            self.active_jobs.remove(job)
        elif len(job.tokens) >= job.reserved:
            self.active_jobs.remove(job)
            self.pending_jobs.append(job)
        return result

    def _result(self, job: Job, stage: str) -> dict[str, Any]:
        return {
            "job": job,
            "stage": stage,
            "eos": False,
            "serial": job.serial_number,
            "identifier": job.identifier,
        }

    def _alone(self) -> None:
        """The real one knows nothing of threads."""
        self._thread = self._thread or threading.get_ident()
        assert self._thread == threading.get_ident(), "called from two threads"
