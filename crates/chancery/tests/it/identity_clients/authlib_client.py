"""PyPI's `authlib`, unmodified, signs a user in at our identity provider and out again. Its JWT library, `joserfc`,
verifies the logout tokens that the provider then sends.

    ISSUER=… CLIENT_ID=… CLIENT_SECRET=… REDIRECT_URI=… POST_LOGOUT_REDIRECT_URI=… EMAIL=… PASSWORD=… python authlib_client.py

The script plays the user over plain HTTP: it fills in and submits the forms on the provider's pages. It listens at the
port of REDIRECT_URI for logout tokens.
"""

import os
import queue
import threading
from html.parser import HTMLParser
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs, urljoin, urlsplit

import httpx
from authlib.integrations.base_client import OAuthError
from authlib.integrations.base_client.sync_app import BaseApp, OAuth2Mixin
from authlib.integrations.base_client.sync_openid import OpenIDMixin
from authlib.integrations.httpx_client import OAuth2Client
from joserfc import jwt
from joserfc.jwk import KeySet

NAMES = "ISSUER CLIENT_ID CLIENT_SECRET REDIRECT_URI POST_LOGOUT_REDIRECT_URI EMAIL PASSWORD"
ISSUER, CLIENT_ID, CLIENT_SECRET, REDIRECT_URI, POST_LOGOUT_REDIRECT_URI, EMAIL, PASSWORD = (
    os.environ[name] for name in NAMES.split()
)


LOGOUT_EVENT = "http://schemas.openid.net/event/backchannel-logout"
logout_tokens = queue.Queue()


class LogoutReceiver(BaseHTTPRequestHandler):
    """The client's side of OpenID Connect Back-Channel Logout."""

    def do_POST(self):
        form = parse_qs(self.rfile.read(int(self.headers["content-length"])).decode())
        logout_tokens.put((self.path, self.headers["content-type"], form))
        self.send_response(200)
        self.send_header("content-length", "0")
        self.end_headers()

    def log_message(self, *_):
        pass


class App(OAuth2Mixin, OpenIDMixin, BaseApp):
    """The building blocks of authlib's web framework integrations, without a framework."""

    client_cls = OAuth2Client


class FirstForm(HTMLParser):
    """The action and fields of a page's first POST form, with its first button."""

    def __init__(self, html, typed):
        super().__init__()
        self.typed, self.fields, self.action, self.state = typed, {}, None, "before"
        self.feed(html)
        assert self.state == "after", html

    def handle_starttag(self, tag, attributes):
        attributes = dict(attributes)
        if tag == "form" and self.state == "before" and attributes.get("method") == "post":
            self.action, self.state = attributes.get("action", ""), "inside"
        elif self.state == "inside" and tag == "input":
            typed = self.typed.get(attributes.get("type"), attributes.get("value", ""))
            self.fields[attributes["name"]] = typed
        elif self.state == "inside" and tag == "button" and "name" in attributes:
            self.fields.setdefault(attributes["name"], attributes["value"])

    def handle_endtag(self, tag):
        if tag == "form" and self.state == "inside":
            self.state = "after"


class Browser:
    """A browser without scripts: cookies, redirects, forms."""

    def __init__(self):
        self.http, self.cookies = httpx.Client(trust_env=False), {}

    def visit(self, url, method="GET", **options):
        """Follows redirects until a page is shown, or until one leads away from the provider."""
        for _ in range(10):
            if not url.startswith(ISSUER):
                return url, ""
            cookie = "; ".join(f"{name}={value}" for name, value in self.cookies.items())
            headers = {"cookie": cookie} if cookie else {}
            reply = self.http.request(method, url, headers=headers | options.pop("headers", {}), **options)
            for line in reply.headers.get_list("set-cookie"):
                name, value = line.split(";")[0].split("=", 1)
                self.cookies[name] = value
                if not value:
                    del self.cookies[name]
            if reply.status_code != 303:
                assert reply.status_code == 200, (url, reply.status_code, reply.text)
                return url, reply.text
            url, method, options = urljoin(url, reply.headers["location"]), "GET", {}
        raise AssertionError("too many redirects")

    def submit(self, page, typed=()):
        url, html = page
        form = FirstForm(html, dict(typed))
        origin = "{0.scheme}://{0.netloc}".format(urlsplit(url))
        return self.visit(urljoin(url, form.action), "POST", data=form.fields, headers={"origin": origin})


