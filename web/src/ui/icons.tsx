/** Icons, drawn here: a font of the reader's system may lack such signs. A new icon is one line. */
import { addressOf } from "../api/client";

const SHAPES = {
  activity: "M3 12h4l3-7 4 14 3-7h4",
  attach: "M21 12.5 12.6 21a5 5 0 0 1-7-7l8.8-8.9a3.4 3.4 0 0 1 4.8 4.8l-8.6 8.7a1.7 1.7 0 0 1-2.4-2.4l7.8-8",
  box: "M4 8l8-4 8 4v8l-8 4-8-4zM4 8l8 4 8-4M12 12v8",
  camera: "M4 8h3l2-3h6l2 3h3v11H4zM12 16.5a3.5 3.5 0 1 0 0-7 3.5 3.5 0 0 0 0 7z",
  chat: "M4 5h16v11H9l-5 4z",
  close: "M6 6l12 12M18 6 6 18",
  document: "M6 3h8l4 4v14H6zM14 3v4h4",
  copy: "M9 9h11v11H9zM6 15H4V4h11v2",
  down: "M6 9l6 6 6-6",
  download: "M12 4v11M7 10.5l5 5 5-5M4 20h16",
  edit: "M4 20h4L19 9l-4-4L4 16zM13 7l4 4",
  eject: "M12 5l7 8H5zM5 18h14",
  end: "M12 4v12M6 11l6 6 6-6M5 21h14",
  layers: "M4 8l8-4 8 4-8 4zM4 12l8 4 8-4M4 16l8 4 8-4",
  list: "M4 6h16M4 12h16M4 18h16",
  more: "M5 12h.01M12 12h.01M19 12h.01",
  next: "M9 5l7 7-7 7",
  play: "M7 4.5v15l12-7.5z",
  plus: "M12 5v14M5 12h14",
  previous: "M15 5l-7 7 7 7",
  remove: "M4 7h16M9 7V4h6v3M6 7l1 13h10l1-13M10 11v5M14 11v5",
  repeat: "M4 12a8 8 0 0 1 14-5l2 2M20 4v5h-5M20 12a8 8 0 0 1-14 5l-2-2M4 20v-5h5",
  search: "M11 18a7 7 0 1 0 0-14 7 7 0 0 0 0 14zM16 16l5 5",
  send: "M4 12 20 4l-5 16-3.5-6.5zM11.5 13.5 20 4",
  sliders: "M4 7h9M19 7h1M16 4.5v5M4 17h1M11 17h9M8 14.5v5",
  stop: "M7 7h10v10H7z",
  undo: "M9 14 4 9l5-5M4 9h10a6 6 0 0 1 0 12h-3",
  up: "M6 15l6-6 6 6",
  upload: "M12 16V5M7 9.5l5-5 5 5M4 20h16",
} as const;

export type IconName = keyof typeof SHAPES;

/** Roundhouse's mark, a turntable: the one file that is the page's icon, too. */
export function Mark({ className }: { className: string }) {
  return <img src={addressOf("/page/icon.svg")} alt="" className={className} />;
}

/** An icon of the size of the text beside it, for the eye alone: the control says its name. */
export function Icon({ name }: { name: IconName }) {
  return (
    <svg
      aria-hidden="true"
      viewBox="0 0 24 24"
      className="size-[1.15em] shrink-0 fill-none stroke-current stroke-2"
      strokeLinecap="round"
      strokeLinejoin="round"
    >
      <path d={SHAPES[name]} />
    </svg>
  );
}
