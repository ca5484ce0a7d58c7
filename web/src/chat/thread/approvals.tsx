/** Calls of tools that wait for the user: allowed once, allowed always in this conversation, or refused. */
import { createContext, type ReactNode, use, useMemo, useState } from "react";
import { describeError } from "../../api/client";
import type { Item } from "../../api/items";
import { Button, ErrorNote } from "../../ui/controls";
import { isUserItem } from "../item_tree";
import { FoldedText, prettyJson } from "./folded_text";
import { toolNameOf } from "./tool_call";
import type { ConversationActions } from "./use_conversation_actions";

export type Decision = "once" | "always" | "refuse";

interface Approvals {
  /** Requests that wait for a decision, by id. */
  pending: ReadonlyMap<string, Item>;
  /** Decisions of the user that are not sent yet: the answer goes on when all requests have one. */
  decisions: ReadonlyMap<string, Decision>;
  /** What the conversation's items say of earlier requests, by id. */
  approved: ReadonlyMap<string, boolean>;
  decide: (id: string, decision: Decision) => void;
  error: unknown;
}

const NO_APPROVALS: Approvals = {
  pending: new Map(),
  decisions: new Map(),
  approved: new Map(),
  decide: () => {},
  error: null,
};

const ApprovalsContext = createContext(NO_APPROVALS);

interface ProviderProps {
  /** The items of the shown branch, in order. */
  path: readonly Item[];
  /** Whether an answer is being made. */
  isRunning: boolean;
  actions: ConversationActions;
  children: ReactNode;
}

export function ApprovalsProvider({ path, isRunning, actions, children }: ProviderProps) {
  const [decisions, setDecisions] = useState<ReadonlyMap<string, Decision>>(new Map());
  const [error, setError] = useState<unknown>(null);
  const { pending, approved } = useMemo(() => readApprovals(path), [path]);
  const approvals = useMemo((): Approvals => {
    async function send(made: ReadonlyMap<string, Decision>) {
      try {
        setError(null);
        await actions.decideCalls(
          [...pending.values()].map((item) => ({ item, decision: made.get(item.id) ?? "refuse" })),
          path.at(-1)?.id ?? "",
        );
      } catch (problem) {
        setDecisions(new Map());
        setError(problem);
      }
    }
    return {
      pending: isRunning ? NO_APPROVALS.pending : pending,
      approved,
      decisions,
      error,
      decide: (id, decision) => {
        const made = new Map(decisions).set(id, decision);
        setDecisions(made);
        if ([...pending.keys()].every((each) => made.has(each))) void send(made);
      },
    };
  }, [path, pending, approved, decisions, isRunning, actions, error]);
  return <ApprovalsContext value={approvals}>{children}</ApprovalsContext>;
}

/** Returns the requests at the end of a branch that have no answer, and the answers of all others. */
export function readApprovals(path: readonly Item[]): Pick<Approvals, "pending" | "approved"> {
  const approved = new Map<string, boolean>();
  let pending = new Map<string, Item>();
  for (const item of path) {
    if (item.type === "mcp_approval_request") pending.set(item.id, item);
    else if (item.type === "mcp_approval_response" && item.approval_request_id) {
      approved.set(item.approval_request_id, item.approve === true);
      pending.delete(item.approval_request_id);
    } else if (isUserItem(item)) pending = new Map();
  }
  return { pending, approved };
}

export function ApprovalRequest({ item }: { item: Item }) {
  const { pending, decisions, approved, decide, error } = use(ApprovalsContext);
  const decision = decisions.get(item.id);
  const isOpen = pending.has(item.id) && decision === undefined;
  return (
    <fieldset
      aria-label={`Call of ${toolNameOf(item)}`}
      className="min-w-0 rounded-md border border-warn px-3 py-2 text-sm"
    >
      <p>
        The model wants to call <code className="break-all">{toolNameOf(item)}</code>.
      </p>
      <FoldedText label="Arguments" text={prettyJson(item.arguments ?? "")} />
      {isOpen ? (
        <div className="flex flex-wrap gap-2">
          <Button look="main" onClick={() => decide(item.id, "once")}>
            Allow once
          </Button>
          <Button onClick={() => decide(item.id, "always")}>Always allow this tool here</Button>
          <Button look="danger" onClick={() => decide(item.id, "refuse")}>
            Refuse
          </Button>
        </div>
      ) : (
        <p className="text-faint">{sayDecision(decision, approved.get(item.id))}</p>
      )}
      {isOpen && error !== null && <ErrorNote {...describeError(error)} />}
    </fieldset>
  );
}

function sayDecision(decision: Decision | undefined, approved: boolean | undefined): string {
  if (approved ?? (decision !== undefined && decision !== "refuse")) return "You allowed this call.";
  return approved === false || decision === "refuse" ? "You refused this call." : "This call was not answered.";
}
