/** What lies in the models folders, which models use it; serving what none uses, and removal of what was downloaded. */
import { useMutation, useQuery, useQueryClient } from "@tanstack/react-query";
import { useClient } from "../../api/access";
import { describeError } from "../../api/client";
import { routeHash } from "../../router";
import { ConfirmButton } from "../../ui/confirm_button";
import { Button, ErrorNote, SameByCommand, showCode } from "../../ui/controls";
import { bytesText, mibText } from "../../ui/figures";
import { Section } from "../../ui/view";
import { useText } from "./download_words";
import { type FileMemory, type ModelFile, modelFilesQuery, removeModelFiles, serveModelFile } from "./downloads";

export function ModelFilesSection() {
  const client = useClient();
  const queries = useQueryClient();
  const files = useQuery(modelFilesQuery(client));
  const removal = useMutation({
    mutationFn: (path: string) => removeModelFiles(client, path),
    onSettled: () => queries.invalidateQueries({ queryKey: ["admin"] }),
  });
  const serving = useMutation({
    mutationFn: (path: string) => serveModelFile(client, path),
    onSettled: () => queries.invalidateQueries({ queryKey: ["admin"] }),
  });
  return (
    <Section title="Models folder">
      {files.error && <ErrorNote {...describeError(files.error)} />}
      {files.data !== undefined && (
        <p className="text-sm text-faint">
          {files.data.folders.join(", ")}: {bytesText(files.data.total_bytes)}
          {!files.data.is_complete && "; there are more files than are listed"}
        </p>
      )}
      <ul aria-label="Models folder" className="flex flex-col gap-1">
        {files.data?.models.map((file) => (
          <FileRow
            key={`${file.folder}/${file.path}`}
            file={file}
            isServing={serving.isPending}
            onServe={() => serving.mutate(`${file.folder}/${file.path}`)}
            onRemove={() => removal.mutate(file.path)}
          />
        ))}
      </ul>
      {serving.error && <ErrorNote {...describeError(serving.error)} />}
      {serving.data !== undefined && (
        <p role="status" className="text-sm">
          Served as{" "}
          <a href={routeHash("models", serving.data.name)} className="underline underline-offset-2">
            {serving.data.name}
          </a>
          , once it is loaded.
        </p>
      )}
      {removal.error && <ErrorNote {...describeError(removal.error)} />}
      {removal.data !== undefined && (
        <p role="status" className="text-sm">
          Removed: {removal.data.removed.join(", ")}; {bytesText(removal.data.freed_bytes)} are free again.
        </p>
      )}
      <SameByCommand command="roundhouse models" />
    </Section>
  );
}

function memoryText({ memory_mib }: FileMemory): string {
  return memory_mib === null ? "memory not known" : `${mibText(memory_mib)} of memory`;
}

interface FileRowProps {
  file: ModelFile;
  isServing: boolean;
  onServe: () => void;
  onRemove: () => void;
}

function FileRow({ file, isServing, onServe, onRemove }: FileRowProps) {
  const byModel = Object.entries(file.memory_by_model).map(([name, each]) => `${name} ${memoryText(each)}`);
  const memory = byModel.join(", ") || memoryText(file);
  return (
    <li
      aria-label={file.path}
      className="flex flex-wrap items-center justify-between gap-2 border-b border-line py-1 text-sm"
    >
      <span className="min-w-0">
        <span className="font-mono break-all">{file.path}</span>
        <span className="block text-faint">
          {bytesText(file.size)}, {memory}; {showCode(useText(file))}
          {file.origin === "hand" && "; put here by hand"}
        </span>
      </span>
      {file.serve_as !== null && (
        <Button
          icon="play"
          aria-label={`Serve ${file.path}`}
          title={`Declares the model ${file.serve_as}, and loads it`}
          aria-disabled={isServing}
          onClick={() => !isServing && onServe()}
        >
          Serve it
        </Button>
      )}
      {file.origin === "download" && (
        <ConfirmButton label={`Remove ${file.path}`} question="Remove it from the disk?" onConfirm={onRemove}>
          Remove
        </ConfirmButton>
      )}
    </li>
  );
}
