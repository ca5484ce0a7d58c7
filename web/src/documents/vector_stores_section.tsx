/** Vector stores: made, filled and deleted. */
import { useMutation, useQuery, useQueryClient } from "@tanstack/react-query";
import { type FormEvent, useId, useState } from "react";
import { useClient } from "../api/access";
import { describeError } from "../api/client";
import { ConfirmButton } from "../ui/confirm_button";
import { Button, ErrorNote, SameByCommand } from "../ui/controls";
import { bytesText, countText } from "../ui/figures";
import { CARD, FILE_INPUT, Field, INPUT, Section } from "../ui/view";
import {
  addStoreFile,
  createStore,
  deleteStore,
  deleteStoreFile,
  storeFilesQuery,
  storeKeys,
  type VectorStore,
  vectorStoresQuery,
} from "./vector_stores";

export function VectorStoresSection() {
  const client = useClient();
  const stores = useQuery(vectorStoresQuery(client));
  return (
    <Section
      title="Vector stores"
      note="Documents of their own, as in OpenAI's API: the search above does not look into them."
    >
      <CreateForm />
      {stores.error && <ErrorNote {...describeError(stores.error)} />}
      <ul aria-label="Vector stores" className="flex flex-col gap-2">
        {stores.data?.map((store) => (
          <StoreCard key={store.id} store={store} />
        ))}
      </ul>
      <SameByCommand command={`curl ${location.origin}/v1/vector_stores`} />
    </Section>
  );
}

function CreateForm() {
  const client = useClient();
  const queries = useQueryClient();
  const [name, setName] = useState("");
  const creation = useMutation({
    mutationFn: () => createStore(client, name.trim()),
    onSuccess: () => {
      setName("");
      return queries.invalidateQueries({ queryKey: storeKeys.all });
    },
  });

  function submit(event: FormEvent) {
    event.preventDefault();
    if (!creation.isPending) creation.mutate();
  }

  return (
    <form onSubmit={submit} aria-label="New vector store" className="flex flex-wrap items-end gap-2">
      <Field label="Name of the vector store">
        <input required className={INPUT} value={name} onChange={(event) => setName(event.target.value)} />
      </Field>
      <Button icon="plus" type="submit" aria-disabled={creation.isPending}>
        Create
      </Button>
      {creation.error && <ErrorNote {...describeError(creation.error)} />}
    </form>
  );
}

function StoreCard({ store }: { store: VectorStore }) {
  const client = useClient();
  const queries = useQueryClient();
  const pickerId = useId();
  const again = () => queries.invalidateQueries({ queryKey: storeKeys.all });
  const adding = useMutation({
    mutationFn: async (files: readonly File[]) => {
      for (const file of files) await addStoreFile(client, store.id, file);
    },
    onSettled: again,
  });
  const deletion = useMutation({ mutationFn: () => deleteStore(client, store.id), onSettled: again });
  const error = adding.error ?? deletion.error;
  const name = store.name || store.id;
  return (
    <li aria-label={name} className={`${CARD} text-sm`}>
      <div className="flex flex-wrap items-center justify-between gap-2">
        <h3 className="min-w-0 font-medium break-all">{name}</h3>
        <ConfirmButton label={`Delete ${name}`} question="Delete it?" onConfirm={() => deletion.mutate()}>
          Delete
        </ConfirmButton>
      </div>
      <p className="text-faint">
        {store.status === "expired" ? "expired; " : ""}
        {countText(store.file_counts.completed, "file")} searchable
        {store.file_counts.in_progress > 0 && `, ${store.file_counts.in_progress} being indexed`}
        {store.file_counts.failed > 0 && `, ${store.file_counts.failed} failed`}; {bytesText(store.usage_bytes)} of
        text; <code>{store.id}</code>
      </p>
      <StoreFiles store={store} />
      <label htmlFor={pickerId} className="mt-2 mb-1 block">
        Add files to {name}
      </label>
      <input
        id={pickerId}
        type="file"
        multiple
        className={FILE_INPUT}
        onChange={(event) => {
          adding.mutate([...(event.target.files ?? [])]);
          event.target.value = "";
        }}
      />
      {error && <ErrorNote {...describeError(error)} />}
    </li>
  );
}

function StoreFiles({ store }: { store: VectorStore }) {
  const client = useClient();
  const queries = useQueryClient();
  const files = useQuery({ ...storeFilesQuery(client, store), placeholderData: (earlier) => earlier });
  const removal = useMutation({
    mutationFn: (file: string) => deleteStoreFile(client, store.id, file),
    onSettled: () => queries.invalidateQueries({ queryKey: storeKeys.all }),
  });
  const error = files.error ?? removal.error;
  return (
    <>
      <ul aria-label={`Files of ${store.name || store.id}`}>
        {files.data?.map((file) => (
          <li key={file.id} className="flex flex-wrap items-center justify-between gap-2">
            <span className="min-w-0 break-all">
              {file.name}: {file.last_error?.message ?? (file.status === "in_progress" ? "being indexed" : file.status)}
            </span>
            <ConfirmButton
              label={`Remove ${file.name}`}
              question="Delete it?"
              onConfirm={() => removal.mutate(file.id)}
            >
              Remove
            </ConfirmButton>
          </li>
        ))}
      </ul>
      {error && <ErrorNote {...describeError(error)} />}
    </>
  );
}
