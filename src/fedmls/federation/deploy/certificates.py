"""A CA with a certificate for a server, and keys for nodes: what Flower needs for TLS and to know its nodes."""

import argparse
import ipaddress
import os
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any


def make_certificates(folder: Path, hosts: Sequence[str], days: int = 365) -> None:
    """Make a CA (ca.crt, ca.key; those that are there are kept), and server.crt and server.key for the hosts."""
    from cryptography import x509
    from cryptography.hazmat.primitives.serialization import load_pem_private_key

    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    if not (folder / "ca.key").exists():
        _certificate(folder / "ca", "fedmls CA", 10 * days, x509.BasicConstraints(ca=True, path_length=0))
    ca = x509.load_pem_x509_certificate((folder / "ca.crt").read_bytes())
    ca_key = load_pem_private_key((folder / "ca.key").read_bytes(), None)
    names = x509.SubjectAlternativeName([_host(host) for host in hosts])
    _certificate(folder / "server", "fedmls server", days, names, (ca, ca_key))


def _host(name: str) -> Any:
    from cryptography import x509

    try:
        return x509.IPAddress(ipaddress.ip_address(name))
    except ValueError:
        return x509.DNSName(name)


def _certificate(file: Path, name: str, days: int, kind: Any, issuer: tuple[Any, Any] | None = None) -> None:
    """Write file.crt and file.key; of its own making without an issuer."""
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    key = ec.generate_private_key(ec.SECP384R1())
    ca, ca_key = issuer or (None, key)
    subject = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, name)])
    now = datetime.now(UTC)
    builder = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(ca.subject if ca else subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(minutes=5))
        .not_valid_after(now + timedelta(days=days))
        .add_extension(kind, critical=ca is None)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(ca_key.public_key()), critical=False)
        .add_extension(_usage(authority=ca is None), critical=True)
    )
    signed = builder.sign(ca_key, hashes.SHA384())
    pem, plain = serialization.Encoding.PEM, serialization.NoEncryption()
    file.with_suffix(".crt").write_bytes(signed.public_bytes(pem))
    _secret(file.with_suffix(".key"), key.private_bytes(pem, serialization.PrivateFormat.PKCS8, plain))


def _usage(authority: bool) -> Any:
    from cryptography import x509

    others = (
        "content_commitment",
        "key_encipherment",
        "data_encipherment",
        "key_agreement",
        "encipher_only",
        "decipher_only",
    )
    signs = {"digital_signature": not authority, "key_cert_sign": authority, "crl_sign": authority}
    return x509.KeyUsage(**signs, **dict.fromkeys(others, False))


def make_node_key(file: Path) -> None:
    """Make the key of a node, as ssh-keygen -t ecdsa -b 384 does: the file, and its public part in file.pub."""
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, PublicFormat

    key = ec.generate_private_key(ec.SECP384R1())
    _secret(file, key.private_bytes(Encoding.PEM, PrivateFormat.OpenSSH, NoEncryption()))
    public = key.public_key().public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH)
    file.with_name(f"{file.name}.pub").write_bytes(public + b"\n")


def _secret(file: Path, data: bytes) -> None:
    file.unlink(missing_ok=True)
    with open(file, "xb", opener=lambda path, flags: os.open(path, flags, 0o600)) as out:
        out.write(data)


def main() -> None:
    """Run ``python -m fedmls.federation.certificates``, for a federation between machines."""
    parser = argparse.ArgumentParser(
        prog="python -m fedmls.federation.certificates", description=make_certificates.__doc__
    )
    parser.add_argument("folder", type=Path, help="where; a CA that is there is kept")
    parser.add_argument("hosts", nargs="+", help="names and addresses under which the server is reached")
    parser.add_argument("--days", type=int, default=365, help="for which the server's certificate is valid")
    given = parser.parse_args()
    make_certificates(given.folder, given.hosts, given.days)


if __name__ == "__main__":
    main()
