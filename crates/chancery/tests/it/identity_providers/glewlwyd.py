"""Debian's glewlwyd on its own SQLite file in this directory: one client, two users. This script writes what an
administrator would set up on its pages, prints the issuer, and then becomes glewlwyd itself."""

import base64
import gzip
import hashlib
import json
import os
import secrets
import socket
import sqlite3
import sys
from pathlib import Path

from joserfc.jwk import OKPKey, RSAKey

glewlwyd = Path(sys.argv[1])
folder = Path.cwd()
with socket.create_server(("127.0.0.1", 0)) as unused:
    port = unused.getsockname()[1]
url = f"http://127.0.0.1:{port}"
issuer = f"{url}/api/oidc"  # its discovery document is only available below this path


def hashed(password):
    salt = secrets.token_hex(8).encode()  # glewlwyd treats it as text: a zero byte would end it
    return base64.b64encode(hashlib.pbkdf2_hmac("sha256", password.encode(), salt, 1000) + salt).decode()


signing_key = OKPKey.generate_key("Ed25519", {"kid": "curve-1", "alg": "EdDSA", "use": "sig"})
other_key = RSAKey.generate_key(2048, {"kid": "rsa-1", "alg": "RS256", "use": "sig"})
parameters = {
    "iss": issuer,
    "jwks-private": json.dumps({"keys": [key.as_dict(private=True) for key in (signing_key, other_key)]}),
    "jwks-show": True,
    "default-kid": "curve-1",
    "access-token-duration": 3600,  # what its own pages fill in; without it every access token expires at once
    "refresh-token-duration": 1209600,
    "code-duration": 600,
    "auth-type-code-enabled": True,
    "pkce-allowed": True,
    "pkce-required": True,
    "email-claim": "no",  # not always, only …
    "email-claim-scope": ["email"],  # … with this scope
    "claims": [
        {
            "name": "email_verified",
            "user-property": "email_verified",
            "type": "boolean",
            "boolean-value-true": "yes",
            "boolean-value-false": "no",
            "scope": ["email"],
        }
    ],
}

database = sqlite3.connect(folder / "glewlwyd.db")
tables = glewlwyd / "usr/share/doc/glewlwyd/database/init.sqlite3.sql.gz"
database.executescript(gzip.decompress(tables.read_bytes()).decode())


def insert(table, **row):
    columns, values = ", ".join(row), ", ".join("?" * len(row))
    return database.execute(f"insert into {table} ({columns}) values ({values})", list(row.values())).lastrowid


insert("g_scope", gs_name="email", gs_display_name="Email address", gs_password_required=1)
insert("g_plugin_module_instance", gpmi_module="oidc", gpmi_name="oidc", gpmi_parameters=json.dumps(parameters))

(people,) = database.execute("select gumi_parameters from g_user_module_instance").fetchone()
people = json.loads(people)
people["data-format"]["email_verified"] = {"multiple": False, "read": True, "write": True}
database.execute("update g_user_module_instance set gumi_parameters = ?", [json.dumps(people)])
scopes = [insert("g_user_scope", gus_name=name) for name in ("openid", "email")]
for prefix, name in (("", "Ada Hale"), ("OTHER_", "Grace Ward")):
    login, email = os.environ[prefix + "LOGIN"], os.environ[prefix + "EMAIL"]
    person = insert("g_user", gu_username=login, gu_name=name, gu_email=email)
    insert("g_user_password", gu_id=person, guw_password=hashed(os.environ["PASSWORD"]))
    insert("g_user_property", gu_id=person, gup_name="email_verified", gup_value="yes")
    for scope in scopes:
        insert("g_user_scope_user", gu_id=person, gus_id=scope)

client = insert(
    "g_client",
    gc_client_id=os.environ["CLIENT_ID"],
    gc_name="The portal",
    gc_confidential=1,
    gc_password=hashed(os.environ["CLIENT_SECRET"]),
)
for name, value in {
    "redirect_uri": os.environ["REDIRECT_URI"],
    "authorization_type": "code",
    "token_endpoint_auth_method": "client_secret_basic",
}.items():
    insert("g_client_property", gc_id=client, gcp_name=name, gcp_value=value)
database.commit()
database.close()

modules = glewlwyd / "usr/lib/glewlwyd"
types = {".html": "text/html", ".css": "text/css", ".js": "application/javascript", ".json": "application/json"}
types = ", ".join(f'{{ extension = "{name}" mime_type = "{kind}" }}' for name, kind in types.items())
(folder / "glewlwyd.conf").write_text(
    f"""
port = {port}
bind_address = "127.0.0.1"
external_url = "{url}"
login_url = "login.html"
api_prefix = "api"
static_files_path = "{glewlwyd}/webapp"
static_files_mime_types = ( {types} )
log_mode = "console"
log_level = "INFO"
cookie_secure = 0
session_key = "GLEWLWYD2_SESSION_ID"
admin_scope = "g_admin"
profile_scope = "g_profile"
user_module_path = "{modules}/user"
client_module_path = "{modules}/client"
user_auth_scheme_module_path = "{modules}/scheme"
plugin_module_path = "{modules}/plugin"
hash_algorithm = "SHA256"
database = {{ type = "sqlite3" path = "{folder}/glewlwyd.db" }};
"""
)
print(f"issuer {issuer}", flush=True)
libraries = ":".join(str(path) for path in [glewlwyd / "usr/lib", *(glewlwyd / "usr/lib").glob("*-linux-gnu")])
program = str(glewlwyd / "usr/bin/glewlwyd")
os.execve(program, [program, "--config-file", str(folder / "glewlwyd.conf")], {"LD_LIBRARY_PATH": libraries})
