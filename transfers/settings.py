"""The settings of transfers: environment variables, read once at start."""

from __future__ import annotations

from pathlib import Path

from pydantic import Field, field_validator, model_validator

from common.listening import join_address, split_listen_address
from common.network.address_rule import AllowedHosts, parse_allowed_hosts
from common.settings import AnyLogLevel, LogForm, ProgramSettings, TransfersTokenFile
from common.shared_token import read_token
from transfers.network import find_scheme_refusal

_SEPARATOR = ","
_ALL_ADDRESSES = ("0.0.0.0", "[::]", "::", "")  # noqa: S104 - replaced, not listened on


class TransfersSettings(ProgramSettings):
    """Every setting of transfers, read from the environment. Making it opens no file and connects to no address."""

    models: str = Field(
        "models",
        description="Folders with model files, comma-separated, read-only for engines. A relative "
        "`model_path` is searched in each, in this order. Downloads go into the first one.",
    )
    transfers_listen: str = Field(
        "unix:state/transfers.sock",
        description="Where transfers listens for the controller: `unix:/path/transfers.sock`, or `host:port`.",
    )
    transfers_token_file: TransfersTokenFile = None
    transfers_allow_hosts: str = Field(
        "",
        description="Hosts, comma-separated, each with or without `:port`, that downloads may connect to "
        "at any address, also without encryption: mirrors and registries of your own network.",
    )
    transfers_share_listen: str | None = Field(
        None,
        description="Address `host:port` at which the models folder is served to the other hosts of the installation; "
        "default: it is not.",
    )
    transfers_share_token_file: Path | None = Field(
        None, description="File with the installation's token, for fetching from other hosts and for serving them."
    )
    transfers_share_certificates: Path | None = Field(
        None,
        description="Folder with `ca.crt`, `host.crt` and `host.key`, for connections between hosts; default: they are "
        "not encrypted.",
    )
    host_address: str | None = Field(
        None, description="Address at which the other hosts reach this one, where a program listens on all addresses."
    )
    transfers_local_folders: str = Field(
        "", description="Folders, comma-separated, for `file:` references; default: none."
    )
    transfers_parallel: int = Field(2, ge=1, le=16, description="Downloads that are made at the same time.")
    transfers_connections: int = Field(
        4, ge=1, le=32, description="Connections at the same time for one file of a download."
    )
    transfers_keep_free_gb: float = Field(
        2.0, ge=0, description="Space on the disk of the models folder that downloads leave free, in GB."
    )
    transfers_ollama_registry: str = Field(
        "https://registry.ollama.ai", description="Address of the registry that `ollama:` references mean."
    )
    hub_endpoint: str = Field(
        "https://huggingface.co", description="Address of the Hugging Face hub, or of a mirror of it."
    )
    hub_token: str | None = Field(
        None,
        description="Token for gated and private repositories of the hub. Prefer `ROUNDHOUSE_HUB_TOKEN_FILE`.",
        repr=False,
    )
    hub_token_file: Path | None = Field(None, description="File with that token. It is read for each download.")
    log_level: AnyLogLevel = "INFO"
    log_format: LogForm = "human"

    @field_validator("transfers_allow_hosts")
    @classmethod
    def _hosts_can_be_read(cls, text: str) -> str:
        parse_allowed_hosts(text)
        return text

    @field_validator("models")
    @classmethod
    def _has_a_folder(cls, text: str) -> str:
        if not _split(text):
            raise ValueError("names no folder")
        return text

    @model_validator(mode="after")
    def _share_has_token(self) -> TransfersSettings:
        if self.transfers_share_listen is None:
            return self
        try:
            is_port = not isinstance(split_listen_address(self.transfers_share_listen), Path)
        except ValueError as error:
            raise ValueError(f"ROUNDHOUSE_TRANSFERS_SHARE_LISTEN {error}") from None
        if not is_port or self.transfers_share_token_file is None:
            raise ValueError(
                "ROUNDHOUSE_TRANSFERS_SHARE_LISTEN must be `host:port`, with ROUNDHOUSE_TRANSFERS_SHARE_TOKEN_FILE"
            )
        return self

    @model_validator(mode="after")
    def _addresses_are_allowed(self) -> TransfersSettings:
        import httpx2

        for variable, address in (
            ("ROUNDHOUSE_HUB_ENDPOINT", self.hub_endpoint),
            ("ROUNDHOUSE_TRANSFERS_OLLAMA_REGISTRY", self.transfers_ollama_registry),
        ):
            try:
                url = httpx2.URL(address)
            except (httpx2.InvalidURL, TypeError):
                raise ValueError(f"{variable} is no address") from None
            port = url.port or (80 if url.scheme == "http" else 443)
            refusal = (
                "it has no host" if not url.host else find_scheme_refusal(url.scheme, url.host, port, self.allowed)
            )
            if refusal is not None:
                raise ValueError(f"{variable} cannot be used: {refusal}; see ROUNDHOUSE_TRANSFERS_ALLOW_HOSTS")
        return self

    @property
    def models_folder(self) -> Path:
        """The folder that downloads go into: the first of `models`. It may not exist."""
        return Path(_split(self.models)[0]).expanduser()

    @property
    def further_folders(self) -> tuple[Path, ...]:
        """The models folders after the first, from which files are served to other hosts. They may not exist."""
        return tuple(Path(each).expanduser() for each in _split(self.models)[1:])

    @property
    def share_url(self) -> str | None:
        """Address at which other hosts ask for files of the models folder; None: they cannot."""
        if self.transfers_share_listen is None:
            return None
        place = self.transfers_share_listen
        host, _, port = place.rpartition(":")
        if self.host_address is not None and host in _ALL_ADDRESSES:
            place = join_address(self.host_address, int(port))
        return f"{'http' if self.transfers_share_certificates is None else 'https'}://{place}"

    @property
    def local_folders(self) -> tuple[Path, ...]:
        """The folders from which `file:` references may take models; empty: none. They may not exist."""
        return tuple(Path(each).expanduser() for each in _split(self.transfers_local_folders))

    @property
    def allowed(self) -> AllowedHosts:
        """The hosts and ports that downloads may connect to wherever they are, also without encryption, as
        `transfers_allow_hosts` names them."""
        return parse_allowed_hosts(self.transfers_allow_hosts)

    @property
    def keep_free_bytes(self) -> int:
        """`transfers_keep_free_gb` in bytes; 1 GB is 10^9 bytes."""
        return round(self.transfers_keep_free_gb * 10**9)

    def read_hub_token(self) -> str | None:
        """Return the token of the hub: `hub_token`, else that in `hub_token_file`; None: there is none, or the file
        cannot be read. Blocks for a read. Never raises."""
        if self.hub_token is not None:
            return self.hub_token.strip()
        return None if self.hub_token_file is None else read_token(self.hub_token_file)


def _split(text: str) -> list[str]:
    return [part.strip() for part in text.split(_SEPARATOR) if part.strip()]
