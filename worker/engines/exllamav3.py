"""ExLlamaV3: serves an EXL3 folder on GPUs, in this process."""

from __future__ import annotations

import fcntl
import importlib
import math
import os
import queue
import sys
import threading
import traceback
from argparse import ArgumentParser, ArgumentTypeError, Namespace
from collections.abc import Callable, Generator, Iterator, Mapping
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any, Final

from worker.engine import Job
from worker.errors import LoadError
from worker.hf.engine import HFEngine
from worker.hf.folder import HFFolder
from worker.preflight import check_file
from worker.schema import GenerationRequest
from worker.text.prompt_form import CHAT_FORMATS

Answers = queue.SimpleQueue[Any]
"""Results of one job, or the exception that ended it. The queue is also the job's `identifier`."""

LOOK_S: Final = 0.1
"""Seconds between two checks whether a job that yields no result is still wanted."""


class Batch:
    """Owns the only thread that uses an ExLlamaV3 generator, which is not thread-safe. Creating it starts the thread,
    which runs as long as the process.

    An error of the generator itself ends the whole process, with exit code 1 and one line on stderr.
    """

    def __init__(self, generator: Any) -> None:
        self._generator = generator
        self._requested_actions: queue.SimpleQueue[tuple[Callable[[Any], object], Any]] = queue.SimpleQueue()
        threading.Thread(target=self._run, name="exllamav3", daemon=True).start()

    def iterate_results(self, make: Callable[[Answers], Any], check: Callable[[], None]) -> Generator[dict[str, Any]]:
        """Queue the job that `make` builds, and yield its results as the generator makes them, until one has `eos` set.
        Blocks between results. May be called from any thread; jobs of several callers run at once.

        `make` gets the queue that must be the job's `identifier`. While no result comes, `check` is called every LOOK_S
        seconds; it may raise. Raises what the generator raised for this job, or what `check` raised. If `check` raised,
        or the iterator is closed early, the job is cancelled.
        """
        answers: Answers = queue.SimpleQueue()
        job = make(answers)
        self._requested_actions.put((self._generator.enqueue, job))
        has_ended = False
        try:
            while not has_ended:
                try:
                    result = answers.get(timeout=LOOK_S)
                except queue.Empty:
                    check()
                    continue
                has_ended = isinstance(result, Exception) or result["eos"]
                if isinstance(result, Exception):
                    raise result
                yield result
        finally:
            if not has_ended:
                self._requested_actions.put((self._generator.cancel, job))

    def _run(self) -> None:
        try:
            while True:
                self._run_requests()
                for result in self._generator.iterate():
                    result["job"].identifier.put(result.get("error", result))
        except Exception as error:  # noqa: BLE001 - the generator is of no more use, whatever it was
            traceback.print_exc()
            sys.stderr.write(f"ExLlamaV3 failed: {error!r}\n")
            sys.stderr.flush()
            os._exit(1)

    def _run_requests(self) -> None:
        is_idle = not self._generator.num_remaining_jobs()
        while True:
            try:
                action, job = self._requested_actions.get(block=is_idle)
            except queue.Empty:
                return
            try:
                action(job)
            except (AssertionError, ValueError) as error:  # the generator refuses this one job
                job.identifier.put(error)
            is_idle = not self._generator.num_remaining_jobs()


PAGE: Final = 256
"""Tokens in a page of the KV cache (`PAGE_SIZE`)."""
MOST_RESERVED: Final = 2048
"""Maximum tokens for which a job is given cache pages at a time."""
BITS: Final = range(2, 9)
"""Bits that a quantised KV cache may have."""
_SAMPLING: Final = {
    "temperature": "temperature",
    "top_p": "top_p",
    "top_k": "top_k",
    "min_p": "min_p",
    "repeat_penalty": "rep_p",
    "presence_penalty": "pres_p",
    "frequency_penalty": "freq_p",
}
"""Fields of a request to their names in `ComboSampler`."""


def add_arguments(parser: ArgumentParser) -> None:
    parser.add_argument("--model", required=True, type=Path, metavar="DIR", help="the EXL3 folder")
    parser.add_argument(
        "--cache-size", type=_pages, metavar="N", help="KV cache in tokens, all requests together; default: the context"
    )
    parser.add_argument("--cache-quant", type=_bits, metavar="K[,V]", help="bits of the KV cache; default: fp16")
    parser.add_argument("--max-rq-tokens", type=int, metavar="N", help="tokens of one request at most")
    parser.add_argument("--tensor-parallel", action="store_true", help="split each layer over all GPUs")
    parser.add_argument(
        "--use-per-device",
        type=_gibibytes,
        metavar="GIB[,GIB...]",
        help="memory of each GPU to use, beside the CUDA context; default: all that is free, one GPU after the other",
    )
    parser.add_argument("--prompt-format", choices=CHAT_FORMATS, help="what the chat template in the folder is")


