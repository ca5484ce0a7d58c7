/** Every declared model with its state, why it is so, and what it serves now: a list, or of many models a table. */
import { useQuery } from "@tanstack/react-query";
import { useState } from "react";
import { useClient } from "../api/access";
import { routeHash } from "../router";
import { showCode } from "../ui/controls";
import { countText, mibText, percentText } from "../ui/figures";
import { Icon } from "../ui/icons";
import { CARD, INPUT } from "../ui/view";
import type { AdminModel } from "./admin_models";
import { historyQuery, type ModelHistory, RateCurve } from "./last_hour";
import { LoadMeter } from "./load_meter";
import { ModelActions } from "./model_actions";
import { filterModels, MOST_LISTED, nextSorting, type Sorting, type SortKey, STATES, sortModels } from "./model_order";
import { memoryText, reasonsOf, requestCount, stateText } from "./model_words";
import type { ModelState } from "./models";
import { StateMark } from "./state_mark";
import { tokenRatesQuery } from "./token_rates";

export function ModelTable({ models }: { models: readonly AdminModel[] }) {
  const client = useClient();
  const rates = useQuery(tokenRatesQuery(client)).data?.rates ?? null;
  const histories = useQuery(historyQuery(client)).data;
  if (models.length === 0) return <p className="text-sm text-faint">No model is declared.</p>;
  if (models.length > MOST_LISTED) return <SortedTable models={models} rates={rates} histories={histories} />;
  return (
    <ul aria-label="Models" className="flex flex-col gap-2">
      {models.map((model) => (
        <ModelRow key={model.name} model={model} rate={rateOf(model, rates)} history={histories?.[model.name]} />
      ))}
    </ul>
  );
}

/** Returns a model's generated tokens per second; null: not known yet. */
function rateOf(model: AdminModel, rates: Readonly<Record<string, number>> | null): number | null {
  return rates === null ? null : (rates[model.name] ?? 0);
}

interface RowProps {
  model: AdminModel;
  rate: number | null;
  history: ModelHistory | undefined;
}

function ModelRow({ model, rate, history }: RowProps) {
  const now = Date.now() / 1000;
  return (
    <li aria-label={model.name} className={CARD}>
      <div className="flex flex-wrap items-start justify-between gap-2">
        <div className="min-w-0">
          <h3 className="flex flex-wrap items-center gap-x-3 font-medium">
            <a href={routeHash("models", model.name)} className="break-all underline underline-offset-2">
              {model.name}
            </a>
            <StateMark state={model.runtime_state} text={stateText(model)} />
          </h3>
          <p className="text-sm text-faint">
            {model.resolved_backend}; {showCode(model.statement.reason)}
          </p>
        </div>
        <ModelActions model={model} />
      </div>
      <LoadMeter model={model} now={now} />
      <div className="mt-2 flex flex-wrap items-center justify-between gap-2">
        <Figures model={model} rate={rate} />
        <RateCurve history={history} className="w-40 max-md:w-full" />
      </div>
      <Reasons model={model} now={now} className="mt-2" />
    </li>
  );
}

function Reasons({ model, now, className = "" }: { model: AdminModel; now: number; className?: string }) {
  const reasons = reasonsOf(model, now);
  if (reasons.length === 0) return null;
  return (
    <ul
      aria-label={`Why ${model.name} is ${model.runtime_state}`}
      className={`max-w-[90ch] text-sm text-warn ${className}`}
    >
      {reasons.map((reason) => (
        <li key={reason} className="break-words">
          {showCode(reason)}
        </li>
      ))}
    </ul>
  );
}

function Figures({ model, rate }: { model: AdminModel; rate: number | null }) {
  const figures: [string, string][] = [
    ["replicas", `${model.loaded_replicas} of ${model.replicas}`],
    ["running", requestCount(model.inflight_requests)],
    ["waiting", requestCount(model.queue_depth)],
    ["tokens/s", rateFigure(rate)],
    ["memory", memoryText(model)],
  ];
  if (model.prefill_progress !== null)
    figures.push(["prompts read", `${model.prefill_requests}: ${percentText(model.prefill_progress)}`]);
  return (
    <dl className="flex flex-wrap gap-x-6 gap-y-1 text-sm">
      {figures.map(([name, value]) => (
        <div key={name} className="flex gap-1.5">
          <dt className="text-faint">{name}</dt>
          <dd className="tabular-nums">{value}</dd>
        </div>
      ))}
    </dl>
  );
}

function rateFigure(rate: number | null): string {
  return rate === null ? "–" : rate.toFixed(1);
}

/** `isWide`: the column is left out on a phone, where the model's name has its state below it. */
const COLUMNS: readonly { key: SortKey; title: string; isFigure: boolean; isWide?: boolean }[] = [
  { key: "name", title: "Name", isFigure: false },
  { key: "state", title: "State", isFigure: false, isWide: true },
  { key: "memory", title: "Memory", isFigure: true },
  { key: "tokens", title: "Tokens/s", isFigure: true },
  { key: "waiting", title: "Waiting", isFigure: true },
];

