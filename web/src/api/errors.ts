/** Errors of the gateway, in one form: every answer with a status of 400 or more has the same envelope. */

export interface ErrorFields {
  message: string;
  code: string;
  status: number;
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
  const steps = Array.isArray(error.next_steps) ? error.next_steps : [];
  return new ApiError({
    message: typeof error.message === "string" ? error.message : `The gateway answered with status ${status}.`,
    code: typeof error.code === "string" ? error.code : "unknown",
    status: typeof error.status === "number" ? error.status : status,
    nextSteps: steps.filter((step): step is string => typeof step === "string"),
    requestId: typeof error.request_id === "string" ? error.request_id : null,
    retryAfterS: retryAfter !== null && /^\d+$/.test(retryAfter) ? Number(retryAfter) : null,
  });
}

/** Returns whether a value is an object with named fields. */
export function isRecord(value: unknown): value is Record<string, unknown> {
  return typeof value === "object" && value !== null && !Array.isArray(value);
}
