/** Generated tokens per second, from two samples of the gateway's counters at `/metrics`. */
import { queryOptions } from "@tanstack/react-query";
import type { ApiClient } from "../api/client";

export interface TokenSample {
  /** Milliseconds of a monotonic clock. */
  at: number;
  /** Model to the tokens that its engines have generated since the gateway's start. */
  tokens: Record<string, number>;
}

const SERIES = /^roundhouse_gateway_tokens_total\{(.*)\} (\S+)$/;
const LABEL = /(\w+)="((?:[^"\\]|\\.)*)"/g;

/** Returns the generated tokens by model, of a text in Prometheus' exposition format. */
export function tokensOf(exposition: string): Record<string, number> {
  const tokens: Record<string, number> = {};
  for (const line of exposition.split("\n")) {
    const found = SERIES.exec(line);
    if (found === null) continue;
    const labels = Object.fromEntries(
      [...(found[1] ?? "").matchAll(LABEL)].map(([, name, value]) => [name, unescaped(value ?? "")]),
    );
    if (labels.direction === "out" && labels.model !== undefined)
      tokens[labels.model] = (tokens[labels.model] ?? 0) + Number(found[2]);
  }
  return tokens;
}

/** Returns tokens per second by model between two samples; null: not known. A counter that fell began anew at 0. */
export function tokenRates(before: TokenSample | null, after: TokenSample): Record<string, number> | null {
  if (before === null || after.at <= before.at) return null;
  const seconds = (after.at - before.at) / 1000;
  return Object.fromEntries(
    Object.entries(after.tokens).map(([model, now]) => {
      const earlier = before.tokens[model] ?? 0;
      return [model, (now >= earlier ? now - earlier : now) / seconds];
    }),
  );
}

/** The rates since the query's last answer; null: there was none yet. */
export function tokenRatesQuery(client: ApiClient) {
  return queryOptions({
    queryKey: ["token-rates"],
    queryFn: async ({ client: queries, queryKey }) => {
      const before = queries.getQueryData<{ sample: TokenSample }>(queryKey)?.sample ?? null;
      const text = await (await client.fetch("/metrics")).text();
      const sample = { at: performance.now(), tokens: tokensOf(text) };
      return { sample, rates: tokenRates(before, sample) };
    },
    refetchInterval: 3000,
  });
}

function unescaped(text: string): string {
  return text.replace(/\\(.)/g, (_, escaped: string) => (escaped === "n" ? "\n" : escaped));
}
