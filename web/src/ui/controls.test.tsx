import { cleanup, render, screen } from "@testing-library/react";
import { afterEach, expect, it } from "vitest";
import { Dialog } from "./controls";
import { Facts } from "./view";

afterEach(cleanup);

it("shows a dialog outside of what it is part of, which may be hidden", () => {
  HTMLDialogElement.prototype.showModal ??= function (this: HTMLDialogElement) {
    this.open = true;
  };
  const { container } = render(
    <div hidden>
      <Dialog title="Rename it" isOpen onClose={() => {}}>
        Title
      </Dialog>
    </div>,
  );
  expect(container.querySelector("dialog")).toBeNull();
  expect(screen.getByRole("dialog", { name: "Rename it" }).textContent).toContain("Title");
});

it("shows what stands in backticks as code, in facts too", () => {
  render(
    <Facts
      entries={[
        ["Notice", "Set `vram_mib`."],
        ["Count", 3],
      ]}
    />,
  );
  expect(screen.getByText("vram_mib").tagName).toBe("CODE");
  expect(screen.getByText("vram_mib").parentElement?.textContent).toBe("Set vram_mib.");
  screen.getByText("3");
});
