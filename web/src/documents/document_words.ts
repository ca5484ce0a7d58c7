/** Documents and hits in words. Pure. */
import { countText, durationText } from "../ui/figures";
import type { Chunk, Document, HitScores, SearchMode } from "./documents";

/** Returns where a document stands: `ready, 4 chunks`, `embedding, 12 of 40 chunks`. `now`: Unix time in seconds. */
export function documentStatusText(document: Document, now: number): string {
  const { status, progress, error, chunks } = document;
  if (status === "ready") return chunks === null ? "ready" : `ready, ${countText(chunks, "chunk")}`;
  if (status === "queued" && error !== null && error.retry_at !== null)
    return `waits, and is tried again ${error.retry_at <= now ? "now" : `in ${durationText(error.retry_at - now)}`}`;
  if (progress?.chunks_total) return `${status}, ${progress.chunks} of ${countText(progress.chunks_total, "chunk")}`;
  return status;
}

/** Returns the share of a document that has vectors, 0 to 1; null: not known. */
export function progressShare(document: Pick<Document, "progress">): number | null {
  const { progress } = document;
  return progress?.chunks_total ? progress.chunks / progress.chunks_total : null;
}

/** Returns where a chunk is: its bytes, page, and how much it repeats of the one before (null: there is none). */
export function chunkPlace(chunk: Chunk, before: Chunk | null): string {
  const parts = [`bytes ${chunk.start} to ${chunk.end}`];
  if (chunk.page !== null) parts.push(`page ${chunk.page}`);
  if (before !== null && chunk.start < before.end)
    parts.push(`repeats ${before.end - chunk.start} bytes of the one before`);
  return parts.join(", ");
}

/** Returns why a hit was found, by rankings: `place 2 by words (BM25 0.55), place 1 by meaning (cosine 0.71)`. */
export function whyText(scores: HitScores): string {
  const parts: string[] = [];
  if (scores.sparse !== null) parts.push(rankText("by words", scores.sparse_rank, `BM25 ${scoreText(scores.sparse)}`));
  if (scores.dense !== null) parts.push(rankText("by meaning", scores.dense_rank, `cosine ${scoreText(scores.dense)}`));
  if (scores.rerank !== null) parts.push(`reranked to ${scoreText(scores.rerank)}`);
  return parts.join(", ");
}

/** Returns a score with three digits. */
export function scoreText(score: number): string {
  return score.toPrecision(3);
}

/** Returns what a mode does, in words. */
export function modeText(mode: SearchMode): string {
  return { sparse: "by words", dense: "by meaning", hybrid: "by words and meaning" }[mode];
}

function rankText(how: string, rank: number | null, score: string): string {
  return rank === null ? `${how} (${score})` : `place ${rank} ${how} (${score})`;
}
