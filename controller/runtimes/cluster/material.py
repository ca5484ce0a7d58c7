"""What makes a machine a host of an installation: the token, and the authority that signs the hosts' certificates, in
one file that the head makes. Who has it may run programs on every host.

`<state>/cluster/` holds it and what a host makes of it:

    join.json   the material; on the head, and wherever `roundhouse join` is given it
    ray-token   the token, as Ray reads it
    host.json   where a host has joined
    ca.crt, host.crt, host.key   the authority's certificate, and the host's own with its key, as PEM

Every file has mode 0600. Needs the package `cryptography`, which comes with the extra `cluster`.
"""

from __future__ import annotations

import ipaddress
import secrets
import stat
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Final

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    load_pem_private_key,
)
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from common.atomic_write import write_atomic

MATERIAL_NAME: Final = "join.json"
MEMBERSHIP_NAME: Final = "host.json"
MATERIAL_VERSION: Final = 1
"""Version of both files. Increase it when an older reader would misread the new format."""
AUTHORITY_NAME: Final = "Roundhouse hosts"
"""Name of the certificates' issuer; they are recognized by its key, not by it."""
VALID_FOR: Final = timedelta(days=3650)
VALID_BEFORE: Final = timedelta(days=1)
"""How long before it was made a certificate is valid: clocks differ."""
_OTHERS: Final = stat.S_IRWXG | stat.S_IRWXO


class MaterialError(Exception):
    """The file with the material is missing, cannot be read, is open to other users, or is none. The message says which
    file, why and what to do, in one sentence, and nothing of its content."""


class JoinMaterial(BaseModel):
    """The content of `join.json`. Neither `repr` nor an error shows its secrets."""

    model_config = ConfigDict(extra="ignore", frozen=True, hide_input_in_errors=True)

    schema_version: int = MATERIAL_VERSION
    instance: str = Field(pattern=r"^[a-z0-9]{1,16}$")
    """Name of the installation, as in `Identity`."""
    token: str = Field(pattern=r"^[0-9a-f]{64}$", repr=False)
    certificate: str = Field(repr=False)
    """The authority's certificate, PEM."""
    key: str = Field(repr=False)
    """The authority's private key, PEM."""
    is_insecure: bool = False
    """Whether the head was started with `--insecure-private-network`: nothing is encrypted then."""


class Membership(BaseModel):
    """The content of `host.json`: where a host has joined, and as what. `head`: `ADDRESS:PORT` of Ray."""

    model_config = ConfigDict(extra="ignore", frozen=True)

    schema_version: int = MATERIAL_VERSION
    head: str
    name: str
    address: str


def write_membership(state: Path, membership: Membership) -> None:
    """Write `host.json`. Blocks. Raises OSError."""
    write_atomic(cluster_folder(state) / MEMBERSHIP_NAME, membership.model_dump_json().encode())


def read_membership(state: Path) -> Membership | None:
    """Return where the host with this state folder has joined; None: it is none that did. Blocks."""
    try:
        return Membership.model_validate_json((cluster_folder(state) / MEMBERSHIP_NAME).read_bytes())
    except (OSError, ValidationError):
        return None


@dataclass(frozen=True, slots=True)
class HostCredentials:
    """Paths of what a host shows to others and checks them with."""

    token: Path
    authority: Path
    certificate: Path
    key: Path

    @classmethod
    def in_state(cls, state: Path) -> HostCredentials:
        """Return where the files of a host with this state folder are, whether they exist or not."""
        folder = cluster_folder(state)
        return cls(folder / "ray-token", folder / "ca.crt", folder / "host.crt", folder / "host.key")


def cluster_folder(state: Path) -> Path:
    """Return the folder of a state folder that holds the material."""
    return state / "cluster"


def ensure_material(state: Path, instance: str, *, is_insecure: bool, now: float) -> JoinMaterial:
    """Return the material of an installation whose head has this state folder, and make it the first time. The token
    and the authority stay as they are as long as the file is there; `is_insecure` is stored anew. Blocks.

    Raises MaterialError if the file is there and cannot be used, or is another installation's, and OSError if it cannot
    be written."""
    path = cluster_folder(state) / MATERIAL_NAME
    if path.exists():
        material = read_material(path)
        if material.instance != instance:
            raise MaterialError(
                f"{path} is of installation {material.instance}, and the state folder of {instance}: move it away, and "
                "join every host anew with the file that is then made"
            )
        if material.is_insecure == is_insecure:
            return material
        material = material.model_copy(update={"is_insecure": is_insecure})
    else:
        certificate, key = _make_authority(now)
        token = secrets.token_hex(32)
        material = JoinMaterial(
            instance=instance, token=token, certificate=certificate, key=key, is_insecure=is_insecure
        )
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    write_atomic(path, material.model_dump_json(indent=1).encode() + b"\n")
    return material


