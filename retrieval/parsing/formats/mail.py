"""Text of an e-mail (RFC 5322): subject, who and when, the body, and attached texts."""

from __future__ import annotations

from email import policy
from email.message import EmailMessage, MIMEPart
from email.parser import BytesParser
from typing import Final, cast

from retrieval.parsing.base import ParsingError
from retrieval.parsing.encoding import decode_text
from retrieval.parsing.formats.html import extract_html
from retrieval.parsing.formats.text_builder import TextBuilder

_HEADERS: Final = ("From", "To", "Cc", "Date")
_LONGEST_HEADER: Final = 1000
_DEEPEST: Final = 10


def extract_mail(data: bytes, builder: TextBuilder) -> None:
    """Add the text of a mail to `builder`, as Markdown: the subject as a heading, senders, receivers and date, and the
    plain body if it has one, else the HTML body. Attached texts and mails follow (mails at most 10 deep); of other
    attachments only the name is added.

    Raises:
        ParsingError: `document_malformed`: the data has no headers; `document_too_large`: the text is larger than the
            builder allows.
        Exception: the standard library may raise other exceptions for malformed mails.
    """
    message = BytesParser(policy=policy.default).parsebytes(data)
    if not message.keys():
        raise ParsingError("document_malformed", "the file has no headers of an e-mail")
    _add_message(message, builder, 1)


def _add_message(message: EmailMessage, builder: TextBuilder, depth: int) -> None:
    if subject := _get_header(message, "Subject"):
        builder.add_block(f"{'#' * min(depth, 6)} {subject}")
    builder.add_block("\n".join(f"{name}: {value}" for name in _HEADERS if (value := _get_header(message, name))))
    body = message.get_body(("plain", "html"))
    if body is not None:
        _add_text(body, builder)
    if depth > _DEEPEST or not message.is_multipart():
        return
    for part in message.iter_attachments():
        name = part.get_filename()
        if part.get_content_type() == "message/rfc822":
            _add_message(cast("EmailMessage", part.get_payload(0)), builder, depth + 1)
        elif part.get_content_maintype() == "text":
            builder.add_block(f"Attachment: {name or 'text'}")
            _add_text(part, builder)
        elif name:
            builder.add_block(f"Attachment: {name}")


def _add_text(part: MIMEPart, builder: TextBuilder) -> None:
    """Add the text of a part; one that is no text, whatever it says, is left out."""
    data = part.get_payload(decode=True)
    if not isinstance(data, bytes):
        return
    try:
        text = decode_text(data, part.get_content_charset())
    except ParsingError:
        return
    if part.get_content_type() == "text/html":
        extract_html(text, builder)
    else:
        builder.add_block(text.replace("\r\n", "\n"))


def _get_header(message: EmailMessage, name: str) -> str:
    """Return a header decoded, "" where it is missing or cannot be read."""
    try:
        value = message.get(name, "")
    except (ValueError, IndexError, AttributeError, TypeError):
        # The standard library's parser of addresses fails with any of these on malformed ones.
        return ""
    return " ".join(str(value).encode("utf-8", "replace").decode().split())[:_LONGEST_HEADER]
