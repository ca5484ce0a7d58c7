import { act, cleanup, fireEvent, render, screen } from "@testing-library/react";
import { afterEach, beforeEach, expect, it, vi } from "vitest";
import { useFollowedScroll } from "./use_followed_scroll";

let grow = () => {};

beforeEach(() => {
  vi.stubGlobal(
    "ResizeObserver",
    class {
      constructor(notify: () => void) {
        grow = notify;
      }
      observe() {}
      disconnect() {}
    },
  );
});

afterEach(() => {
  cleanup();
  vi.unstubAllGlobals();
});

function Scrolled() {
  const { container, content, onScroll, isAway, toEnd } = useFollowedScroll();
  return (
    <>
      <div ref={container} onScroll={onScroll} data-testid="outer">
        <div ref={content} />
      </div>
      {isAway && (
        <button type="button" onClick={toEnd}>
          To the end
        </button>
      )}
    </>
  );
}

function setHeight(outer: HTMLElement, height: number) {
  Object.defineProperty(outer, "scrollHeight", { value: height, configurable: true });
  Object.defineProperty(outer, "clientHeight", { value: 100, configurable: true });
}

it("follows content that grew again before the event of its own scrolling came", () => {
  render(<Scrolled />);
  const outer = screen.getByTestId("outer");
  setHeight(outer, 500);
  grow();
  expect(outer.scrollTop).toBe(500);
  setHeight(outer, 5000);
  fireEvent.scroll(outer);
  grow();
  expect(outer.scrollTop).toBe(5000);
});

it("lets a reader scroll up, and follows again from the end on", () => {
  render(<Scrolled />);
  const outer = screen.getByTestId("outer");
  setHeight(outer, 500);
  grow();
  fireEvent.scroll(outer);
  outer.scrollTop = 200;
  fireEvent.scroll(outer);
  setHeight(outer, 600);
  grow();
  expect(outer.scrollTop).toBe(200);
  outer.scrollTop = 480;
  fireEvent.scroll(outer);
  setHeight(outer, 700);
  grow();
  expect(outer.scrollTop).toBe(700);
});

it("offers the way back to a reader who has left the end, and follows again from there", () => {
  render(<Scrolled />);
  const outer = screen.getByTestId("outer");
  setHeight(outer, 500);
  grow();
  fireEvent.scroll(outer);
  expect(screen.queryByRole("button")).toBeNull();
  outer.scrollTop = 200;
  fireEvent.scroll(outer);
  setHeight(outer, 600);
  fireEvent.click(screen.getByRole("button", { name: "To the end" }));
  expect(outer.scrollTop).toBe(600);
  expect(screen.queryByRole("button")).toBeNull();
  setHeight(outer, 900);
  grow();
  expect(outer.scrollTop).toBe(900);
});

it("offers no way to the end once nothing is below the reader", () => {
  render(<Scrolled />);
  const outer = screen.getByTestId("outer");
  setHeight(outer, 500);
  grow();
  fireEvent.scroll(outer);
  outer.scrollTop = 200;
  fireEvent.scroll(outer);
  screen.getByRole("button", { name: "To the end" });
  // What was below is folded: nothing is scrolled by that.
  setHeight(outer, 320);
  act(() => grow());
  expect(screen.queryByRole("button")).toBeNull();
});
