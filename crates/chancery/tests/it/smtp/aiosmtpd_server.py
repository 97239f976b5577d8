"""PyPI's aiosmtpd with a self-signed certificate authority. Each accepted message becomes a file in messages/.
It prints its port when it is ready."""

import asyncio
import datetime
import ipaddress
import json
import ssl
import sys
from pathlib import Path

from aiosmtpd.smtp import SMTP, AuthResult
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

security, credentials = sys.argv[1], sys.argv[2:]
folder = Path.cwd()


def certificate(name, key, signed_by=None):
    """A certificate authority, or a certificate for loopback signed by the given one."""
    now = datetime.datetime.now(datetime.timezone.utc)
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    issuer, issuer_key = (signed_by[0].subject, signed_by[1]) if signed_by else (subject, key)
    builder = (
        x509.CertificateBuilder(issuer, subject, key.public_key(), x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(days=1))
        .not_valid_after(now + datetime.timedelta(days=1))
        .add_extension(x509.BasicConstraints(ca=not signed_by, path_length=None), critical=True)
    )
    if signed_by:
        names = [x509.DNSName("localhost"), x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]
        builder = builder.add_extension(x509.SubjectAlternativeName(names), critical=False)
    return builder.sign(issuer_key, hashes.SHA256())


def tls():
    authority_key, key = ec.generate_private_key(ec.SECP256R1()), ec.generate_private_key(ec.SECP256R1())
    authority = certificate("The tests' authority", authority_key)
    pem = serialization.Encoding.PEM
    (folder / "authority.pem").write_bytes(authority.public_bytes(pem))
    (folder / "server.pem").write_bytes(
        key.private_bytes(pem, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
        + certificate("localhost", key, (authority, authority_key)).public_bytes(pem)
    )
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(folder / "server.pem")
    return context


class Keeper:
    count = 0

    async def handle_DATA(self, server, session, envelope):
        message = {
            "from": envelope.mail_from,
            "to": envelope.rcpt_tos,
            "content": envelope.content.decode(errors="surrogateescape"),
            "over_tls": session.ssl is not None or security == "tls",
            "signed_in": session.authenticated is True,
        }
        self.count += 1
        path = folder / "messages" / f"{self.count:04}.json"
        path.with_suffix(".part").write_text(json.dumps(message))
        path.with_suffix(".part").rename(path)
        return "250 kept"


def authenticate(server, session, envelope, mechanism, data):
    given = [data.login.decode(), data.password.decode()]
    return AuthResult(success=given == credentials, handled=False)


async def main():
    context = tls() if security != "plain" else None
    keeper = Keeper()
    options = {}
    if credentials:
        options = {"authenticator": authenticate, "auth_required": True, "auth_require_tls": security == "starttls"}
    if security == "starttls":
        options |= {"tls_context": context, "require_starttls": True}
    server = await asyncio.get_running_loop().create_server(
        lambda: SMTP(keeper, hostname="localhost", **options),
        "127.0.0.1",
        0,
        ssl=context if security == "tls" else None,
    )
    print("port", server.sockets[0].getsockname()[1], flush=True)
    await server.serve_forever()


(folder / "messages").mkdir()
asyncio.run(main())
