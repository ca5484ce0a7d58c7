"""Absolute paths in why a model is not loaded."""

from __future__ import annotations

import pytest

from gateway.protocols.common.file_paths import HIDDEN_PATH, hide_paths


@pytest.mark.parametrize(
    ("said", "told"),
    [
        (
            'model: a/b.gguf is missing from /srv/models; did you mean "a/c.gguf"?',
            f'model: a/b.gguf is missing from {HIDDEN_PATH}; did you mean "a/c.gguf"?',
        ),
        ("the models folder /home/bob/models does not exist", f"the models folder {HIDDEN_PATH} does not exist"),
        ("is a link to /x, which does not exist", f"is a link to {HIDDEN_PATH}, which does not exist"),
        ("api_key_file /run/key cannot be read: [Errno 2] No such file or directory: '/run/key'",
         f"api_key_file {HIDDEN_PATH} cannot be read: [Errno 2] No such file or directory: '{HIDDEN_PATH}'"),
        ('File "/usr/lib/python3.11/x y.py", line 3, in f', f'File "{HIDDEN_PATH}", line 3, in f'),
        ("open `/srv/my models/m.gguf`: no", f"open `{HIDDEN_PATH}`: no"),
        ("from /media/bob/My Passport/models", f"from {HIDDEN_PATH}"),
        ("(/srv/m.gguf), model=/srv/m.gguf:12:", f"({HIDDEN_PATH}), model={HIDDEN_PATH}:"),
        ("~/m.gguf and ~bob/m.gguf", f"{HIDDEN_PATH} and {HIDDEN_PATH}"),
        ('{"path":"\\/srv\\/m.gguf"}', f'{{"path":"{HIDDEN_PATH}"}}'),
        (r"failed:\n/srv/m.gguf \u003c/srv/m.gguf", rf"failed:\n{HIDDEN_PATH} \u003c{HIDDEN_PATH}"),
        ("cc -I/usr/include -L/opt/lib x.c", f"cc -I{HIDDEN_PATH} -L{HIDDEN_PATH} x.c"),
        ("in </srv/m.gguf>", f"in <{HIDDEN_PATH}>"),
        ("line one /a/b\n/c/d line two", f"line one {HIDDEN_PATH}\n{HIDDEN_PATH} line two"),
        ("//srv/m is missing", f"{HIDDEN_PATH} is missing"),
        ("at /healthy/m.gguf and /v1.gguf", f"at {HIDDEN_PATH} and {HIDDEN_PATH}"),
    ],
)  # fmt: skip
def test_absolute_paths_are_hidden(said: str, told: str) -> None:
    assert hide_paths(said) == told


@pytest.mark.parametrize(
    "said",
    [
        "",
        "model: llama/m.gguf is empty, ./m.gguf and ../m.gguf too",
        "12 tokens/s, 3/4 of it, and/or, n/a, / alone, a slash // is none",
        "the engine answered GET /v1/models with 500, /health with 503, and '/v1/models' again",
        "EOS token = 2 '</s>', <|im_end|>, </think>",
        "image ghcr.io/ggml-org/llama.cpp:server is missing",
        "org/Qwen-3.5 is no model of the hub",
    ],
)
def test_other_words_stay(said: str) -> None:
    assert hide_paths(said) == said