def read_material(path: Path) -> JoinMaterial:
    """Return the material in a file. Blocks. Raises MaterialError."""
    try:
        mode = path.stat().st_mode
        if mode & _OTHERS:
            raise MaterialError(f"other users can read {path}, and who has it controls every host: `chmod 600 {path}`")
        material = JoinMaterial.model_validate_json(path.read_bytes())
        if material.schema_version > MATERIAL_VERSION:
            raise MaterialError(f"{path} was written by a newer version of Roundhouse: install that one here")
        _load_authority(material)
    except FileNotFoundError:
        raise MaterialError(f"there is no file {path}: copy the head's state/cluster/{MATERIAL_NAME} there") from None
    except OSError as error:
        raise MaterialError(f"{path} cannot be read: {error.strerror or error}") from None
    except (ValidationError, ValueError, TypeError):
        raise MaterialError(
            f"{path} is no join file, or damaged: copy the head's state/cluster/{MATERIAL_NAME}"
        ) from None
    return material


def write_credentials(
    material: JoinMaterial, state: Path, names: Iterable[str], addresses: Iterable[str], *, now: float
) -> HostCredentials:
    """Sign a certificate for a host that is reached by these names and IP addresses, and write all its credentials into
    its state folder, in place of earlier ones. It serves and asks with the same one. A name may be `*.NAME`. Blocks.
    Raises ValueError for what is no IP address, and OSError."""
    certificate, key = sign_certificate(material, names, addresses, now=now)
    files = HostCredentials.in_state(state)
    files.token.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    for path, text in (
        (files.token, material.token),
        (files.authority, material.certificate),
        (files.certificate, certificate),
        (files.key, key),
    ):
        write_atomic(path, text.encode())
    return files


def sign_certificate(
    material: JoinMaterial, names: Iterable[str], addresses: Iterable[str], *, now: float
) -> tuple[str, str]:
    """Return a certificate for these names and IP addresses, and its key, both PEM, valid for ten years. Raises
    ValueError for what is no IP address."""
    authority, authority_key = _load_authority(material)
    names = list(dict.fromkeys(names))
    alternatives: list[x509.GeneralName] = [x509.DNSName(name) for name in names]
    alternatives.extend(x509.IPAddress(ipaddress.ip_address(each)) for each in dict.fromkeys(addresses))
    key = ec.generate_private_key(ec.SECP256R1())
    builder = (
        _begin_certificate(key, (names or ["host"])[0], now)
        .issuer_name(authority.subject)
        .add_extension(x509.SubjectAlternativeName(alternatives), critical=False)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(
            x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH]), critical=False
        )
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(authority_key.public_key()), critical=False)
    )
    return _to_pem(builder.sign(authority_key, hashes.SHA256()), key)


def _make_authority(now: float) -> tuple[str, str]:
    key = ec.generate_private_key(ec.SECP256R1())
    usage = x509.KeyUsage(
        digital_signature=True,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=True,
        crl_sign=True,
        encipher_only=False,
        decipher_only=False,
    )
    builder = (
        _begin_certificate(key, AUTHORITY_NAME, now)
        .issuer_name(_name(AUTHORITY_NAME))
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(usage, critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
    )
    return _to_pem(builder.sign(key, hashes.SHA256()), key)


def _load_authority(material: JoinMaterial) -> tuple[x509.Certificate, ec.EllipticCurvePrivateKey]:
    """Raises ValueError or TypeError if they are damaged."""
    key = load_pem_private_key(material.key.encode(), password=None)
    certificate = x509.load_pem_x509_certificate(material.certificate.encode())
    if not isinstance(key, ec.EllipticCurvePrivateKey) or certificate.public_key() != key.public_key():
        raise ValueError("the key is not the certificate's")
    return certificate, key


def _name(text: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text[:64])])


def _begin_certificate(key: ec.EllipticCurvePrivateKey, name: str, now: float) -> x509.CertificateBuilder:
    made = datetime.fromtimestamp(now, UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(_name(name))
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(made - VALID_BEFORE)
        .not_valid_after(made + VALID_FOR)
    )


def _to_pem(certificate: x509.Certificate, key: ec.EllipticCurvePrivateKey) -> tuple[str, str]:
    private = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    return certificate.public_bytes(Encoding.PEM).decode(), private.decode()
