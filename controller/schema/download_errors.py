"""The error codes of downloads and of the models folder."""

from __future__ import annotations

from typing import Final

from controller.schema.error_code import ErrorCode

_REQUEST: Final = "invalid_request_error"
_SERVER: Final = "server_error"
_LOG: Final = "The log of `transfers` has the reason."

DOWNLOAD_ERRORS: Final = (
    ErrorCode(
        "reference_invalid",
        400,
        _REQUEST,
        "The text is no reference of a downloadable model.",
        ("Write it as docs/transfers.md says, such as `hf:USER/REPO:Q4_K_M`.",),
    ),
    ErrorCode(
        "source_not_found",
        404,
        _REQUEST,
        "The source has no such repository, revision, quantisation or file.",
        ("Look at the page of the repository; a private one needs `ROUNDHOUSE_HUB_TOKEN_FILE`.",),
    ),
    ErrorCode(
        "source_forbidden",
        403,
        _REQUEST,
        "The source requires a login, or does not allow the token's user.",
        (
            "Accept the model's terms on its page, with the account of the token.",
            "Name a file with a token of that account in `ROUNDHOUSE_HUB_TOKEN_FILE`.",
        ),
    ),
    ErrorCode(
        "source_address_refused",
        403,
        _REQUEST,
        "The source's address, or that of a redirect, is not on the public internet, or not encrypted.",
        ("If the host is yours, name it in `ROUNDHOUSE_TRANSFERS_ALLOW_HOSTS`.",),
    ),
    ErrorCode(
        "source_unavailable",
        503,
        _SERVER,
        "The source does not answer, or answers with errors.",
        ("Look at the network of this machine.", "Ask for the same download again: it goes on where it stopped."),
        retry=True,
    ),
    ErrorCode(
        "source_mismatch",
        502,
        _SERVER,
        "Size, hash or revision differ from what the source announced.",
        ("Ask for the download again.", "If it happens again, the source or a proxy on the way changes the file."),
        retry=False,
    ),
    ErrorCode(
        "models_disk_full",
        507,
        _SERVER,
        "The models folder's disk has no room for the download.",
        ("Remove models with `roundhouse rm`, or enlarge the disk.", "Ask for the same download again: it goes on."),
    ),
    ErrorCode(
        "models_folder_failed",
        500,
        _SERVER,
        "The models folder cannot be read or written.",
        ("Look at the disk, and at the owner of the models folder.", _LOG),
    ),
    ErrorCode(
        "models_file_conflict",
        409,
        _REQUEST,
        "Something else is in the place of a file of the download, or its path has a symbolic link.",
        ("Move away what is there; `roundhouse rm` removes what `roundhouse pull` put there.",),
    ),
    ErrorCode(
        "models_file_kept",
        409,
        _REQUEST,
        "The file is not a download's, was changed since, or belongs to a running download, so it stays.",
        ("Cancel the download that is under way, or remove the file by hand, if nobody needs it.",),
    ),
    ErrorCode(
        "download_not_found",
        404,
        _REQUEST,
        "There is no download with the id.",
        ("GET /v1/admin/downloads lists the downloads.",),
    ),
    ErrorCode(
        "downloads_disabled",
        403,
        _REQUEST,
        "`ROUNDHOUSE_DOWNLOADS` is `off`, or unset while everybody who reaches the gateway could order a download.",
        ("Set `ROUNDHOUSE_DOWNLOADS=on`, and start Roundhouse again.", "Or declare keys: `roundhouse key new`."),
    ),
    ErrorCode(
        "transfers_unreachable",
        503,
        _SERVER,
        "The program `transfers` does not answer; it may be starting.",
        (
            "Try again.",
            "`roundhouse up` restarts it by itself; `docker compose ps transfers` shows its state.",
            "Where it runs elsewhere, name its address in `ROUNDHOUSE_TRANSFERS_URL`.",
        ),
        retry=True,
    ),
    ErrorCode(
        "models_file_in_use",
        409,
        _REQUEST,
        "A declared model or a running engine uses the file.",
        ("Take the model out of the files, or back with `roundhouse declarations rm`, and remove the file then.",),
    ),
)
