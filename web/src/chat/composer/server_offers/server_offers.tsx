/** The way to the prompts and resources of MCP servers: a button, and the dialog that it opens. */
import { useQuery } from "@tanstack/react-query";
import { lazy, Suspense, useRef } from "react";
import { useClient } from "../../../api/access";
import { Dialog, IconButton } from "../../../ui/controls";
import { Icon } from "../../../ui/icons";
import { focusControl } from "../../../ui/keys";
import type { PromptDraft } from "./draft_of_prompt";
import { offersQuery } from "./offers";

const OffersList = lazy(() => import("./offers_list"));

/** The button. Not there where no server offers a prompt or a resource. */
export function ServerOffersButton({ onPress }: { onPress: () => void }) {
  const { data: offers = [] } = useQuery(offersQuery(useClient()));
  if (offers.length === 0) return null;
  return (
    <IconButton label="Prompts and resources of servers" aria-haspopup="dialog" onClick={onPress}>
      <Icon name="layers" />
    </IconButton>
  );
}

interface ServerOffersDialogProps {
  isOpen: boolean;
  onClose: () => void;
  /** Takes what was chosen, once the server has sent it. The dialog closes, and the message has the focus. */
  onTake: (draft: PromptDraft) => void;
}

export function ServerOffersDialog({ isOpen, onClose, onTake }: ServerOffersDialogProps) {
  const { data: offers = [] } = useQuery(offersQuery(useClient()));
  const isTaken = useRef(false);
  return (
    <Dialog
      title="Prompts and resources"
      isOpen={isOpen}
      onClose={() => {
        onClose();
        // A dialog that closes gives the focus back to the button.
        if (isTaken.current) focusControl("message");
        isTaken.current = false;
      }}
    >
      <Suspense
        fallback={
          <p role="status" className="text-sm text-faint">
            Loading…
          </p>
        }
      >
        <OffersList
          offers={offers}
          onTake={(draft) => {
            isTaken.current = true;
            onTake(draft);
            onClose();
          }}
        />
      </Suspense>
    </Dialog>
  );
}
