import { describe, expect, it } from "vitest";
import { expandTemplate, variablesOf } from "./uri_template";

/** Values of RFC 6570, section 3.2. */
const VALUES = { var: "value", hello: "Hello World!", path: "/foo/bar", x: "1024", y: "768", who: "fred", empty: "" };

describe("expandTemplate", () => {
  it.each([
    ["demo://text/{x}", "demo://text/1024"],
    ["{hello}", "Hello%20World%21"],
    ["{x,y}", "1024,768"],
    ["{var:3}", "val"],
    ["{var*}", "value"],
    ["{+hello}", "Hello%20World!"],
    ["file://{+path}/here", "file:///foo/bar/here"],
    ["{path}", "%2Ffoo%2Fbar"],
    ["{#path,x}", "#/foo/bar,1024"],
    ["X{.x,y}", "X.1024.768"],
    ["{/var,x}/here", "/value/1024/here"],
    ["{;x,y}", ";x=1024;y=768"],
    ["{?x,y,none}", "?x=1024&y=768"],
    ["?fixed=yes{&x}", "?fixed=yes&x=1024"],
    ["a{none}b{empty}", "ab"],
    ["{?none}", ""],
    ["no template", "no template"],
  ])("%s gives %s", (template, address) => {
    expect(expandTemplate(template, VALUES)).toBe(address);
  });

  it("keeps what is encoded where reserved characters are kept, and encodes it elsewhere", () => {
    expect(expandTemplate("{+a}{a}", { a: "50%25[é]" })).toBe("50%25[%C3%A9]50%2525%5B%C3%A9%5D");
  });

  it("encodes half a pair of surrogates as the replacement character", () => {
    expect(expandTemplate("{a}", { a: "\uD83D" })).toBe("%EF%BF%BD");
  });
});

describe("variablesOf", () => {
  it("lists each variable once, those of the path as required", () => {
    expect(variablesOf("demo://{kind}/{+path}/{kind}{?page,kind}")).toEqual([
      { name: "kind", isRequired: true },
      { name: "path", isRequired: true },
      { name: "page", isRequired: false },
    ]);
  });

  it("takes modifiers for no part of the name", () => {
    expect(variablesOf("{a:3}{/b*}{}").map(({ name }) => name)).toEqual(["a", "b"]);
  });
});
