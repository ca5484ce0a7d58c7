"""Who uses it: declared keys, and clients as they name themselves."""

from __future__ import annotations

from grafana.generator.panels import COLUMNS, TENANT, Board, Query, Section, TimeSeries, sum_rate

_OF_KEY = 'key=~"$tenant"'

BOARD = Board(
    name="tenants",
    uid="roundhouse-tenants",
    title="Roundhouse: tenants and keys",
    description="Who sends requests, how many tokens they cost, and who is refused.",
    variables=(TENANT,),
    sections=(
        Section(
            "Keys",
            (
                TimeSeries(
                    "Requests by key",
                    "Requests per second with a declared key, including refused ones.",
                    (Query(sum_rate("roundhouse_gateway_key_requests_total", _OF_KEY, "key"), "{{key}}"),),
                    "reqps",
                ),
                TimeSeries(
                    "Tokens by key",
                    "Tokens per second, prompt and answer.",
                    (
                        Query(
                            sum_rate("roundhouse_gateway_key_tokens_total", _OF_KEY, "key, direction"),
                            "{{key}} {{direction}}",
                        ),
                    ),
                ),
                TimeSeries(
                    "Tokens by key, per day",
                    "Tokens of the last 24 hours, prompt and answer together.",
                    (
                        Query(
                            f"sum by (key) (increase(roundhouse_gateway_key_tokens_total{{{_OF_KEY}}}[1d]))", "{{key}}"
                        ),
                    ),
                ),
                TimeSeries(
                    "Share of all tokens",
                    "Of the tokens of the last hour.",
                    (
                        Query(
                            f"key:roundhouse_key_tokens:increase1h{{{_OF_KEY}}}"
                            " / ignoring (key) group_left () sum(key:roundhouse_key_tokens:increase1h)",
                            "{{key}}",
                        ),
                    ),
                    "percentunit",
                    is_stacked=True,
                ),
                TimeSeries(
                    "Refusals that keys and limits cause",
                    "Requests per second that were refused for want of a right, or over a limit.",
                    (
                        Query(
                            sum_rate(
                                "roundhouse_gateway_refusals_total",
                                'code=~"invalid_api_key|keys_required|scope_required|model_not_allowed|rate_limit_exceeded|queue_full"',
                                "code",
                            ),
                            "{{code}}",
                        ),
                    ),
                    "reqps",
                    width=COLUMNS,
                ),
            ),
        ),
        Section(
            "Clients",
            (
                TimeSeries(
                    "Requests by client",
                    "The ten that send most, by `X-Client-Id` or `User-Agent`: what clients say proves nothing.",
                    (
                        Query(
                            f"topk(10, {sum_rate('roundhouse_gateway_client_requests_total', by='client')})",
                            "{{client}}",
                        ),
                    ),
                    "reqps",
                ),
                TimeSeries(
                    "Work by client",
                    "Seconds per second that engines work for each of the ten that cost most.",
                    (
                        Query(
                            f"topk(10, {sum_rate('roundhouse_gateway_client_inference_seconds_total', by='client')})",
                            "{{client}}",
                        ),
                    ),
                ),
            ),
        ),
    ),
)
