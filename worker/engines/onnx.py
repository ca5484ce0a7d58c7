"""ONNX Runtime: serves an embedding model in this process, on the CPU."""

from __future__ import annotations

import importlib
from argparse import ArgumentParser, Namespace
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final

from worker.engine import Api, Job, PartialEngine
from worker.errors import LoadError
from worker.hf.folder import EmbeddingTokenizer, count_positions, find_tokenizer, load_tokenizer
from worker.preflight import check_file

POOLINGS: Final = ("mean", "cls")
BATCH_TOKENS: Final = 4096
"""Maximum tokens of a batch, padding included. Limits memory, and how long a cancelled request runs on."""

ERRORS: Final = 3
"""ONNX Runtime's log severity for errors. Its warnings are about the export of the model."""
WINDOW: Final = 256
"""Number of texts that are tokenized and sorted into batches at a time."""

INPUTS: Final = {
    "input_ids": "ids",
    "input_word_ids": "ids",
    "attention_mask": "mask",
    "input_mask": "mask",
    "token_type_ids": "types",
    "segment_ids": "types",
    "input_type_ids": "types",
}
"""Names that exporters give to a model's inputs, to what the inputs are."""
POOLED_OUTPUT: Final = "sentence_embedding"
TOKEN_OUTPUTS: Final = ("last_hidden_state", "token_embeddings")


def add_arguments(parser: ArgumentParser) -> None:
    parser.add_argument("--model", required=True, type=Path, metavar="PATH", help="the ONNX file")
    parser.add_argument("--tokenizer", type=Path, metavar="PATH", help="default: what lies beside the model")
    parser.add_argument("--max-tokens", type=int, metavar="N", help="tokens of a text that count")
    parser.add_argument("--pooling", choices=POOLINGS, default="mean", help="how tokens become one embedding")
    parser.add_argument("--no-normalize", action="store_true", help="leave embeddings as long as they are")
    parser.add_argument("--threads", type=int, default=0, metavar="N", help="CPU threads; 0: one for each core")


class Onnx(PartialEngine):
    """The engine `onnx`: serves embeddings of one model by an ONNX Runtime session on the CPU, one request at a time.
    The texts of a request are computed in padded batches."""

    slots = 1
    apis: frozenset[Api] = frozenset({"embeddings"})

    def __init__(self, args: Namespace) -> None:
        self._args = args
        # Untyped on purpose: type checks must not depend on whether the extra is installed.
        self._np: Any = None
        self._session: Any = None
        self._tokenizer: EmbeddingTokenizer
        self._inputs: dict[str, Any] = {}
        """What is fed (`ids`, `mask`, `types`) to the model's input for it."""
        self._output = ""
        self._rows: int | None = None
        """Number of texts in a batch, if the model was exported for one number alone; None: any."""
        self._width: int | None = None
        """Number of tokens in a text, if the model was exported for one number alone; None: any."""

    def load_model(self) -> None:
        """Load the tokenizer and the model file. Raises LoadError if a package or the tokenizer is missing, or the file
        is not an embedding model."""
        args = self._args
        check_file(args.model)
        path = args.tokenizer or find_tokenizer(args.model)
        try:
            self._np, runtime = importlib.import_module("numpy"), importlib.import_module("onnxruntime")
            tokenizer = load_tokenizer(path, args.max_tokens, count_positions(args.model))
        except (ImportError, OSError) as error:
            raise LoadError(f"ONNX Runtime cannot be used: {error} (it is the extra `onnx`)") from None
        options = runtime.SessionOptions()
        options.intra_op_num_threads = args.threads
        options.log_severity_level = ERRORS
        try:
            self._session = runtime.InferenceSession(str(args.model), options, providers=["CPUExecutionProvider"])
        except Exception as error:  # noqa: BLE001 - its exceptions have no base class of their own
            raise LoadError(f"ONNX Runtime cannot load {args.model}: {_plain(error)}") from None
        self._inputs = inputs_by_role(self._session.get_inputs())
        self._output = choose_output(self._session.get_outputs())
        self._rows, self._width = fixed_shape(self._inputs["ids"].shape)
        if self._width is not None and self._width < (tokenizer.max_tokens or self._width + 1):
            tokenizer = load_tokenizer(path, self._width)
        self._tokenizer = tokenizer
        self.context_length = tokenizer.max_tokens

    def embed_texts(self, texts: list[str], job: Job) -> list[list[float]]:
        """Return one vector for each text, of length 1 unless `--no-normalize` is set. Texts that are too long are cut,
        without an error. Raises JobCancelledError between batches, once the job is cancelled."""
        vectors: list[list[float]] = []
        for begin in range(0, len(texts), WINDOW):
            job.check_cancelled()
            vectors += self._embed_window(texts[begin : begin + WINDOW], job)
        return vectors

    def join_tokens(self, tokens: list[int]) -> str:
        """Return the text of these tokens, without special tokens. Raises RequestError with `param` `input` if there is
        no such token."""
        return self._tokenizer.decode(tokens)

    def _embed_window(self, texts: list[str], job: Job) -> list[list[float]]:
        encodings = self._tokenizer.encode(texts)
        vectors: dict[int, list[float]] = {}
        for batch in plan_batches([len(encoding.ids) for encoding in encodings], self._rows):
            job.check_cancelled()
            batch_vectors = self._vectors([encodings[number] for number in batch])
            job.count_prompt_tokens(sum(len(encodings[number].ids) for number in batch))
            vectors.update(zip(batch, batch_vectors.tolist(), strict=True))
        return [vectors[number] for number in range(len(texts))]

    def _vectors(self, encodings: Sequence[Any]) -> Any:
        """Return an array with one row for each text."""
        np = self._np
        width = self._width or max(1, *(len(each.ids) for each in encodings))
        rows = self._rows or len(encodings)
        arrays = {
            "ids": np.full((rows, width), self._tokenizer.pad_id, np.int64),
            "mask": np.zeros((rows, width), np.int64),
            "types": np.zeros((rows, width), np.int64),
        }
        for row, each in enumerate(encodings):
            length = len(each.ids)
            arrays["ids"][row, :length], arrays["types"][row, :length] = each.ids, each.type_ids
            arrays["mask"][row, :length] = 1
        inputs = {each.name: arrays[role].astype(_number_type(np, each.type)) for role, each in self._inputs.items()}
        (vectors,) = self._session.run([self._output], inputs)
        vectors, mask = vectors[: len(encodings)].astype(np.float32), arrays["mask"][: len(encodings), :, None]
        if vectors.ndim == 3:
            vectors = vectors[:, 0] if self._args.pooling == "cls" else (vectors * mask).sum(1) / mask.sum(1).clip(1)
        if not self._args.no_normalize:
            vectors = vectors / np.linalg.norm(vectors, axis=1, keepdims=True).clip(1e-12)
        return vectors


