/** The buttons that attach files: by the file picker, and on devices with a touch screen by the camera. */
import { useRef } from "react";
import { IconButton } from "../../ui/controls";
import { Icon } from "../../ui/icons";

export function AttachButtons({ onFiles }: { onFiles: (files: FileList) => void }) {
  return (
    <>
      <FileButton label="Attach files" icon="attach" onFiles={onFiles} />
      <span className="hidden pointer-coarse:inline">
        <FileButton label="Take a picture" icon="camera" onFiles={onFiles} isCamera />
      </span>
    </>
  );
}

interface FileButtonProps {
  label: string;
  icon: "attach" | "camera";
  onFiles: (files: FileList) => void;
  isCamera?: boolean;
}

function FileButton({ label, icon, onFiles, isCamera = false }: FileButtonProps) {
  const input = useRef<HTMLInputElement>(null);
  const camera = isCamera ? ({ accept: "image/*", capture: "environment" } as const) : { multiple: true };
  return (
    <>
      <IconButton label={label} onClick={() => input.current?.click()}>
        <Icon name={icon} />
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
