"""The gateway: how long each part of an answer takes, and what goes wrong on the way."""

from __future__ import annotations

from grafana.generator.panels import (
    MODEL,
    REQUESTS_INSIDE,
    Board,
    Query,
    Section,
    StateTimeline,
    TimeSeries,
    quantiles,
    rate_by_model,
    sum_rate,
)

_CALLS = "roundhouse_gateway_tool_calls_total"
_FAILING_CALLS = (
    f"""{sum_rate(_CALLS, 'outcome=~"error|failed|timeout"', "tool")}"""
    f""" / {sum_rate(_CALLS, 'outcome=~"ok|error|failed|timeout"', "tool")}"""
)

BOARD = Board(
    name="gateway-latency",
    uid="roundhouse-gateway-latency",
    title="Roundhouse: gateway latency",
    description="How long each part of an answer takes, what goes wrong on the way, tools, and what the gateway keeps.",
    variables=(MODEL,),
    sections=(
        Section(
            "How long",
            (
                TimeSeries(
                    "Time to the first token",
                    "Seconds from a request's headers to the first event of its stream: queue, load, prompt.",
                    quantiles("roundhouse_gateway_time_to_first_token_seconds"),
                    "s",
                ),
                TimeSeries(
                    "Time to the first byte",
                    "Seconds from a request's headers to the first byte of any answer, not counting heartbeats.",
                    quantiles("roundhouse_gateway_first_byte_seconds"),
                    "s",
                ),
                TimeSeries(
                    "Time per output token",
                    "Seconds for each token after the first, the mean of each complete stream.",
                    quantiles("roundhouse_gateway_time_per_output_token_seconds"),
                    "s",
                ),
                TimeSeries(
                    "Duration of requests",
                    "Seconds from a request's headers to the last byte of its answer.",
                    quantiles("roundhouse_gateway_request_duration_seconds"),
                    "s",
                ),
                TimeSeries(
                    "Wait for a slot",
                    "Seconds that requests waited; those that did not wait are not counted.",
                    quantiles("roundhouse_gateway_queue_wait_seconds"),
                    "s",
                ),
                TimeSeries(
                    "Duration by route, p95",
                    "Seconds from a request's headers to the last byte of its answer.",
                    (quantiles("roundhouse_gateway_request_duration_seconds", by="route")[1],),
                    "s",
                ),
            ),
        ),
        Section(
            "What goes wrong",
            (
                TimeSeries(
                    "Answers that are not 2xx",
                    "Per second, by HTTP status. 499: the client left before a status was sent.",
                    (
                        rate_by_model(
                            "roundhouse_gateway_requests_total",
                            "{{model}} {{status}}",
                            "model, status",
                            'status!~"2.."',
                        ),
                    ),
                    "reqps",
                ),
                TimeSeries(
                    "Refusals",
                    "Requests per second that the gateway answered with an error of its own.",
                    (rate_by_model("roundhouse_gateway_refusals_total", "{{model}} {{code}}", "model, code"),),
                    "reqps",
                ),
                TimeSeries(
                    "Answers that broke off",
                    "Per second: an error ended the answer after its status was sent.",
                    (rate_by_model("roundhouse_gateway_broken_answers_total", "{{model}} {{code}}", "model, code"),),
                    "reqps",
                ),
                TimeSeries(
                    "Clients that left, and retries",
                    "Per second: clients that left before the end, and further attempts at an engine.",
                    (
                        rate_by_model("roundhouse_gateway_client_disconnects_total", "{{model}} left"),
                        rate_by_model("roundhouse_gateway_retries_total", "{{model}} retried"),
                    ),
                    "reqps",
                ),
            ),
        ),
        Section(
            "The gateway itself",
            (
                TimeSeries(
                    "Requests inside",
                    "Requests that engines serve, and requests that wait.",
                    REQUESTS_INSIDE,
                ),
                TimeSeries(
                    "Connections to engines",
                    "Open connections, idle and busy.",
                    (Query("sum by (state) (roundhouse_gateway_engine_connections)", "{{state}}"),),
                    is_stacked=True,
                ),
                TimeSeries(
                    "Processor",
                    "Share of one processor that the gateway's process uses.",
                    (Query('rate(process_cpu_seconds_total{job="gateway"}[$__rate_interval])', "gateway"),),
                    "percentunit",
                ),
                TimeSeries(
                    "Memory",
                    "Resident memory of the gateway's process.",
                    (Query('process_resident_memory_bytes{job="gateway"}', "gateway"),),
                    "bytes",
                ),
                TimeSeries(
                    "File descriptors",
                    "Share of the allowed file descriptors that are open; each connection is one.",
                    (Query('process_open_fds{job="gateway"} / process_max_fds{job="gateway"}', "gateway"),),
                    "percentunit",
                ),
                TimeSeries(
                    "Age of the routing table",
                    "Seconds since the last table was received: it grows while nothing changes, too.",
                    (Query("roundhouse_gateway_table_age_seconds", "age"),),
                    "s",
                ),
            ),
        ),
        Section(
            "Tools and MCP servers",
            (
                TimeSeries(
                    "Tool calls",
                    "Ended calls per second, by tool and outcome. `error`: the tool said so; `failed`: its server is "
                    "down, or broke off.",
                    (Query(sum_rate(_CALLS, by="tool, outcome"), "{{tool}} {{outcome}}"),),
                    "ops",
                ),
                TimeSeries(
                    "Tool calls that fail",
                    "Share of each tool's calls that came to an error, failed, or took too long.",
                    (Query(_FAILING_CALLS, "{{tool}}"),),
                    "percentunit",
                    most=1,
                ),
                StateTimeline(
                    "MCP servers",
                    "Whether the gateway is connected to each declared server; the tools of others are not offered.",
                    (Query("min by (server) (roundhouse_gateway_mcp_server_up)", "{{server}}"),),
                    states={0: ("down", "red"), 1: ("connected", "green")},
                ),
            ),
        ),
        Section(
            "Stored responses and resumable streams",
            (
                TimeSeries(
                    "Stored",
                    "Responses, chat completions and conversations that are stored.",
                    (
                        Query("roundhouse_gateway_stored_responses", "responses"),
                        Query("roundhouse_gateway_stored_completions", "completions"),
                        Query("roundhouse_gateway_stored_conversations", "conversations"),
                    ),
                ),
                TimeSeries(
                    "Size of the store",
                    "Bytes of the database of stored responses.",
                    (Query("roundhouse_gateway_stored_bytes", "database"),),
                    "bytes",
                ),
                TimeSeries(
                    "Streams that are kept",
                    "Resumable streams, live and ended, and the clients that read one now.",
                    (
                        Query("sum by (state) (roundhouse_gateway_streams)", "{{state}}"),
                        Query("roundhouse_gateway_stream_readers", "readers"),
                    ),
                ),
                TimeSeries(
                    "Memory of streams",
                    "Bytes that are charged for resumable streams.",
                    (Query("roundhouse_gateway_stream_bytes", "streams"),),
                    "bytes",
                ),
                TimeSeries(
                    "Reads of streams",
                    "Per second: reads of streams, and what went wrong with streams and the store.",
                    (
                        Query(sum_rate("roundhouse_gateway_stream_reads_total", by=""), "reads"),
                        Query(sum_rate("roundhouse_gateway_stream_evictions_total", by=""), "removed early"),
                        Query(sum_rate("roundhouse_gateway_stream_refusals_total", by=""), "refused"),
                        Query(sum_rate("roundhouse_gateway_stream_files_lost_total", by=""), "files lost"),
                        Query(sum_rate("roundhouse_gateway_store_failures_total", by=""), "store failures"),
                    ),
                    "ops",
                ),
                TimeSeries(
                    "Streams taken over",
                    "Streams of an earlier gateway process that were taken over at the last start.",
                    (Query("roundhouse_gateway_stream_recovered_total", "taken over"),),
                ),
            ),
        ),
    ),
)
