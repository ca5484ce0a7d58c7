/** Errors as the page shows them: every code in its own words, filled, and as code what is code. */
import { render } from "@testing-library/react";
import { createElement } from "react";
import { expect, test } from "vitest";
import { ErrorNote } from "../ui/controls";
import ownSteps from "./error_steps.json";
import { readError } from "./errors";

const FOREIGN =
  /[Aa]uthorization|[Xx]-[A-Za-z]+-|[Rr]etry-[Aa]fter|Bearer|\b(GET|POST|PUT|DELETE) \/|\/v1\/|[`{}|]|\b(NAME|MODEL|SECRET)\b/;

test("every code is shown without headers, routes, backticks and placeholders", () => {
  for (const code of Object.keys(ownSteps)) {
    for (const said of [{ model: "qwen", param: "top_k" }, {}]) {
      const error = readError({ error: { code, message: "Read `a.yaml`.", next_steps: ["GET /x"], ...said } }, 400);
      expect(error.fields.nextSteps, code).not.toEqual([]);
      const { container, unmount } = render(
        createElement(ErrorNote, { message: error.message, nextSteps: error.fields.nextSteps }),
      );
      expect(container.textContent, code).not.toMatch(FOREIGN);
      expect(container.querySelector("p code")?.textContent).toBe("a.yaml");
      unmount();
    }
  }
});

test("a step has what the error says of itself, and other words where it says nothing", () => {
  const steps = (fields: Record<string, unknown>, after: string | null) =>
    readError({ error: { message: "No.", ...fields } }, 429, after).fields.nextSteps[0];
  expect(steps({ code: "queue_full" }, "7")).toBe("Try again in 7 seconds.");
  expect(steps({ code: "queue_full" }, null)).toBe("Try again in a few seconds.");
  expect(steps({ code: "model_not_loaded", model: "qwen" }, null)).toBe("Load qwen: Models has the button.");
  expect(steps({ code: "of_an_engine", next_steps: ["Wait."] }, null)).toBe("Wait.");
});
