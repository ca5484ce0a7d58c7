import { cleanup, fireEvent, render, screen } from "@testing-library/react";
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
  const { container, content, onScroll } = useFollowedScroll();
  return (
    <div ref={container} onScroll={onScroll} data-testid="outer">
      <div ref={content} />
    </div>
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
