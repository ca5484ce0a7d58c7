import { cleanup, fireEvent, render, screen } from "@testing-library/react";
import { afterEach, expect, it } from "vitest";
import { BarMenu } from "./bar";

afterEach(cleanup);

it("closes a menu at a press elsewhere, where a press gives no focus, and not at one within", () => {
  render(
    <>
      <BarMenu label="More" face="…" side="right">
        <button type="button">Rename</button>
      </BarMenu>
      <p>Elsewhere</p>
    </>,
  );
  const menu = screen.getByRole("button", { name: "More" });
  fireEvent.click(menu);
  fireEvent.pointerDown(screen.getByRole("button", { name: "Rename" }));
  expect(menu.getAttribute("aria-expanded")).toBe("true");
  fireEvent.pointerDown(screen.getByText("Elsewhere"));
  expect(menu.getAttribute("aria-expanded")).toBe("false");
});
