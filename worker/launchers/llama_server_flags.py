"""llama-server's command line, as far as the embedded server takes it. Pure: nothing here imports xllamacpp.

Names, values and meanings are those of llama.cpp's `common/arg.cpp`, attributes those of xllamacpp's `CommonParams`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Final

from worker.preflight import KV_CACHE_TYPES, port_number


class UsageError(ValueError):
    """A command line that the embedded server does not take. The message names the flag and says what to do. The worker
    exits with code 2."""


@dataclass(frozen=True, slots=True)
class Member:
    """A member of one of xllamacpp's enumerations, by name."""

    enum: str
    name: str


@dataclass(frozen=True, slots=True)
class Adapter:
    """A LoRA adapter: path of its GGUF file, and its scale."""

    path: str
    scale: float


Value = str | int | float | bool | Path | Member | list[str] | set[str] | list[Member] | list[float] | list[Adapter]
Read = Callable[[str], Value]


@dataclass(frozen=True, slots=True)
class Setting:
    """One attribute of xllamacpp's `CommonParams`, as a dotted path (`mmproj.path`), and the value that it gets."""

    attribute: str
    value: Value


DEVICES: Final = "devices"
"""The one setting that `CommonParams` has no field for: its server uses each GPU that it sees."""


@dataclass(frozen=True, slots=True)
class Option:
    """What a flag of llama-server sets. `read` None: the flag takes no value, and sets `settings`. Else each of
    `attributes` (dotted paths, as in `Setting`) gets what `read` returns for the flag's value; `read` raises ValueError
    for a wrong value, and OSError for a file that cannot be read."""

    settings: tuple[Setting, ...] = ()
    attributes: tuple[str, ...] = ()
    read: Read | None = None


def _takes(read: Read, *attributes: str) -> Option:
    return Option(attributes=attributes, read=read)


def _sets(**values: Value) -> Option:
    return Option(tuple(Setting(attribute, value) for attribute, value in values.items()))


def _one_of(enum: str, prefix: str, names: Mapping[str, str] | Sequence[str]) -> Read:
    members = names if isinstance(names, Mapping) else {name: name.upper().replace("-", "_") for name in names}

    def read(text: str) -> Member:
        if text not in members:
            raise ValueError(f"it is one of {', '.join(members)}")
        return Member(enum, prefix + members[text])

    return read


def _several(read: Callable[[str], Value]) -> Read:
    def read_all(text: str) -> list[Member]:
        members = [read(part) for part in _parts(text)]
        return [member for member in members if isinstance(member, Member)]

    return read_all


def _parts(text: str) -> list[str]:
    return [part.strip() for part in text.split(",") if part.strip()]


def _aliases(text: str) -> set[str]:
    return set(_parts(text))


def _layers(text: str) -> int:
    return {"auto": -1, "all": -2}[text] if text in ("auto", "all") else _whole(text)


def _whole(text: str) -> int:
    try:
        return int(text)
    except ValueError:
        raise ValueError("it is a whole number") from None


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise ValueError("it is a number") from None


def _inverse(text: str) -> float:
    factor = _number(text)
    if not factor:
        raise ValueError("it is a number above 0")
    return 1 / factor


def _shares(text: str) -> list[float]:
    try:
        shares = [float(part) for part in text.replace("/", ",").split(",")]
    except ValueError:
        shares = []
    if not 0 < len(shares) <= _MOST_DEVICES:
        raise ValueError(f"it is numbers, as 3,1, and {_MOST_DEVICES} of them at most")
    return shares + [0.0] * (_MOST_DEVICES - len(shares))


def _on_off(text: str) -> bool:
    words = {"on": True, "off": False, "true": True, "false": False, "1": True, "0": False}
    if text not in words:
        raise ValueError("it is on or off")
    return words[text]


def _folder(text: str) -> str:
    if not Path(text).is_dir():
        raise ValueError("it is no folder")
    return text.rstrip("/") + "/"


def _adapters(text: str) -> list[Adapter]:
    return [Adapter(path, 1.0) for path in _parts(text)]


def _scaled_adapters(text: str) -> list[Adapter]:
    pairs = [part.split(":") for part in _parts(text)]
    if any(len(pair) != 2 for pair in pairs):
        raise ValueError("it is paths with their scales, as a.gguf:0.5,b.gguf:1")
    return [Adapter(path, _number(scale)) for path, scale in pairs]


def _content(text: str) -> str:
    return Path(text).read_text(encoding="utf-8")