interface TableProps {
  models: readonly AdminModel[];
  rates: Readonly<Record<string, number>> | null;
  histories: Readonly<Record<string, ModelHistory>> | undefined;
}

function SortedTable({ models, rates, histories }: TableProps) {
  const [text, setText] = useState("");
  const [state, setState] = useState<ModelState | "">("");
  const [sorting, setSorting] = useState<Sorting>({ key: "name", isDescending: false });
  const shown = sortModels(filterModels(models, text, state), sorting, rates);
  return (
    <>
      <search className="flex flex-wrap items-center gap-2">
        <input
          type="search"
          aria-label="Find a model"
          placeholder="Name or backend"
          value={text}
          onChange={(event) => setText(event.target.value)}
          className={`${INPUT} max-w-72 flex-1 basis-40`}
        />
        <select
          aria-label="State"
          value={state}
          onChange={(event) => setState(event.target.value as ModelState | "")}
          className={`${INPUT} max-w-40 flex-1 basis-32`}
        >
          <option value="">all states</option>
          {STATES.map((each) => (
            <option key={each}>{each}</option>
          ))}
        </select>
        <span role="status" className="text-sm text-faint">
          {shown.length === models.length
            ? countText(models.length, "model")
            : `${shown.length} of ${countText(models.length, "model")}`}
        </span>
      </search>
      <table aria-label="Models" className="w-full border-collapse text-sm">
        <thead>
          <tr className="border-b border-line text-left">
            {COLUMNS.map((column) => (
              <Heading key={column.key} column={column} sorting={sorting} onSort={setSorting} />
            ))}
            <th scope="col" className="max-md:hidden">
              <span className="sr-only">Actions</span>
            </th>
          </tr>
        </thead>
        <tbody>
          {shown.map((model) => (
            <TableRow key={model.name} model={model} rate={rateOf(model, rates)} history={histories?.[model.name]} />
          ))}
        </tbody>
      </table>
      {shown.length === 0 && <p className="text-sm text-faint">No model is like this.</p>}
    </>
  );
}

interface HeadingProps {
  column: (typeof COLUMNS)[number];
  sorting: Sorting;
  onSort: (sorting: Sorting) => void;
}

function Heading({ column: { key, title, isFigure, isWide }, sorting, onSort }: HeadingProps) {
  const isSorted = sorting.key === key;
  const order = !isSorted ? "none" : sorting.isDescending ? "descending" : "ascending";
  return (
    <th
      scope="col"
      aria-sort={order}
      className={`font-medium ${isFigure ? "text-right" : ""} ${isWide ? "max-md:hidden" : ""}`}
    >
      <button
        type="button"
        onClick={() => onSort(nextSorting(sorting, key))}
        className={`inline-flex min-h-9 items-center gap-1 rounded-md px-1 max-md:text-xs md:px-2 hover:bg-panel ${isSorted ? "" : "text-faint"}`}
      >
        {title}
        {isSorted && <Icon name={sorting.isDescending ? "down" : "up"} />}
      </button>
    </th>
  );
}

const CELL = "px-1 pt-2 align-top md:px-2";
const FIGURE = `${CELL} text-right tabular-nums whitespace-nowrap`;

function TableRow({ model, rate, history }: RowProps) {
  const now = Date.now() / 1000;
  const state = <StateMark state={model.runtime_state} text={stateText(model)} />;
  return (
    <>
      <tr>
        <th scope="row" className={`${CELL} text-left font-normal`}>
          <a href={routeHash("models", model.name)} className="font-medium break-all underline underline-offset-2">
            {model.name}
          </a>
          <span className="block md:hidden">{state}</span>
          <span className="block text-xs text-faint">{model.resolved_backend}</span>
        </th>
        <td className={`${CELL} max-md:hidden`}>{state}</td>
        <td className={FIGURE}>{model.vram_estimate_mib === null ? "–" : mibText(model.vram_estimate_mib)}</td>
        <td className={FIGURE}>
          {rateFigure(rate)}
          <RateCurve history={history} className="ml-auto block w-24 max-md:hidden" />
        </td>
        <td className={FIGURE}>{requestCount(model.queue_depth)}</td>
        <td className={`${CELL} max-md:hidden`}>
          <div className="flex justify-end">
            <ModelActions model={model} />
          </div>
        </td>
      </tr>
      <tr className="border-b border-line">
        <td colSpan={COLUMNS.length + 1} className="px-1 pb-2 md:px-2">
          <LoadMeter model={model} now={now} />
          <Reasons model={model} now={now} />
        </td>
      </tr>
    </>
  );
}
