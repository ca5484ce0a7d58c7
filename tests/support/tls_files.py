"""A certificate of this machine, made by openssl."""

from __future__ import annotations

import subprocess
from pathlib import Path


def make_certificate(folder: Path, name: str = "a") -> tuple[Path, Path]:
    """A self-signed certificate for `localhost` and its private key: `NAME.pem` and `NAME.key` in `folder`."""
    command = "openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 2 -subj /CN=localhost"
    command += f" -addext subjectAltName=DNS:localhost,IP:127.0.0.1 -keyout {name}.key -out {name}.pem"
    subprocess.run(command.split(), cwd=folder, check=True, capture_output=True)
    return folder / f"{name}.pem", folder / f"{name}.key"
