/** Errors of the gateway, in one form: every answer with a status of 400 or more has the same envelope. */
import ownSteps from "./error_steps.json";

export interface ErrorFields {
  message: string;
  code: string;
  status: number;
  /** What to do, in the words of the page. */
  nextSteps: string[];
  requestId: string | null;
  retryAfterS: number | null;
}

/** An answer of the gateway that is an error. `message` says what is wrong, `fields.nextSteps` what to do. */
export class ApiError extends Error {
  readonly fields: ErrorFields;

  constructor(fields: ErrorFields) {
    super(fields.message);
    this.name = "ApiError";
    this.fields = fields;
  }
}

/** No answer came: the gateway, or the way to it, is away. The request may have been carried out. */
export class NetworkError extends Error {
  constructor() {
    super("The gateway cannot be reached.");
    this.name = "NetworkError";
  }
}

/** Returns the error that an envelope `{error: {...}}` describes; of another body, what the status says. */
export function readError(body: unknown, status: number, retryAfter: string | null = null): ApiError {
  const error = isRecord(body) && isRecord(body.error) ? body.error : {};
  const retryAfterS = retryAfter !== null && /^\d+$/.test(retryAfter) ? Number(retryAfter) : null;
  return new ApiError({
    message: typeof error.message === "string" ? error.message : `The gateway answered with status ${status}.`,
    code: typeof error.code === "string" ? error.code : "unknown",
    status: typeof error.status === "number" ? error.status : status,
    nextSteps: readSteps({ ...error, retry_after_s: retryAfterS }),
    requestId: typeof error.request_id === "string" ? error.request_id : null,
    retryAfterS,
  });
}

/**
 * Returns what to do about an error of the API, given as its fields: in the page's own words for its code, which
 * contract/error_codes.toml declares, else as the error says it.
 */
export function readSteps(error: Record<string, unknown>): string[] {
  const own = (ownSteps as Record<string, string[]>)[String(error.code)];
  if (own !== undefined) return own.map((step) => fillStep(step, error)).filter((step) => step !== null);
  const steps = Array.isArray(error.next_steps) ? error.next_steps : [];
  return steps.filter((step): step is string => typeof step === "string");
}

/**
 * Returns a step with its placeholders filled: `{model}` becomes the error's field, `{model|the model}` `the model` if
 * there is no such field. Null: a field is missing, and there are no such words. contract/errors.py does the same.
 */
function fillStep(step: string, error: Record<string, unknown>): string | null {
  let isComplete = true;
  const filled = step.replaceAll(/\{(\w+)(?:\|([^}]*))?\}/g, (_, name: string, words: string | undefined) => {
    const value = error[name] ?? words;
    isComplete &&= value !== undefined;
    return String(value);
  });
  return isComplete ? filled : null;
}

/** Returns whether a value is an object with named fields. */
export function isRecord(value: unknown): value is Record<string, unknown> {
  return typeof value === "object" && value !== null && !Array.isArray(value);
}