_MOST_DEVICES: Final = 128
"""Length of xllamacpp's `tensor_split`, which takes no shorter list."""
_FLASH = dict.fromkeys(("on", "enabled", "true", "1"), "ENABLED")
_FLASH |= dict.fromkeys(("off", "disabled", "false", "0"), "DISABLED") | {"auto": "AUTO", "-1": "AUTO"}
_flash = _one_of("llama_flash_attn_type", "LLAMA_FLASH_ATTN_TYPE_", _FLASH)
_cache = _one_of("ggml_type", "GGML_TYPE_", KV_CACHE_TYPES)
_pooling = _one_of("llama_pooling_type", "LLAMA_POOLING_TYPE_", ("none", "mean", "cls", "last", "rank"))
_reasoning = _one_of(
    "common_reasoning_format", "COMMON_REASONING_FORMAT_", ("none", "auto", "deepseek", "deepseek-legacy")
)
_speculation = _one_of(
    "common_speculative_type",
    "COMMON_SPECULATIVE_TYPE_",
    (
        *("none", "draft-simple", "draft-eagle3", "draft-mtp", "draft-dflash", "draft-dspark"),
        *("ngram-simple", "ngram-map-k", "ngram-map-k4v", "ngram-mod", "ngram-cache"),
    ),
)

_rope = _one_of("llama_rope_scaling_type", "LLAMA_ROPE_SCALING_TYPE_", ("none", "linear", "yarn"))
_split = _one_of("llama_split_mode", "LLAMA_SPLIT_MODE_", ("none", "layer", "row", "tensor"))
_LOAD = {name: name.upper() for name in ("auto", "none", "mmap", "mlock")}
_load_mode = _one_of("llama_load_mode", "LLAMA_LOAD_MODE_", _LOAD | {"mmap+mlock": "MMAP_MLOCK", "dio": "DIRECT_IO"})

_ROWS: tuple[tuple[str, Option], ...] = (
    ("--model -m", _takes(Path, "model.path")),
    ("--host", _takes(_parts, "hostnames")),
    ("--port", _takes(port_number, "port")),
    ("--alias -a", _takes(_aliases, "model_alias")),
    ("--ctx-size -c", _takes(_whole, "n_ctx")),
    ("--parallel -np", _takes(_whole, "n_parallel")),
    ("--kv-unified -kvu", _sets(kv_unified=True)),
    ("--no-kv-unified -no-kvu", _sets(kv_unified=False)),
    ("--device -dev", _takes(_parts, DEVICES)),
    ("--n-gpu-layers --gpu-layers -ngl", _takes(_layers, "n_gpu_layers")),
    ("--tensor-split -ts", _takes(_shares, "tensor_split")),
    ("--flash-attn -fa", _takes(_flash, "flash_attn_type")),
    ("--cache-type-k -ctk", _takes(_cache, "cache_type_k")),
    ("--cache-type-v -ctv", _takes(_cache, "cache_type_v")),
    ("--mmproj -mm", _takes(Path, "mmproj.path")),
    ("--model-draft --spec-draft-model -md", _takes(Path, "speculative.draft.mparams.path")),
    ("--image-max-tokens", _takes(_whole, "image_max_tokens")),
    ("--spec-type", _takes(_several(_speculation), "speculative.types")),
    ("--spec-draft-n-max", _takes(_whole, "speculative.draft.n_max")),
    ("--spec-draft-p-min --draft-p-min", _takes(_number, "speculative.draft.p_min")),
    ("--embeddings --embedding", _sets(embedding=True)),
    ("--pooling", _takes(_pooling, "pooling_type")),
    ("--reranking --rerank", _sets(embedding=True, pooling_type=_pooling("rank"))),
    ("--metrics", _sets(endpoint_metrics=True)),
    ("--slots", _sets(endpoint_slots=True)),
    ("--no-slots", _sets(endpoint_slots=False)),
    ("--jinja", _sets(use_jinja=True)),
    ("--no-jinja", _sets(use_jinja=False)),
    ("--webui --ui", _sets(ui=True)),
    ("--no-webui --no-ui", _sets(ui=False)),
    ("--fit -fit", _takes(_on_off, "fit_params")),
    ("--threads -t", _takes(_whole, "cpuparams.n_threads", "cpuparams_batch.n_threads")),
    ("--cache-ram -cram", _takes(_whole, "cache_ram_mib")),
    ("--batch-size -b", _takes(_whole, "n_batch")),
    ("--ubatch-size -ub", _takes(_whole, "n_ubatch")),
    ("--predict --n-predict -n", _takes(_whole, "n_predict")),
    ("--swa-full", _sets(swa_full=True)),
    ("--context-shift", _sets(ctx_shift=True)),
    ("--no-context-shift", _sets(ctx_shift=False)),
    ("--split-mode -sm", _takes(_split, "split_mode")),
    ("--main-gpu -mg", _takes(_whole, "main_gpu")),
    ("--no-kv-offload -nkvo", _sets(no_kv_offload=True)),
    ("--load-mode -lm", _takes(_load_mode, "load_mode")),
    ("--rope-scaling", _takes(_rope, "rope_scaling_type")),
    ("--rope-scale", _takes(_inverse, "rope_freq_scale")),
    ("--rope-freq-base", _takes(_number, "rope_freq_base")),
    ("--rope-freq-scale", _takes(_number, "rope_freq_scale")),
    ("--yarn-orig-ctx", _takes(_whole, "yarn_orig_ctx")),
    ("--no-mmproj-offload", _sets(mmproj_use_gpu=False)),
    ("--image-min-tokens", _takes(_whole, "image_min_tokens")),
    ("--spec-draft-ngl --gpu-layers-draft -ngld", _takes(_layers, "speculative.draft.n_gpu_layers")),
    ("--spec-draft-type-k --cache-type-k-draft -ctkd", _takes(_cache, "speculative.draft.cache_type_k")),
    ("--spec-draft-type-v --cache-type-v-draft -ctvd", _takes(_cache, "speculative.draft.cache_type_v")),
    ("--spec-draft-n-min", _takes(_whole, "speculative.draft.n_min")),
    ("--threads-batch -tb", _takes(_whole, "cpuparams_batch.n_threads")),
    ("--cache-reuse", _takes(_whole, "n_cache_reuse")),
    ("--ctx-checkpoints --swa-checkpoints -ctxcp", _takes(_whole, "n_ctx_checkpoints")),
    ("--slot-prompt-similarity -sps", _takes(_number, "slot_prompt_similarity")),
    ("--slot-save-path", _takes(_folder, "slot_save_path")),
    ("--props", _sets(endpoint_props=True)),
    ("--lora", _takes(_adapters, "lora_adapters")),
    ("--lora-scaled", _takes(_scaled_adapters, "lora_adapters")),
    ("--warmup", _sets(warmup=True)),
    ("--no-warmup", _sets(warmup=False)),
    ("--chat-template", _takes(str, "chat_template")),
    ("--chat-template-file", _takes(_content, "chat_template")),
    ("--reasoning-format", _takes(_reasoning, "reasoning_format")),
    ("--api-key", _takes(_parts, "api_keys")),
)