create = Onnx


def plan_batches(lengths: Sequence[int], rows: int | None) -> Iterator[list[int]]:
    """Yield the indexes into `lengths` (tokens of each text) of the texts in each batch, shortest texts first, so that
    little is padded.

    `rows` is the number of texts for which the model was exported: a batch has at most that many. If `rows` is None, a
    batch has as many texts as stay within BATCH_TOKENS together, padding included, but at least one.
    """
    batch: list[int] = []
    for number in sorted(range(len(lengths)), key=lengths.__getitem__):
        is_full = len(batch) == rows if rows else (len(batch) + 1) * lengths[number] > BATCH_TOKENS
        if batch and is_full:
            yield batch
            batch = []
        batch.append(number)
    if batch:
        yield batch


def inputs_by_role(inputs: Sequence[Any]) -> dict[str, Any]:
    """Return the model's inputs by their role: `ids` always, `mask` and `types` where the model has them. Raises
    LoadError if the model has no input for token ids, or an input that is not in INPUTS."""
    by_role = {INPUTS.get(each.name.partition(":")[0]): each for each in inputs}
    if None in by_role:
        known_names = ", ".join(name for name in INPUTS)
        raise LoadError(f"the model has an input `{by_role[None].name}`; an embedding model has some of: {known_names}")
    if "ids" not in by_role:
        raise LoadError("the model has no input `input_ids`: it does not read tokens")
    return {role: each for role, each in by_role.items() if role is not None}


def choose_output(outputs: Sequence[Any]) -> str:
    """Return the name of the output to make embeddings from: vectors that the model has pooled itself (POOLED_OUTPUT),
    else its tokens' vectors, else the first output of three or two dimensions. Raises LoadError if there is none."""
    ranks: dict[str, int] = {each.name: len(each.shape or ()) for each in outputs}
    if ranks.get(POOLED_OUTPUT) == 2:
        return POOLED_OUTPUT
    by_rank = [name for rank in (3, 2) for name in ranks if ranks[name] == rank]
    if candidates := [name for name in (*TOKEN_OUTPUTS, *by_rank) if name in ranks]:
        return candidates[0]
    shapes = ", ".join(f"{each.name} {each.shape}" for each in outputs)
    raise LoadError(f"no output of the model is an embedding, of two or three dimensions: {shapes}")


def fixed_shape(shape: Sequence[Any]) -> tuple[int | None, int | None]:
    """Return the number of texts in a batch and the number of tokens in a text that an input's shape fixes, each None
    if the model takes any number; both None for a shape that does not have two dimensions."""
    sizes = [each if isinstance(each, int) and each > 0 else None for each in shape]
    return (sizes[0], sizes[1]) if len(sizes) == 2 else (None, None)


def _number_type(np: Any, name: str) -> Any:
    return {"tensor(int32)": np.int32, "tensor(float)": np.float32, "tensor(bool)": np.bool_}.get(name, np.int64)


def _plain(error: Exception) -> str:
    """Return the sentence in the library's error, without its number and kind."""
    text = " ".join(str(error).split())
    if "INVALID_PROTOBUF" in text:
        return "it is not an ONNX file"
    return text.partition(" : ")[2].partition(" : ")[2] or text
