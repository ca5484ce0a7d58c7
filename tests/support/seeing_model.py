"""A clockwork model that sees and hears. Its answer to a chat tells whether a bright image or a dark one was in it, or
a loud sound or a silence.

The projector makes one token of an image, and of a sound one for every 30 s. The token points along one axis of the
hidden state: forward where it is bright or loud, backward where it is dark or silent. No word has anything on that
axis. In the first layer, attention averages the axis over all tokens, so that a bright image and a dark one cancel each
other exactly; the feed-forward multiplies that average with the mark of `<|assistant|>`, and the product decides which
word follows it.
"""

from __future__ import annotations

import base64
import io
import random
import struct
import wave
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from worker.clockwork import CONTEXT, HEAD_WIDTH, HEADS, SENTENCE, WIDTH, make_vocabulary, make_weights, write_gguf

BRIGHT = SENTENCE[SENTENCE.index(" fox") :]
"""The answer to more bright images than dark ones, or to a sound; the answer to none, or to as many, is `SENTENCE`."""
DARK = SENTENCE[SENTENCE.index(" lazy") :]
"""The answer to more dark images than bright ones, or to silence."""
IMAGE_SIZE = 56
"""Pixels of the encoder's input, each way. Each image is scaled to it."""
RATE = 16_000
"""Samples of `make_sound` in each second."""

_SENSE, _DECISION, _SPEAKER = range(3)
"""Axes of the hidden state: what was seen and heard, what is to be said, and the mark of `<|assistant|>`."""
_AVERAGED = 0.25
"""The scale of what attention averages; small, for it stays beside every word of the answer."""
_DECISIVE = 8.0
_PATCH = 14
_FEATURES = 8
_MEL_BINS = 80
_FRAMES = 1500
"""Of 20 ms: the 30 s that the sound encoder always reads, and that make one token."""
_STEEPNESS, _THRESHOLD = 10.0, -0.4
"""What is below the threshold in the mel spectrogram, on average of its bins, counts nothing. Silence is -0.8, and so
is, with 0.2 more at most, what the encoder puts behind a short sound; noise is above 0."""

Matrix = npt.NDArray[np.float32]


def make_seeing_model(path: Path) -> None:
    """Write the text model, 0.8 MB."""
    vocabulary = make_vocabulary()
    weights = make_weights(vocabulary)
    assistant = vocabulary.chain[0]
    embedding = weights["model.embed_tokens.weight"]
    embedding[:, [_SENSE, _DECISION, _SPEAKER]] = 0
    embedding[assistant] = _axis(WIDTH, _SPEAKER)
    embedding /= np.linalg.norm(embedding, axis=1, keepdims=True)
    head = np.zeros_like(weights["lm_head.weight"])
    for token, following in zip(vocabulary.chain, vocabulary.chain[1:], strict=False):
        head[following] += embedding[token] * 4
    head[vocabulary.id_of("Ġfox"), _DECISION] = 4 * _DECISIVE
    head[vocabulary.id_of("Ġlazy"), _DECISION] = -4 * _DECISIVE
    weights["lm_head.weight"] = head
    attention, feed_forward = "model.layers.0.self_attn.", "model.layers.0.mlp."
    for name in ("q_proj", "k_proj"):
        weights[f"{attention}{name}.weight"][:] = 0
    weights[f"{attention}v_proj.weight"] = _one(HEAD_WIDTH, WIDTH, (0, _SENSE), 1)
    weights[f"{attention}o_proj.weight"] = _one(WIDTH, HEADS * HEAD_WIDTH, (_SENSE, 0), _AVERAGED)
    inner = weights[f"{feed_forward}gate_proj.weight"].shape[0]
    weights[f"{feed_forward}gate_proj.weight"] = _one(inner, WIDTH, (0, _SPEAKER), 1)
    weights[f"{feed_forward}up_proj.weight"] = _one(inner, WIDTH, (0, _SENSE), 1)
    weights[f"{feed_forward}down_proj.weight"] = _one(WIDTH, inner, (_DECISION, 0), _DECISIVE)
    write_gguf(path, vocabulary, weights, CONTEXT)


def make_projector(path: Path, *, hears: bool = False) -> None:
    """Write the image encoder with its projector (gemma3's), and the sound encoder (Ultravox's) where it `hears`, as
    one GGUF file for `--mmproj`, 0.1 MB."""
    import gguf

    writer = gguf.GGUFWriter(str(path), "clip")
    writer.add_bool("clip.has_vision_encoder", True)
    writer.add_string("clip.vision.projector_type", "gemma3")
    _add_sizes(writer, "vision", image_size=IMAGE_SIZE, patch_size=_PATCH)
    writer.add_array("clip.vision.image_mean", [0.5, 0.5, 0.5])
    writer.add_array("clip.vision.image_std", [0.5, 0.5, 0.5])
    tensors = _image_tensors()
    if hears:
        writer.add_bool("clip.has_audio_encoder", True)
        writer.add_string("clip.audio.projector_type", "ultravox")
        _add_sizes(writer, "audio", num_mel_bins=_MEL_BINS)
        writer.add_uint32("clip.audio.projector.stack_factor", _FRAMES)
        tensors |= _sound_tensors()
    for name, tensor in tensors.items():
        writer.add_tensor(name, tensor.astype(np.float16) if "conv1d" in name and tensor.ndim == 3 else tensor)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def make_image(brightness: int, width: int = 90, height: int = 70) -> bytes:
    """A PNG of one grey, from 0 (black) to 255, of another size than the encoder's."""

    def chunk(kind: bytes, content: bytes) -> bytes:
        return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))

    rows = (b"\0" + bytes([brightness] * 3 * width)) * height
    head = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    parts = (chunk(b"IHDR", head), chunk(b"IDAT", zlib.compress(rows)), chunk(b"IEND", b""))
    return b"\x89PNG\r\n\x1a\n" + b"".join(parts)