OPTIONS: Final[Mapping[str, Option]] = MappingProxyType(
    {name: option for names, option in _ROWS for name in names.split()}
)
"""Every spelling of a flag that llama-server knows to what it sets."""

DEFAULTS: Final = (Setting("n_parallel", -1),)
"""Settings for which llama-server's defaults differ from those of `CommonParams`. -1: the server chooses the number of
slots."""

INSTEAD: Final = "name a llama-server program instead (`llama_server_binary`, or llama-server on the PATH)"
"""End of the errors about flags and devices that only a llama-server program supports."""


def parse_flags(arguments: Sequence[str], environment: Mapping[str, str]) -> tuple[Setting, ...]:
    """Return the settings of a command line and of the variable LLAMA_API_KEY, after `DEFAULTS`. Of several settings of
    one attribute, the last one counts (see `value_of`). Only files that a flag's value is read from are opened.

    Raises UsageError for an unknown flag, a wrong or missing value, a missing `--model` or `--port`, and if a variable
    `LLAMA_ARG_*` is set, which the embedded server would not read.
    """
    for name in sorted(environment):
        if name.startswith("LLAMA_ARG_"):
            raise UsageError(f"error: invalid argument: the embedded llama-server does not read {name}: {INSTEAD}")
    settings = list(DEFAULTS)
    if keys := _parts(environment.get("LLAMA_API_KEY", "")):
        settings.append(Setting("api_keys", keys))
    remaining_arguments = iter(arguments)
    for name in remaining_arguments:
        option = OPTIONS.get(name)
        if option is None:
            raise UsageError(f"error: invalid argument: the embedded llama-server does not take {name}: {INSTEAD}")
        settings += option.settings
        if option.read is not None:
            value = _read(name, option.read, next(remaining_arguments, None))
            settings += [Setting(attribute, value) for attribute in option.attributes]
    for name, attribute in (("--model", "model.path"), ("--port", "port")):
        if value_of(settings, attribute) is None:
            raise UsageError(f"error: invalid argument: {name} is missing")
    return tuple(settings)


def value_of(settings: Sequence[Setting], attribute: str) -> Value | None:
    """Return the value that an attribute (a dotted path, as in `Setting`) gets, which is the last one; None if nothing
    sets it."""
    return next((setting.value for setting in reversed(settings) if setting.attribute == attribute), None)


def _read(name: str, read: Read, text: str | None) -> Value:
    if text is None:
        raise UsageError(f"error: invalid argument: {name} needs a value")
    try:
        return read(text)
    except ValueError as error:
        raise UsageError(f"error: invalid argument: {name} {text}: {error}") from None
    except OSError as error:
        raise UsageError(f"error: invalid argument: {name}: cannot open {text}: {error.strerror}") from None
