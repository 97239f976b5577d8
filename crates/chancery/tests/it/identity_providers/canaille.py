"""PyPI's canaille on its own server, hypercorn: one client, two users, everything in memory, with keys that it generates
itself. It prints its issuer when it is ready."""

import asyncio
import os
import socket

from canaille.app import models
from canaille.backends import Backend
from canaille.hypercorn.app import create_app
from hypercorn.asyncio import serve
from hypercorn.config import Config

listener = socket.create_server(("127.0.0.1", 0))
address = "127.0.0.1:%d" % listener.getsockname()[1]

settings = {
    "SECRET_KEY": "a key of the tests",
    "SERVER_NAME": address,
    "PREFERRED_URL_SCHEME": "http",
    # Full pages only: partial updates while the test types would lose the input.
    "CANAILLE": {"DATABASE": "memory", "SMTP": None, "JAVASCRIPT": False, "HTMX": False},
    "CANAILLE_OIDC": {"TRUSTED_DOMAINS": []},  # without this a client on loopback needs no consent
}
application = create_app(config=settings, env_file=None)
with application.wsgi_application.app_context():
    for prefix, name in [("", "Ada Hale"), ("OTHER_", "Grace Ward")]:
        person = models.User(
            user_name=os.environ[prefix + "LOGIN"],
            formatted_name=name,
            family_name=name.split()[1],
            emails=[os.environ[prefix + "EMAIL"]],
            password=os.environ["PASSWORD"],
        )
        Backend.instance.save(person)
    client = models.Client(
        client_id=os.environ["CLIENT_ID"],
        client_secret=os.environ["CLIENT_SECRET"],
        client_name="The portal",
        redirect_uris=[os.environ["REDIRECT_URI"]],
        post_logout_redirect_uris=[os.environ["POST_LOGOUT_REDIRECT_URI"]],
        grant_types=["authorization_code"],
        response_types=["code"],
        scope=["openid", "email"],
        token_endpoint_auth_method="client_secret_basic",
        id_token_signed_response_alg="RS256",  # the standard's default; otherwise canaille picks its longest
    )
    Backend.instance.save(client)
    client.audience = [client]
    Backend.instance.save(client)

print(f"issuer http://{address}", flush=True)
config = Config()
config.bind = [f"fd://{listener.fileno()}"]
asyncio.run(serve(application, config))
