import { expect, test } from "vitest";
import { tokenRates, tokensOf } from "./token_rates";

const EXPOSITION = `# HELP roundhouse_gateway_tokens Tokens
roundhouse_gateway_tokens_total{model="a",direction="in"} 50
roundhouse_gateway_tokens_total{model="a",direction="out"} 12.0
roundhouse_gateway_tokens_total{model="b \\"q\\", {x}",direction="out"} 1e3
roundhouse_gateway_cached_tokens_total{model="a"} 7
`;

test("only generated tokens count", () => {
  expect(tokensOf(EXPOSITION)).toEqual({ a: 12, 'b "q", {x}': 1000 });
});

test("a rate needs two samples, and a counter that fell began anew", () => {
  const after = { at: 3000, tokens: { a: 22, b: 4 } };
  expect(tokenRates(null, after)).toBeNull();
  expect(tokenRates({ at: 1000, tokens: { a: 12, b: 100 } }, after)).toEqual({ a: 5, b: 2 });
  expect(tokenRates(after, after)).toBeNull();
});
