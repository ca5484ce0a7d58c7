/** The buttons that attach files: by the file picker, and on devices with a touch screen by the camera. */
import { useRef } from "react";
import { IconButton } from "../../ui/controls";

export function AttachButtons({ onFiles }: { onFiles: (files: FileList) => void }) {
  return (
    <>
      <FileButton label="Attach files" sign="＋" onFiles={onFiles} />
      <span className="hidden pointer-coarse:inline">
        <FileButton label="Take a picture" sign="📷" onFiles={onFiles} isCamera />
      </span>
    </>
  );
}

interface FileButtonProps {
  label: string;
  sign: string;
  onFiles: (files: FileList) => void;
  isCamera?: boolean;
}

function FileButton({ label, sign, onFiles, isCamera = false }: FileButtonProps) {
  const input = useRef<HTMLInputElement>(null);
  const camera = isCamera ? ({ accept: "image/*", capture: "environment" } as const) : { multiple: true };
  return (
    <>
      <IconButton label={label} onClick={() => input.current?.click()}>
        {sign}
      </IconButton>
      <input
        ref={input}
        type="file"
        aria-label={`${label} from this device`}
        tabIndex={-1}
        className="hidden"
        {...camera}
        onChange={({ target }) => {
          if (target.files !== null) onFiles(target.files);
          target.value = "";
        }}
      />
    </>
  );
}
