/** The attachments of a message that is being written. */
import { useCallback, useState } from "react";
import type { Attachment } from "./attachment";
import { type PdfForm, readAttachment } from "./read_attachment";

export interface Attachments {
  list: readonly Attachment[];
  /** Number of files that are being read. */
  reading: number;
  /** Why files could not be attached. */
  problems: readonly string[];
  add: (files: Iterable<File>) => Promise<void>;
  remove: (id: string) => void;
  /** Reads a PDF anew, as text or as pages. */
  convert: (attachment: Attachment, form: PdfForm) => Promise<void>;
  clear: () => void;
}

export function useAttachments(): Attachments {
  const [list, setList] = useState<readonly Attachment[]>([]);
  const [reading, setReading] = useState(0);
  const [problems, setProblems] = useState<readonly string[]>([]);

  const reporting = useCallback(async (read: () => Promise<void>) => {
    setReading((number) => number + 1);
    try {
      await read();
    } catch (error) {
      setProblems((before) => [...before, error instanceof Error ? error.message : String(error)]);
    } finally {
      setReading((number) => number - 1);
    }
  }, []);

  const add = useCallback(
    async (files: Iterable<File>) => {
      setProblems([]);
      for (const file of files) {
        await reporting(async () => {
          const attachment = await readAttachment(file);
          setList((before) => [...before, attachment]);
        });
      }
    },
    [reporting],
  );
  const remove = useCallback((id: string) => setList((before) => before.filter((each) => each.id !== id)), []);
  const convert = useCallback(
    (attachment: Attachment, form: PdfForm) =>
      reporting(async () => {
        if (attachment.pdf === null) return;
        const anew = { ...(await readAttachment(attachment.pdf, form)), id: attachment.id };
        setList((before) => before.map((each) => (each.id === attachment.id ? anew : each)));
      }),
    [reporting],
  );
  const clear = useCallback(() => {
    setList([]);
    setProblems([]);
  }, []);
  return { list, reading, problems, add, remove, convert, clear };
}
