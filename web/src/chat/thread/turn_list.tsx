/** The turns of a conversation. The newest come first, and the older ones after them, so that a long one can be read at once. */
import { startTransition, useEffect, useMemo, useRef, useState } from "react";
import type { Item } from "../../api/items";
import type { ItemTree } from "../item_tree";
import { GROUP_SIZE, groupsOf, groupsThatWait, type ShownTurn, showTurns } from "./shown_turns";
import { TurnView } from "./turn_view";
import type { ConversationActions } from "./use_conversation_actions";
import { NearContext, useIsNear } from "./use_is_near";

/** Newest turns that count as near at once: about a screen of them. */
const NEAR_AT_ONCE = 4;

/** Groups of older turns that are added by one rendering. */
const ADDED_GROUPS = 5;

/** Height by which a turn counts that was never near, with the space before the next one. */
const TURN_REM = 11;

interface TurnListProps {
  /** Items of the shown branch; not empty. */
  path: readonly Item[];
  tree: ItemTree;
  actions: ConversationActions;
}

export function TurnList({ path, tree, actions }: TurnListProps) {
  const turns = useTurns(path, tree);
  const groups = useMemo(() => groupsOf(turns), [turns]);
  const waiting = useWaitingGroups(turns.length);
  const firstNear = Math.floor((turns.length - NEAR_AT_ONCE) / GROUP_SIZE);
  return groups.slice(waiting).map((group, index) => (
    <TurnGroup
      // biome-ignore lint/suspicious/noArrayIndexKey: groups are counted from the conversation's beginning.
      key={waiting + index}
      turns={group}
      isNearAtOnce={waiting + index >= firstNear}
      actions={actions}
    />
  ));
}

interface TurnGroupProps {
  turns: readonly ShownTurn[];
  isNearAtOnce: boolean;
  actions: ConversationActions;
}

/** Some turns that are one box to the browser: one that is far away costs a frame as much as a single empty element. */
function TurnGroup({ turns, isNearAtOnce, actions }: TurnGroupProps) {
  const { element, isNear } = useIsNear(isNearAtOnce);
  return (
    <div
      ref={element}
      // Older messages that come after the newest are no news: they are not read out.
      aria-live={isNearAtOnce ? undefined : "off"}
      className="flex flex-col gap-4 [content-visibility:auto]"
      style={{ containIntrinsicSize: `auto ${turns.length * TURN_REM}rem` }}
    >
      <NearContext value={isNear}>
        {turns.map((turn) => (
          <TurnView key={turn.question?.id ?? turn.answer[0]?.id} turn={turn} actions={actions} />
        ))}
      </NearContext>
    </div>
  );
}

/** Returns the turns of the branch; those that have not changed since the last rendering are the same objects. */
function useTurns(path: readonly Item[], tree: ItemTree): readonly ShownTurn[] {
  const known = useRef<readonly ShownTurn[]>([]);
  const turns = useMemo(() => showTurns(path, tree, known.current), [path, tree]);
  useEffect(() => {
    known.current = turns;
  }, [turns]);
  return turns;
}

/** Returns how many groups of older turns still wait: fewer after each rendering, down to none. */
function useWaitingGroups(turnCount: number): number {
  const [waiting, setWaiting] = useState(() => groupsThatWait(turnCount));
  useEffect(() => {
    // A transition gives way to what the reader does meanwhile. The browser keeps what is seen in its place.
    if (waiting > 0) startTransition(() => setWaiting(Math.max(0, waiting - ADDED_GROUPS)));
  }, [waiting]);
  // Another branch may be shorter.
  return Math.min(waiting, groupsThatWait(turnCount));
}
