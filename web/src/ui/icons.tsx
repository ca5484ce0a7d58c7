/** Icons, drawn here: a font of the reader's system may lack such signs. A new icon is one line. */

const SHAPES = {
  attach: "M21 12.5 12.6 21a5 5 0 0 1-7-7l8.8-8.9a3.4 3.4 0 0 1 4.8 4.8l-8.6 8.7a1.7 1.7 0 0 1-2.4-2.4l7.8-8",
  camera: "M4 8h3l2-3h6l2 3h3v11H4zM12 16.5a3.5 3.5 0 1 0 0-7 3.5 3.5 0 0 0 0 7z",
  close: "M6 6l12 12M18 6 6 18",
  down: "M6 9l6 6 6-6",
  edit: "M4 20h4L19 9l-4-4L4 16zM13 7l4 4",
  layers: "M4 8l8-4 8 4-8 4zM4 12l8 4 8-4M4 16l8 4 8-4",
  next: "M9 5l7 7-7 7",
  previous: "M15 5l-7 7 7 7",
  sliders: "M4 7h9M19 7h1M16 4.5v5M4 17h1M11 17h9M8 14.5v5",
} as const;

/** An icon of the size of the text beside it, for the eye alone: the control says its name. */
export function Icon({ name }: { name: keyof typeof SHAPES }) {
  return (
    <svg
      aria-hidden="true"
      viewBox="0 0 24 24"
      className="size-[1.15em] fill-none stroke-current stroke-2"
      strokeLinecap="round"
      strokeLinejoin="round"
    >
      <path d={SHAPES[name]} />
    </svg>
  );
}
