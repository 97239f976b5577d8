"""PyPI's authlib, unmodified. See mod.rs for what is said to it and by it."""

import json
import secrets
import sys
from http.server import BaseHTTPRequestHandler, HTTPServer

import httpx
from authlib.integrations.httpx_client import OAuth2Client
from authlib.oidc.core import CodeIDToken
from joserfc import jwt
from joserfc.jwk import KeySet

answers = []


class Callback(BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200)
        self.end_headers()
        self.wfile.write(b"Back at the client")
        if self.path.startswith("/auth/callback"):
            answers.append(self.path)


server = HTTPServer(("127.0.0.1", 0), Callback)
origin = f"http://localhost:{server.server_port}"
print(f"{origin}/auth/callback", flush=True)

provider = json.loads(sys.stdin.readline())
metadata = httpx.get(provider["issuer"] + "/.well-known/openid-configuration").raise_for_status().json()
assert metadata["issuer"] == provider["issuer"]
client = OAuth2Client(
    provider["client_id"],
    provider["client_secret"],
    token_endpoint_auth_method="client_secret_basic",
    scope="openid email",
    redirect_uri=f"{origin}/auth/callback",
    code_challenge_method="S256",
)
verifier, nonce = secrets.token_urlsafe(48), secrets.token_urlsafe(16)
url, state = client.create_authorization_url(metadata["authorization_endpoint"], code_verifier=verifier, nonce=nonce)
print(url, flush=True)

while not answers:
    server.handle_request()
token = client.fetch_token(
    metadata["token_endpoint"], authorization_response=origin + answers[0], state=state, code_verifier=verifier
)
keys = KeySet.import_key_set(httpx.get(metadata["jwks_uri"]).raise_for_status().json())
algorithms = [name for name in metadata["id_token_signing_alg_values_supported"] if name in ("RS256", "ES256", "EdDSA")]
decoded = jwt.decode(token["id_token"], keys, algorithms=algorithms)
claims = CodeIDToken(
    decoded.claims,
    decoded.header,
    options={"iss": {"essential": True, "value": provider["issuer"]}, "aud": {"essential": True, "value": provider["client_id"]}},
    params={"nonce": nonce, "client_id": provider["client_id"], "access_token": token["access_token"]},
)
claims.validate(leeway=60)
userinfo = client.get(metadata["userinfo_endpoint"]).raise_for_status().json()
assert userinfo["sub"] == claims["sub"]
print(json.dumps({"id_token": dict(claims), "userinfo": userinfo}), flush=True)
