"""Documents and searches."""

from __future__ import annotations

from grafana.generator.panels import Board, Query, Section, Stat, TimeSeries, quantiles, sum_rate

_WAITING = 'roundhouse_retrieval_versions{state=~"queued|parsing|embedding"}'

BOARD = Board(
    name="retrieval",
    uid="roundhouse-retrieval",
    title="Roundhouse: retrieval",
    description="Documents on their way into the index, and searches.",
    sections=(
        Section(
            "Now",
            (
                Stat(
                    "Documents", "Searchable documents.", (Query('sum(roundhouse_retrieval_versions{state="ready"})'),)
                ),
                Stat("Chunks", "Chunks that searches can find.", (Query("sum(roundhouse_retrieval_chunks)"),)),
                Stat("Waiting versions", "Versions that are not searchable yet.", (Query(f"sum({_WAITING})"),)),
                Stat(
                    "Failed documents",
                    "Versions that failed for good.",
                    (Query('sum(roundhouse_retrieval_versions{state="failed"})'),),
                    red_from=1,
                ),
                Stat(
                    "Not indexed",
                    "Documents that searches cannot find until the vector store is complete again.",
                    (Query("sum(roundhouse_retrieval_unindexed_documents)"),),
                    red_from=1,
                ),
                Stat(
                    "Retrieval", "1 while Prometheus can read it.", (Query('min(up{job="retrieval"})'),), green_from=1
                ),
            ),
        ),
        Section(
            "Searches",
            (
                TimeSeries(
                    "Duration of searches",
                    "Seconds, the embedding of the query and a reranking included.",
                    quantiles("roundhouse_retrieval_search_seconds", "", "mode"),
                    "s",
                ),
                TimeSeries(
                    "Searches",
                    "Answered searches per second.",
                    (Query(sum_rate("roundhouse_retrieval_search_seconds_count", by="mode"), "{{mode}}"),),
                    "ops",
                ),
            ),
        ),
        Section(
            "Documents",
            (
                TimeSeries(
                    "Documents indexed",
                    "Versions per second that became searchable, failed for good, or are tried again.",
                    (
                        Query(sum_rate("roundhouse_retrieval_published_total", by=""), "published"),
                        Query(sum_rate("roundhouse_retrieval_failed_total", by=""), "failed"),
                        Query(sum_rate("roundhouse_retrieval_retries_total", by=""), "tried again"),
                    ),
                    "ops",
                ),
                TimeSeries(
                    "Chunks written",
                    "Chunks per second that were written to the vector store.",
                    (Query(sum_rate("roundhouse_retrieval_chunks_written_total", by=""), "chunks"),),
                    "ops",
                ),
                TimeSeries(
                    "Waiting versions",
                    "Versions that are not searchable yet, by state.",
                    (Query(f"sum by (state) ({_WAITING})", "{{state}}"),),
                ),
                TimeSeries(
                    "Age of the oldest waiting version",
                    "Seconds; 0 while none waits.",
                    (Query("max(roundhouse_retrieval_ingest_lag_seconds)", "oldest"),),
                    "s",
                ),
                TimeSeries(
                    "Stored versions",
                    "`garbage` is replaced or deleted, and still to be removed.",
                    (
                        Query(
                            'sum by (state) (roundhouse_retrieval_versions{state=~"ready|failed|garbage"})', "{{state}}"
                        ),
                    ),
                ),
                TimeSeries(
                    "Documents not indexed",
                    "Documents that searches cannot find until the vector store is complete again.",
                    (Query("sum(roundhouse_retrieval_unindexed_documents)", "documents"),),
                ),
            ),
        ),
    ),
)