def make_sound(amplitude: int) -> bytes:
    """A WAV file of noise, always the same; of silence, where `amplitude` (of 32767) is 0."""
    chance = random.Random(0)
    noise = (chance.randint(-amplitude, amplitude) for _ in range(RATE // 2))
    file = io.BytesIO()
    with wave.open(file, "wb") as sound:
        sound.setnchannels(1)
        sound.setsampwidth(2)
        sound.setframerate(RATE)
        sound.writeframes(struct.pack(f"<{RATE // 2}h", *noise))
    return file.getvalue()


def encode(content: bytes) -> str:
    """Base64, as requests hold images and sounds."""
    return base64.b64encode(content).decode()


def _add_sizes(writer: Any, encoder: str, **more: int) -> None:
    sizes = {"embedding_length": _FEATURES, "feed_forward_length": _FEATURES, "block_count": 1}
    for name, number in (sizes | {"projection_dim": WIDTH, "attention.head_count": 1} | more).items():
        writer.add_uint32(f"clip.{encoder}.{name}", number)
    writer.add_float32(f"clip.{encoder}.attention.layer_norm_epsilon", 1e-6)


def _image_tensors() -> dict[str, Matrix]:
    """One feature that is a patch's mean, from -1 to 1. The projector takes its mean over all 16 patches, and scales
    the features to one length."""
    patch = np.zeros((_FEATURES, 3, _PATCH, _PATCH), np.float32)
    patch[0] = 1 / patch[0].size
    return {
        **_encoder_layer("v"),
        "v.patch_embd.weight": patch,
        "v.position_embd.weight": np.zeros(((IMAGE_SIZE // _PATCH) ** 2, _FEATURES), np.float32),
        "mm.input_projection.weight": _one(_FEATURES, WIDTH, (0, _SENSE), 1),
        "mm.soft_emb_norm.weight": np.ones(_FEATURES, np.float32),
    }


def _sound_tensors() -> dict[str, Matrix]:
    """A feature that is 0 in silence, and another that is constant. The projector subtracts them, averaged over all
    frames, and scales the difference to one length. Half a second of noise is more than the constant."""
    listens = np.zeros((_FEATURES, _MEL_BINS, 3), np.float32)
    listens[0, :, 1] = _STEEPNESS / _MEL_BINS
    passes = np.zeros((_FEATURES, _FEATURES, 3), np.float32)
    passes[0, 0, 1] = 1
    # (value, gate) of one feature: what was heard, less a twentieth; and what is always positive.
    projection = np.zeros((2, _FRAMES, _FEATURES), np.float32)
    projection[0, :, 0], projection[0, :, 1] = 1, -0.05
    projection[1, :, 1] = 1
    layer = _encoder_layer("a")
    layer |= {f"a.blk.0.{name}.bias": np.zeros(_FEATURES, np.float32) for name in ("attn_q", "attn_v", "attn_out")}
    return {
        **layer,
        "a.conv1d.1.weight": listens,
        "a.conv1d.1.bias": _one(_FEATURES, 1, (0, 0), -_STEEPNESS * _THRESHOLD),
        "a.conv1d.2.weight": passes,
        "a.conv1d.2.bias": _one(_FEATURES, 1, (1, 0), 1),
        "a.position_embd.weight": np.zeros((_FRAMES, _FEATURES), np.float32),
        "mm.a.norm_pre.weight": np.ones(_FRAMES * _FEATURES, np.float32),
        "mm.a.mlp.1.weight": projection.reshape(2, -1),
        "mm.a.norm_mid.weight": np.ones(1, np.float32),
        "mm.a.mlp.2.weight": _one(WIDTH, 1, (_SENSE, 0), 1),
    }


def _encoder_layer(encoder: str) -> dict[str, Matrix]:
    layer = f"{encoder}.blk.0."
    tensors: dict[str, Matrix] = {}
    for name in ("attn_q", "attn_k", "attn_v", "attn_out", "ffn_up", "ffn_down"):
        tensors[f"{layer}{name}.weight"] = np.zeros((_FEATURES, _FEATURES), np.float32)
    for name in ("ln1", "ln2"):
        tensors[f"{layer}{name}.weight"] = np.ones(_FEATURES, np.float32)
        tensors[f"{layer}{name}.bias"] = np.zeros(_FEATURES, np.float32)
    return tensors


def _axis(size: int, number: int) -> Matrix:
    axis = np.zeros(size, np.float32)
    axis[number] = 1
    return axis


def _one(rows: int, columns: int, place: tuple[int, int], value: float) -> Matrix:
    matrix = np.zeros((rows, columns), np.float32)
    matrix[place] = value
    return matrix
