"""Writes the `.litertlm` models that LiteRT-LM is tested with. Run by `.ci/litertlm`, in a venv that has litert-torch:

    python -m tests.support.litertlm_model OUT_DIR

`clockwork.litertlm` is the demo model. `caller.litertlm` is one that thinks, speaks and calls a tool, in Qwen3's form;
told what the tool answered, it says `DONE_SAID`.
"""

from __future__ import annotations

import argparse
import importlib
import json
import sys
import tempfile
import types
from dataclasses import replace
from pathlib import Path

from worker.clockwork import CONTEXT, Vocabulary, hf_files, make_vocabulary, make_weights, write_hf

THOUGHT = "The quick brown fox"
SPOKEN = " jumps over a lazy dog"
CALLED = "weather", {"city": "Oslo"}
DONE_SAID = " And then it sleeps!"

PREFILL_LENGTHS = [16, 128]

TEMPLATE = """\
{%- for m in messages %}<|{{ m['role'] }}|>
{%- if m['content'] is string %}{{ m['content'] }}{% else %}
{%- for part in m['content'] or [] %}{% if part['type'] == 'text' %}{{ part['text'] }}{% endif %}{% endfor %}{% endif %}
{%- for t in m['tool_calls'] or [] %}<tool_call>{{ t['function']['name'] }}</tool_call>{% endfor %}<|end|>{% endfor %}
{%- if add_generation_prompt %}<|assistant|>{% endif %}"""
CALLER_TEMPLATE = (
    "{%- for t in tools or [] %}<|system|>{{ t['function']['name'] }}<|end|>{% endfor %}"
    + TEMPLATE.removesuffix("{% endif %}")
    + "{% if messages[-1]['role'] == 'tool' %}.{% endif %}{% endif %}{# <think></think> #}"
)

_CALL = json.dumps({"name": CALLED[0], "arguments": CALLED[1]})
_MARKS = ("<think>", "</think>", "<tool_call>", "</tool_call>", _CALL)
_FOLLOWS = (
    ("<|assistant|>", "<think>"),
    ("<think>", "The"),
    ("Ġfox", "</think>"),
    ("</think>", "Ġjumps"),
    ("Ġdog", "<tool_call>"),
    ("<tool_call>", _CALL),
    (_CALL, "</tool_call>"),
    ("</tool_call>", "<|end|>"),
)
"""Token, and the one that follows it; stronger than in the model it is made of."""


def write_clockwork(folder: Path) -> None:
    """The demo model, in Hugging Face form."""
    vocabulary = make_vocabulary()
    write_hf(folder, vocabulary, make_weights(vocabulary))
    _set_template(folder, vocabulary, TEMPLATE)


def write_caller(folder: Path) -> None:
    """The one that calls, in Hugging Face form."""
    plain = make_vocabulary()
    weights = make_weights(plain)
    first = plain.padding_from
    tokens = (*plain.tokens[:first], *_MARKS, *plain.tokens[first + len(_MARKS) :])
    vocabulary = replace(plain, tokens=tokens)
    embedding, head = weights["model.embed_tokens.weight"], weights["lm_head.weight"]
    for token, following in _FOLLOWS:
        head[tokens.index(following)] += embedding[tokens.index(token)] * 8
    write_hf(folder, vocabulary, weights)
    _set_template(folder, vocabulary, CALLER_TEMPLATE)
    path = folder / "tokenizer.json"
    content = json.loads(path.read_text())
    flags = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": False}
    content["added_tokens"] += [{"id": tokens.index(mark), "content": mark, **flags} for mark in _MARKS]
    path.write_text(json.dumps(content, ensure_ascii=False))


def _set_template(folder: Path, vocabulary: Vocabulary, template: str) -> None:
    config = hf_files(vocabulary)["tokenizer_config.json"]
    (folder / "tokenizer_config.json").write_text(json.dumps(config | {"chat_template": template}))


def convert(folder: Path, out: Path, model_type: str | None) -> None:
    """What litert-torch makes of a folder in Hugging Face form: floats, on the CPU."""
    export = importlib.import_module("litert_torch.generative.export_hf.export")
    builder = importlib.import_module("litert_torch.generative.export_hf.core.litert_lm_builder")
    # Else `!` and the end token together end an answer, and the `!` may be lost (litert-torch 0.10).
    builder._STOP_TOKEN_PREFIXES.clear()
    with tempfile.TemporaryDirectory() as work:
        export.export(
            model=str(folder),
            output_dir=work,
            prefill_lengths=PREFILL_LENGTHS,
            cache_length=CONTEXT,
            quantization_recipe="",
            use_jinja_template=True,
            bundle_litert_lm=True,
            litert_lm_model_type_override=model_type,
        )
        (written,) = Path(work).glob("*.litertlm")
        out.write_bytes(written.read_bytes())


def without_tensorflow() -> None:
    """litert-torch imports one module of tensorflow, which ai-edge-litert has under its own name."""
    schema = importlib.import_module("ai_edge_litert.schema_py_generated")
    importlib.import_module("torch._dynamo")  # looks for a tensorflow, and must not find this one
    name = ""
    for part in ("tensorflow", "lite", "python"):
        name = f"{name}.{part}".removeprefix(".")
        sys.modules[name] = types.ModuleType(name)
    sys.modules[name].schema_py_generated = schema  # type: ignore[attr-defined]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("out", type=Path)
    out = parser.parse_args().out
    without_tensorflow()
    for name, write, model_type in (("clockwork", write_clockwork, None), ("caller", write_caller, "qwen3")):
        with tempfile.TemporaryDirectory() as folder:
            write(Path(folder))
            convert(Path(folder), out / f"{name}.litertlm", model_type)


if __name__ == "__main__":
    main()
