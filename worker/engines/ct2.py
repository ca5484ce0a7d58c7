"""CTranslate2: serves a converted model folder in this process."""

from __future__ import annotations

import importlib
import json
from argparse import ArgumentParser, Namespace
from collections.abc import Generator
from contextlib import closing
from pathlib import Path
from typing import Any, Final

from worker.engine import Job
from worker.errors import LoadError, RequestError
from worker.hf.engine import HFEngine
from worker.hf.folder import HFFolder
from worker.preflight import check_file
from worker.schema import GenerationRequest
from worker.text.prompt_form import CHAT_FORMATS

COMPUTE_TYPES: Final = (
    *("default", "auto", "int8", "int8_float32", "int8_float16", "int8_bfloat16"),
    *("int16", "float16", "bfloat16", "float32"),
)
DEVICES: Final = ("auto", "cpu", "cuda")
UNBOUNDED_ANSWER: Final = 512
"""Maximum tokens of an answer if neither request nor model sets a limit; the library's own default."""


def add_arguments(parser: ArgumentParser) -> None:
    parser.add_argument("--model", required=True, type=Path, metavar="DIR", help="the converted folder")
    parser.add_argument("--tokenizer", type=Path, metavar="DIR", help="folder of tokenizer.json; default: the model's")
    parser.add_argument(
        "--device", choices=DEVICES, default="auto", help="where it computes; auto: a GPU if there is one"
    )
    parser.add_argument("--compute-type", choices=COMPUTE_TYPES, default="default", help="default: as converted")
    parser.add_argument("--max-tokens", type=int, metavar="N", help="tokens of a request; default: the tokenizer's own")
    parser.add_argument("--inter-threads", type=int, default=1, metavar="N", help="requests computed side by side")
    parser.add_argument("--intra-threads", type=int, default=0, metavar="N", help="CPU threads of each; 0: by the CPU")
    parser.add_argument("--prompt-format", choices=CHAT_FORMATS, help="what the chat template in the folder is")


class CT2(HFEngine):
    """The engine `ct2`: serves one converted model by a `ctranslate2.Generator`, with one worker for each slot. Chat
    and completions; no embeddings."""

    name = "CTranslate2"
    sampling_fields = frozenset({"repeat_penalty"})

    def __init__(self, args: Namespace) -> None:
        self.slots: int = args.inter_threads
        self._args = args
        # Untyped on purpose: type checks must not depend on whether the extra is installed.
        self._generator: Any = None

    def load_model(self) -> None:
        """Load the tokenizer, whose faults show quickly, then the model. Raises LoadError if the package is missing, a
        file cannot be used, or the tokenizer is not the model's; OSError if `vocabulary.json` is there and cannot be
        read."""
        args = self._args
        check_file(args.model / "model.bin")
        try:
            ctranslate2 = importlib.import_module("ctranslate2")
            folder = HFFolder(args.tokenizer or args.model, args.model)
            self.open_folder(folder, args.prompt_format)
        except (ImportError, OSError) as error:
            raise LoadError(f"CTranslate2 cannot be used: {error} (it is the extra `ct2`)") from None
        try:
            self._generator = ctranslate2.Generator(
                str(args.model),
                device=args.device,
                compute_type=args.compute_type,
                inter_threads=args.inter_threads,
                intra_threads=args.intra_threads,
            )
        except (RuntimeError, ValueError, MemoryError) as error:
            raise LoadError(f"CTranslate2 cannot load {args.model}: {error}") from error
        self._check_vocabulary()
        bounds = [bound for bound in (args.max_tokens, folder.longest) if bound is not None]
        self.context_length = min(bounds, default=None)

    def _check_vocabulary(self) -> None:
        """Raise LoadError if the tokenizer is not the model's. CTranslate2 takes tokens by their names, and would read
        each name that it does not know as its unknown token."""
        path = self._args.model / "vocabulary.json"
        if not path.exists():
            return
        try:
            names = json.loads(path.read_text(encoding="utf-8"))
        except ValueError as error:
            raise LoadError(f"{path} is not JSON in UTF-8: {error}") from None
        if not isinstance(names, list):
            raise LoadError(f"{path} does not hold a list of tokens")
        for number, name in enumerate(names):
            token_name = self.vocabulary.token_name(number)
            if token_name and token_name != name:
                folder = self._args.tokenizer or self._args.model
                raise LoadError(
                    f"the tokenizer in {folder} is not this model's: its token {number} is {token_name!r}, not {name!r}"
                )

    def generate_tokens(
        self, tokens: list[int], limit: int | None, request: GenerationRequest, job: Job
    ) -> Generator[int]:
        """See `HFEngine.generate_tokens`; UNBOUNDED_ANSWER holds where `limit` is None. Raises RequestError before the
        first token for a `seed` if tokens are sampled (see `sampling_options`)."""
        steps = self._generator.generate_tokens(
            [self.vocabulary.token_name(token) for token in tokens],
            max_length=limit or UNBOUNDED_ANSWER,
            end_token=[*self.vocabulary.end_tokens] or None,
            **sampling_options(request, self.vocabulary.size),
        )
        with closing(steps):
            for step in steps:
                yield step.token_id


create = CT2


def sampling_options(request: GenerationRequest, size: int) -> dict[str, Any]:
    """Return the sampling arguments of `ctranslate2.Generator.generate_tokens` by name: `repetition_penalty` always
    (1.0: none), and `sampling_temperature`, `sampling_topk` (0: all tokens) and `sampling_topp` where tokens are
    sampled. Tokens are sampled unless `temperature` is 0, `top_k` is 1, or the request sets none of `temperature`,
    `top_p` and `top_k`; then the most probable token is taken. `size` is the number of tokens in the vocabulary, at
    which `top_k` is cut.

    Raises RequestError for a `seed` where tokens are sampled, because CTranslate2 cannot repeat an answer.
    """
    requested_values = (request.temperature, request.top_p, request.top_k)
    is_greedy = request.temperature == 0 or request.top_k == 1 or all(each is None for each in requested_values)
    options: dict[str, Any] = {"repetition_penalty": 1.0 if request.repeat_penalty is None else request.repeat_penalty}
    if is_greedy:
        return options
    if request.seed is not None:
        # CTranslate2 seeds its random numbers once per thread.
        raise RequestError(
            "CTranslate2 cannot repeat an answer by `seed`: leave it out, or ask for `temperature` 0.", param="seed"
        )
    return options | {
        "sampling_temperature": 1.0 if request.temperature is None else request.temperature,
        "sampling_topk": min(max(request.top_k or 0, 0), size),
        "sampling_topp": 1.0 if request.top_p is None else request.top_p,
    }
