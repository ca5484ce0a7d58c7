/** Asks for a key, where the gateway wants one. */
import { useQueryClient } from "@tanstack/react-query";
import { type FormEvent, useState } from "react";
import { Button } from "../ui/controls";
import { useAccess } from "./access";

export function SignIn() {
  const { signIn, hasKey } = useAccess();
  const queries = useQueryClient();
  const [key, setKey] = useState("");
  const [remember, setRemember] = useState(false);

  function submit(event: FormEvent) {
    event.preventDefault();
    signIn(key.trim(), remember);
    void queries.resetQueries();
  }

  return (
    <form onSubmit={submit} className="mx-auto mt-16 flex max-w-md flex-col gap-3 p-4">
      <h1 className="text-xl font-semibold">Sign in</h1>
      {hasKey && <p role="alert">The gateway does not accept the key. It may be wrong, or have expired.</p>}
      <label className="flex flex-col gap-1 text-sm">
        API key
        <input
          type="password"
          autoComplete="off"
          required
          value={key}
          onChange={(event) => setKey(event.target.value)}
          className="rounded-md border border-line bg-raised px-3 py-2 font-mono"
        />
      </label>
      <label className="flex items-center gap-2 text-sm">
        <input type="checkbox" checked={remember} onChange={(event) => setRemember(event.target.checked)} />
        Keep it in this browser until I sign out
      </label>
      <Button look="main" type="submit">
        Sign in
      </Button>
    </form>
  );
}
