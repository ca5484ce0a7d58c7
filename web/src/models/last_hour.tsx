/** What models did in the last hour: curves of what the gateway keeps by minutes. */
import { queryOptions, useQuery } from "@tanstack/react-query";
import { useClient } from "../api/access";
import type { ApiClient } from "../api/client";
import type { components } from "../api/openapi";
import { mostOf, Sparkline } from "../ui/sparkline";
import { CARD, Section } from "../ui/view";
import { every } from "./admin_models";

export type ModelHistory = components["schemas"]["ModelHistory"];

/** The minutes of each model, by its name. */
export function historyQuery(client: ApiClient) {
  return queryOptions({
    queryKey: ["admin-history"],
    queryFn: async () =>
      (await client.request<components["schemas"]["MetricsHistoryAnswer"]>("/v1/metrics/history")).models,
    refetchInterval: every(30_000),
  });
}

/** Returns tokens per second in words. */
export function rateText(rate: number): string {
  return rate.toFixed(rate < 100 ? 1 : 0);
}

/** Returns a time to the first token in words: `0.25 s`. */
export function firstTokenText(seconds: number): string {
  return seconds < 1 ? `${Math.round(seconds * 1000)} ms` : `${seconds.toFixed(1)} s`;
}

/** The curve of a model's tokens per second; nothing until there are two minutes of it. */
export function RateCurve({ history, className = "" }: { history: ModelHistory | undefined; className?: string }) {
  if (history === undefined || history.tokens_per_s.length < 2) return null;
  return <Sparkline name="tokens per second" values={history.tokens_per_s} textOf={rateText} className={className} />;
}

export function LastHourSection({ model }: { model: string }) {
  const client = useClient();
  const history = useQuery(historyQuery(client)).data?.[model];
  const curves = [
    ["tokens per second", history?.tokens_per_s ?? [], rateText],
    ["most requests waiting", history?.waiting ?? [], String],
    ["time to the first token", history?.first_token_s ?? [], firstTokenText],
  ] as const;
  return (
    <Section title="Last hour">
      {history === undefined || history.waiting.length === 0 ? (
        <p className="text-sm text-faint">The gateway has seen no whole minute of it yet.</p>
      ) : (
        <ul className="grid gap-2 md:grid-cols-3">
          {curves.map(([name, values, textOf]) => (
            <li key={name} className={CARD}>
              <p className="flex justify-between gap-2 text-sm" aria-hidden="true">
                <span className="text-faint">{name}</span>
                <span className="tabular-nums">most {known(mostOf(values), textOf)}</span>
              </p>
              <p className="text-lg font-semibold tabular-nums" aria-hidden="true">
                {known(values.at(-1) ?? null, textOf)}
              </p>
              <Sparkline name={name} values={values} textOf={textOf} className="w-full" />
            </li>
          ))}
        </ul>
      )}
    </Section>
  );
}

function known(value: number | null, textOf: (value: number) => string): string {
  return value === null ? "–" : textOf(value);
}
