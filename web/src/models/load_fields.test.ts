import { expect, test } from "vitest";
import {
  choicesOf,
  constraintText,
  effectiveValue,
  type LoadConstraint,
  loadBody,
  loadCommand,
  readValue,
} from "./load_fields";

const CONTEXT: LoadConstraint = {
  kind: "integer",
  minimum: 512,
  maximum: 131072,
  step: 256,
  unit: "tokens",
  default: 4096,
};
const DRAFT: LoadConstraint = { kind: "string_or_null", null_means: "no draft model", format: "hf_id_or_local_path" };
const BITS: LoadConstraint = { kind: "enum", allowed_values: [4, 8, "16"] };

test("constraints are told in words", () => {
  expect([CONTEXT, DRAFT, BITS, { kind: "float", minimum: 0 } as LoadConstraint].map(constraintText)).toEqual([
    "512 to 131072 tokens, in steps of 256",
    "null: no draft model",
    "",
    "0 or more",
  ]);
});

test("few values are a choice, with null where it is allowed", () => {
  expect(choicesOf(CONTEXT)).toBeNull();
  expect(choicesOf(BITS)).toEqual(["4", "8", "16"]);
  expect(choicesOf({ kind: "integer_or_null", allowed_values: [1, null] })).toEqual(["1", "null"]);
  expect(choicesOf({ kind: "integer_or_null", allowed_values: [1] })).toEqual(["1", "null"]);
});

test("texts become values of the constraint's kind", () => {
  expect(readValue(" 8192 ", CONTEXT)).toBe(8192);
  expect(readValue("", CONTEXT)).toBeUndefined();
  expect(readValue("0.25", { kind: "float" })).toBe(0.25);
  expect([readValue("8", BITS), readValue("16", BITS)]).toEqual([8, "16"]);
  expect([readValue("null", DRAFT), readValue("8", DRAFT)]).toEqual([null, "8"]);
  expect(() => readValue("1.5", CONTEXT)).toThrow("1.5 is no whole number.");
  expect(() => readValue("null", CONTEXT)).toThrow("null is no number.");
});

test("a body has what was entered, and nothing else", () => {
  const constraints = { n_ctx: CONTEXT, draft: DRAFT };
  expect(loadBody({ n_ctx: "", draft: "null", replicas: "2" }, constraints)).toEqual({
    values: { draft: null, replicas: 2 },
    problems: {},
  });
  expect(loadBody({ n_ctx: "many" }, constraints)).toEqual({ values: {}, problems: { n_ctx: "many is no number." } });
});

test("a key of the load in force rules, also with null; then the definition, then the default", () => {
  expect(effectiveValue("n_ctx", CONTEXT, { n_ctx: 1024 }, { n_ctx: 2048 })).toBe(1024);
  expect(effectiveValue("n_ctx", CONTEXT, { n_ctx: null }, { n_ctx: 2048 })).toBe(4096);
  expect(effectiveValue("n_ctx", CONTEXT, {}, { n_ctx: 2048 })).toBe(2048);
  expect(effectiveValue("draft", DRAFT, { draft: null }, { draft: "tiny" })).toBeNull();
  expect(effectiveValue("draft", DRAFT, {}, {})).toBeUndefined();
  const speculation: LoadConstraint = { kind: "enum", allowed_values: ["draft-mtp"], default: "draft-mtp" };
  expect(effectiveValue("llama_server_spec_type", speculation, {}, { llama_server_spec_type: null })).toBeNull();
});

test("the command is the one that a shell takes", () => {
  expect(loadCommand("a b", { n_ctx: 1024, draft: null, replicas: 2 }, true)).toBe(
    "roundhouse load 'a b' --set n_ctx=1024 --set draft=null --replicas 2 --restart",
  );
  expect(loadCommand("it's", {}, false)).toBe("roundhouse load 'it'\\''s'");
});
