"""The API families whose answers an engine may send whole or as a stream, with an example of each."""

from __future__ import annotations

import re

FAMILIES = ("/v1/chat/completions", "/v1/completions", "/v1/responses", "/v1/messages", "/v1/embeddings")
STREAMING = FAMILIES[:4]
EVENTS = {
    "/v1/chat/completions": (
        b'data: {"choices":[{"index":0,"delta":{"content":"Hi"},"finish_reason":null}]}\n\n',
        b'data: {"choices":[{"index":0,"delta":{},"finish_reason":"stop"}]}\n\n',
        b"data: [DONE]\n\n",
    ),
    "/v1/completions": (
        b'data: {"choices":[{"index":0,"text":"Hi","finish_reason":null}]}\n\n',
        b'data: {"choices":[{"index":0,"text":"","finish_reason":"stop"}]}\n\n',
        b"data: [DONE]\n\n",
    ),
    "/v1/responses": (
        b'event: response.created\ndata: {"type":"response.created","response":{"status":"in_progress"}}\n\n',
        b'event: response.output_text.delta\ndata: {"type":"response.output_text.delta","delta":"Hi"}\n\n',
        b'event: response.completed\ndata: {"type":"response.completed","response":{"status":"completed","output":[]}}'
        b"\n\n",
    ),
    "/v1/messages": (
        b'event: message_start\ndata: {"type":"message_start","message":{"id":"x","type":"message","role":"assistant",'
        b'"content":[],"model":"m","stop_reason":null,"usage":{"input_tokens":1,"output_tokens":0}}}\n\n',
        b'event: content_block_start\ndata: {"type":"content_block_start","index":0,'
        b'"content_block":{"type":"text","text":""}}\n\n',
        b'event: content_block_delta\ndata: {"type":"content_block_delta","index":0,'
        b'"delta":{"type":"text_delta","text":"Hi"}}\n\n',
        b'event: content_block_stop\ndata: {"type":"content_block_stop","index":0}\n\n',
        b'event: message_delta\ndata: {"type":"message_delta","delta":{"stop_reason":"end_turn"},'
        b'"usage":{"output_tokens":1}}\n\n',
        b'event: message_stop\ndata: {"type":"message_stop"}\n\n',
    ),
    "/v1/embeddings": (b"",),
}
"""A whole stream of each family, event by event."""
ENDS = {
    "/v1/chat/completions": re.compile(rb"data: \[DONE\]\s*\Z"),
    "/v1/completions": re.compile(rb"data: \[DONE\]\s*\Z"),
    "/v1/responses": re.compile(rb'"type":\s*"(?:response\.(?:completed|failed|incomplete)|error)"[^\n]*\s*\Z'),
    "/v1/messages": re.compile(rb'(?:"type":\s*"message_stop"|event: error\ndata: )[^\n]*\s*\Z'),
}
"""How what a client gets of a stream ends, whatever happens."""