class ExLlamaV3(HFEngine):
    """The engine `exllamav3`: serves one EXL3 model by an `exllamav3.Generator`, which works on the requests of all
    slots at once. Chat and completions; no embeddings."""

    name = "ExLlamaV3"
    sampling_fields = frozenset({"min_p", "repeat_penalty", "presence_penalty", "frequency_penalty", "logit_bias"})
    slots = 16

    def __init__(self, args: Namespace) -> None:
        self._args = args
        # Untyped on purpose: type checks must not depend on whether the extra is installed.
        self._exllamav3: Any = None
        self._torch: Any = None
        self._batch: Batch
        self._reserved = MOST_RESERVED
        """Tokens for which a job is given cache pages at a time, so that one long answer does not keep others waiting.
        Then the job queues again. The library calls this `max_rq_tokens`; our `--max-rq-tokens` is the limit of a
        request."""

    def load_model(self) -> None:
        """Load the tokenizer, whose faults show quickly, then the model, with progress on stderr. The first import of
        the package compiles it, which takes minutes; waits for another process that does so.

        Raises LoadError if a file, a package or a GPU is missing, or the model cannot be loaded.
        """
        args = self._args
        check_file(args.model / "config.json")
        if not any(args.model.glob("*.safetensors")):
            raise LoadError(f"there are no weights (*.safetensors) in {args.model}")
        folder = HFFolder(args.model, args.model)
        for package in ("jinja2", "tokenizers"):
            _import_package(package)
        self.open_folder(folder, args.prompt_format)
        torch = self._torch = _import_package("torch")
        gpus = torch.cuda.device_count()
        if not gpus:
            raise LoadError(_no_gpu(os.environ))
        if args.use_per_device is not None and gpus < len(args.use_per_device):
            given = len(args.use_per_device)
            raise LoadError(f"ExLlamaV3 sees {gpus} of the {given} GPUs that it was given: look after the driver")
        with lock_extension("exllamav3_ext"):
            exllamav3 = self._exllamav3 = _import_package("exllamav3")
        try:
            config = exllamav3.Config.from_directory(str(args.model))
            model = exllamav3.Model.from_config(config)
            size = args.cache_size or -(-config.max_position_embeddings // PAGE) * PAGE
            # Attached before the load, which allocates only caches that are attached by then.
            cache = exllamav3.Cache(model, max_num_tokens=size, max_batch_size=self.slots, **self._quantization())
            model.load(
                use_per_device=args.use_per_device,
                tensor_p=args.tensor_parallel,
                max_batch_size=self.slots,
                callback=_tell_progress,
            )
            tokenizer = exllamav3.Tokenizer.from_config(config)
            generator = exllamav3.Generator(model, cache, tokenizer, max_batch_size=self.slots)
        except Exception as error:
            raise LoadError(f"ExLlamaV3 cannot load {args.model}: {str(error) or repr(error)}") from error
        # The generator reserves one token more than a request may have.
        bounds = (args.max_rq_tokens, config.max_position_embeddings, size - 1)
        self.context_length = min(bound for bound in bounds if bound is not None)
        self.cache_types = self._bits()
        self._reserved = min(MOST_RESERVED, max(PAGE, size // self.slots))
        self._batch = Batch(generator)

    def generate_tokens(
        self, tokens: list[int], limit: int | None, request: GenerationRequest, job: Job
    ) -> Generator[int]:
        """See `HFEngine.generate_tokens`. Raises RequestError for an unknown token in `logit_bias`, and
        JobCancelledError also while no token comes."""
        sampler = self._exllamav3.ComboSampler(**self._sampling(request))

        def made(answers: Answers) -> Any:
            return self._exllamav3.Job(
                self._torch.tensor([tokens], dtype=self._torch.long),
                max_new_tokens=limit,
                sampler=sampler,
                seed=request.seed,
                stop_conditions=[*self.vocabulary.end_tokens],
                identifier=answers,
                max_rq_tokens=self._reserved,
            )

        with closing(self._batch.iterate_results(made, job.check_cancelled)) as results:
            for result in results:
                # Tokens that the generator holds back for its text (half a character, the end token) come with the end.
                for part in (result, result.get("held", {})):
                    if "token_ids" in part:
                        yield from part["token_ids"][0].tolist()

    def _quantization(self) -> dict[str, Any]:
        if self._args.cache_quant is None:
            return {}
        k_bits, v_bits = self._args.cache_quant
        return {"layer_type": self._exllamav3.CacheLayer_quant, "k_bits": k_bits, "v_bits": v_bits}

    def _bits(self) -> tuple[str, str]:
        """Return the bits of the K and the V cache as text, or `fp16` for both."""
        k_bits, v_bits = self._args.cache_quant or ("fp16", "fp16")
        return str(k_bits), str(v_bits)

    def _sampling(self, request: GenerationRequest) -> dict[str, Any]:
        settings = {option: getattr(request, field) for field, option in _SAMPLING.items()}
        if request.logit_bias:
            settings["logit_bias"] = {int(token): value for token, value in request.logit_bias.items()}
            self.vocabulary.check_tokens(settings["logit_bias"], "logit_bias")
        return {name: value for name, value in settings.items() if value is not None}


create = ExLlamaV3


def _no_gpu(environment: Mapping[str, str]) -> str:
    visible_gpus = environment.get("CUDA_VISIBLE_DEVICES", environment.get("NVIDIA_VISIBLE_DEVICES", ""))
    if visible_gpus in ("", "-1", "none", "void"):
        return "ExLlamaV3 needs a GPU, and sees none here: declare `gpus` for the model"
    return f"ExLlamaV3 sees none of the GPUs that it was given ({visible_gpus}): look after the driver"


def _import_package(name: str) -> Any:
    try:
        return importlib.import_module(name)
    except Exception as error:
        # ExLlamaV3 compiles itself on import, which may fail with any exception and a message of many lines.
        reason = f"{error}".partition("\n")[0]
        raise LoadError(f"ExLlamaV3 cannot be used: {reason} (it is the extra `exllamav3`)") from error


def _tell_progress(done: int, total: int) -> None:
    sys.stderr.write(f"loading: {100 * done // max(total, 1)} %\n")
    sys.stderr.flush()


def _pages(text: str) -> int:
    if text.isdigit() and int(text) and int(text) % PAGE == 0:
        return int(text)
    raise ArgumentTypeError(f"must be a multiple of {PAGE}, is {text:.20}")


def _bits(text: str) -> tuple[int, int]:
    parts = [int(part) for part in text.split(",") if part.isdigit()]
    if len(parts) != text.count(",") + 1 or len(parts) > 2 or not all(part in BITS for part in parts):
        raise ArgumentTypeError(f"must be bits from 2 to 8, for K and V alike or as `K,V`; is {text:.20}")
    return parts[0], parts[-1]


def _gibibytes(text: str) -> list[float]:
    try:
        limits = [float(part) for part in text.split(",")]
    except ValueError:
        limits = []
    if limits and all(0 < limit < math.inf for limit in limits):
        return limits
    raise ArgumentTypeError(f"must be numbers above 0, in GiB, one for each GPU; is {text:.40}")


@contextmanager
def lock_extension(name: str) -> Iterator[None]:
    """Return a context manager that holds this machine's lock of the torch extension `name` in its block. The import of
    the extension compiles it the first time. Waits without limit for another process that holds the lock; blocks.

    torch waits for ever for the `lock` file that a killed compile left in the extension's folder. Our lock ends with
    its process, so the holder of it removes that file. Raises LoadError if the folder cannot be used, and if the block
    raises OSError.
    """
    own_root = os.environ.get("TORCH_EXTENSIONS_DIR")
    python = f"py{sys.version_info.major}{sys.version_info.minor}"
    root = Path(own_root or Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache", "torch_extensions"))
    try:
        root.mkdir(parents=True, exist_ok=True)
        with (root / f"{name}.roundhouse").open("w") as lock_file:
            fcntl.flock(lock_file, fcntl.LOCK_EX)
            for stale_lock in root.glob(f"{name}/lock" if own_root else f"{python}*/{name}/lock"):
                stale_lock.unlink(missing_ok=True)
            yield
    except OSError as error:
        raise LoadError(f"cannot use {root}, where torch keeps what it compiles: {error.strerror or error}") from None