def check_logout_token(app, id_token_claims):
    """What section 2.6 of the standard asks of a client."""
    path, content_type, form = logout_tokens.get(timeout=30)
    assert (path, list(form)) == ("/auth/backchannel-logout", ["logout_token"]), (path, form)
    assert content_type == "application/x-www-form-urlencoded", content_type
    algorithms = app.load_server_metadata()["id_token_signing_alg_values_supported"]
    keys = KeySet.import_key_set(app.fetch_jwk_set())
    token = jwt.decode(form["logout_token"][0], keys, algorithms=algorithms)
    assert token.header["typ"] == "logout+jwt", token.header
    expected = {"iss": ISSUER, "aud": CLIENT_ID, "sub": id_token_claims["sub"], "sid": id_token_claims["sid"]}
    options = {name: {"essential": True, "value": value} for name, value in expected.items()}
    options |= {name: {"essential": True} for name in ("iat", "exp", "jti", "events")}
    jwt.JWTClaimsRegistry(leeway=5, **options).validate(token.claims)
    assert token.claims["events"] == {LOGOUT_EVENT: {}}, token.claims
    assert "nonce" not in token.claims, "an ID token must not pass for a logout token"


def sign_in(method):
    app = App(
        framework=None,
        client_id=CLIENT_ID,
        client_secret=CLIENT_SECRET,
        server_metadata_url=f"{ISSUER}/.well-known/openid-configuration",
        client_kwargs={
            "scope": "openid email",
            "code_challenge_method": "S256",
            "token_endpoint_auth_method": method,
            "trust_env": False,
        },
    )
    assert app.load_server_metadata()["issuer"] == ISSUER
    begun = app.create_authorization_url(REDIRECT_URI, prompt="consent")

    browser = Browser()
    page = browser.visit(begun["url"])
    page = browser.submit(page, {"email": EMAIL, "password": PASSWORD})
    assert "Your email address" in page[1], page
    url, _ = browser.submit(page)
    assert url.startswith(f"{REDIRECT_URI}?"), url
    returned = {name: values[0] for name, values in parse_qs(urlsplit(url).query).items()}
    assert (returned["state"], returned["iss"]) == (begun["state"], ISSUER), returned

    exchange = {"code": returned["code"], "code_verifier": begun["code_verifier"]}
    token = app.fetch_access_token(REDIRECT_URI, **exchange)
    claims = app.parse_id_token(token, begun["nonce"])
    assert (claims["email"], claims["email_verified"], claims["aud"]) == (EMAIL, True, CLIENT_ID), claims
    userinfo = app.userinfo(token=token)
    assert dict(userinfo) == {"sub": claims["sub"], "email": EMAIL, "email_verified": True}, userinfo

    try:
        app.fetch_access_token(REDIRECT_URI, **exchange)
        raise AssertionError("a code was taken twice")
    except OAuthError as error:
        assert error.error == "invalid_grant", error
    try:
        app.userinfo(token=token)
        raise AssertionError("the replay has not revoked the access token")
    except httpx.HTTPStatusError as error:
        assert error.response.status_code == 401, error

    logout = app.create_logout_url(POST_LOGOUT_REDIRECT_URI, id_token_hint=token["id_token"])
    url, _ = browser.visit(logout["url"])
    assert url == f"{POST_LOGOUT_REDIRECT_URI}?state={logout['state']}", url
    check_logout_token(app, claims)
    _, html = browser.visit(begun["url"])
    assert 'type="password"' in html, "signed out: the provider asks for the password again"


receiver = ThreadingHTTPServer(("127.0.0.1", urlsplit(REDIRECT_URI).port), LogoutReceiver)
threading.Thread(target=receiver.serve_forever, daemon=True).start()
sign_in("client_secret_basic")
assert logout_tokens.empty(), "one token for each session"
print("every call did what it should")
