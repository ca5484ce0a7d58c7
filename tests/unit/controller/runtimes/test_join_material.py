"""The material of joining: made once, read with clear errors, and certificates that TLS takes."""

from __future__ import annotations

import asyncio
import ssl
import time
from pathlib import Path

import pytest

from controller.runtimes.cluster.material import (
    MaterialError,
    ensure_material,
    read_material,
    write_credentials,
)


def test_material_is_made_once_and_private(tmp_path: Path) -> None:
    made = ensure_material(tmp_path, "abc", is_insecure=False, now=time.time())
    again = ensure_material(tmp_path, "abc", is_insecure=True, now=time.time())
    assert again.model_copy(update={"is_insecure": False}) == made
    write_credentials(made, tmp_path, ["b"], ["10.0.0.2"], now=time.time())
    assert {path.stat().st_mode & 0o777 for path in (tmp_path / "cluster").iterdir()} == {0o600}
    assert made.token not in repr(made)
    with pytest.raises(MaterialError, match="of installation abc, and the state folder of other"):
        ensure_material(tmp_path, "other", is_insecure=False, now=time.time())


def test_a_file_that_cannot_be_used_is_refused_with_one_sentence(tmp_path: Path) -> None:
    ensure_material(tmp_path, "abc", is_insecure=False, now=time.time())
    path = tmp_path / "cluster" / "join.json"
    good = path.read_text()
    token = read_material(path).token
    refusals = []
    for text, mode in ((good, 0o644), (good.replace('"abc"', '"A B"'), 0o600), ("", 0o600), (good[:-200], 0o600)):
        path.write_text(text)
        path.chmod(mode)
        with pytest.raises(MaterialError) as refused:
            read_material(path)
        refusals.append(str(refused.value))
    assert ["other users can read" in refusals[0], *("no join file" in each for each in refusals[1:])] == [True] * 4
    with pytest.raises(MaterialError, match="there is no file"):
        read_material(tmp_path / "missing")
    with pytest.raises(MaterialError, match=r"cannot be read: Is a directory"):
        read_material(_private_folder(tmp_path / "folder"))
    assert not any(token in each or "\n" in each for each in refusals)


def _private_folder(path: Path) -> Path:
    path.mkdir(mode=0o700)
    return path


async def test_the_certificate_serves_its_address_and_names_and_no_other(tmp_path: Path) -> None:
    material = ensure_material(tmp_path / "head", "abc", is_insecure=False, now=time.time())
    host = write_credentials(material, tmp_path, ["b", "*.b.roundhouse"], ["127.0.0.1"], now=time.time())
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cafile=str(host.authority))
    context.verify_mode = ssl.CERT_REQUIRED
    context.load_cert_chain(host.certificate, host.key)
    server = await asyncio.start_server(lambda _, writer: writer.close(), "127.0.0.1", 0, ssl=context)
    client = ssl.create_default_context(cafile=str(host.authority))
    client.load_cert_chain(host.certificate, host.key)
    async with server:
        port = server.sockets[0].getsockname()[1]
        for name in ("127.0.0.1", "b", "chat-0.b.roundhouse"):
            _, writer = await asyncio.open_connection("127.0.0.1", port, ssl=client, server_hostname=name)
            writer.close()
        with pytest.raises(ssl.SSLCertVerificationError, match="mismatch"):
            await asyncio.open_connection("127.0.0.1", port, ssl=client, server_hostname="c")
        other = ensure_material(tmp_path / "other", "abc", is_insecure=False, now=time.time())
        stranger = write_credentials(other, tmp_path / "other", ["b"], ["127.0.0.1"], now=time.time())
        strange = ssl.create_default_context(cafile=str(stranger.authority))
        with pytest.raises(ssl.SSLCertVerificationError, match=r"self-signed|unable to get|signature"):
            await asyncio.open_connection("127.0.0.1", port, ssl=strange, server_hostname="b")
