/** HTML that a model wrote, shown in a sandboxed frame: its scripts run without an origin and reach no network. */
import { addressOf } from "../../api/client";
import { useFrame } from "./use_frame";

export default function HtmlPreview({ html }: { html: string }) {
  const { element } = useFrame("preview", { html });
  return (
    <iframe
      ref={element}
      title="Preview"
      src={addressOf("/page/preview.html")}
      sandbox="allow-scripts"
      // What a model wrote has a white ground in every browser, unless it says otherwise.
      className="block h-96 w-full resize-y border-0 bg-white"
    />
  );
}
