// npm's `openid-client`, unmodified, signs a user in at our identity provider and out again. npm's `jose`, by the same
// author, verifies the logout tokens that the provider then sends to the port of REDIRECT_URI.
//
//     ISSUER=… CLIENT_ID=… CLIENT_SECRET=… REDIRECT_URI=… POST_LOGOUT_REDIRECT_URI=… EMAIL=… PASSWORD=… node openid_client.mjs
//
// The script plays the user over plain HTTP: it fills in and submits the forms on the provider's pages. It loads the package
// from the directory in NODE_MODULES, or else from Node's default path.

import assert from "node:assert/strict";
import { createServer } from "node:http";
import { createRequire } from "node:module";
import path from "node:path";
import { pathToFileURL } from "node:url";

const from = process.env.NODE_MODULES ? path.join(process.env.NODE_MODULES, "here.js") : import.meta.url;
const client = await import(pathToFileURL(createRequire(from).resolve("openid-client")));
const jose = await import(pathToFileURL(createRequire(from).resolve("jose")));

const { ISSUER, CLIENT_ID, CLIENT_SECRET, REDIRECT_URI, POST_LOGOUT_REDIRECT_URI, EMAIL, PASSWORD } = process.env;

/** The client's side of OpenID Connect Back-Channel Logout. */
class LogoutReceiver {
  tokens = [];
  waiting = [];

  constructor() {
    this.server = createServer(async (request, response) => {
      let body = "";
      for await (const chunk of request) body += chunk;
      response.end();
      const token = { path: request.url, form: new URLSearchParams(body) };
      const waiting = this.waiting.shift();
      if (waiting) waiting(token);
      else this.tokens.push(token);
    });
    this.server.listen(Number(new URL(REDIRECT_URI).port), "127.0.0.1");
  }

  next() {
    const token = this.tokens.shift();
    return token ? Promise.resolve(token) : new Promise((received) => this.waiting.push(received));
  }

  /** What section 2.6 of the standard asks of a client. */
  async check(metadata, claims) {
    const { path, form } = await this.next();
    assert.equal(path, "/auth/backchannel-logout");
    assert.deepEqual([...form.keys()], ["logout_token"]);
    const { payload } = await jose.jwtVerify(
      form.get("logout_token"),
      jose.createRemoteJWKSet(new URL(metadata.jwks_uri)),
      {
        issuer: ISSUER,
        audience: CLIENT_ID,
        subject: claims.sub,
        typ: "logout+jwt",
        algorithms: metadata.id_token_signing_alg_values_supported,
        requiredClaims: ["iat", "exp", "jti", "sid", "events"],
      },
    );
    assert.equal(payload.sid, claims.sid);
    assert.deepEqual(payload.events, { "http://schemas.openid.net/event/backchannel-logout": {} });
    assert.ok(!("nonce" in payload), "an ID token must not pass for a logout token");
  }
}

/** A browser without scripts: cookies, redirects, forms. */
class Browser {
  cookies = new Map();

  /** Follows redirects until a page is shown, or until one leads away from the provider. */
  async visit(url, options = {}) {
    for (let hops = 0; hops < 10; hops++) {
      if (!url.startsWith(ISSUER)) return { url, html: "" };
      const cookie = [...this.cookies].map(([name, value]) => `${name}=${value}`).join("; ");
      const reply = await fetch(url, { ...options, redirect: "manual", headers: { cookie, ...options.headers } });
      for (const line of reply.headers.getSetCookie()) {
        const [, name, value] = line.match(/^([^=]+)=([^;]*)/);
        if (value === "") this.cookies.delete(name);
        else this.cookies.set(name, value);
      }
      const html = await reply.text();
      if (reply.status !== 303) {
        assert.equal(reply.status, 200, `${url}: ${html}`);
        return { url, html };
      }
      url = new URL(reply.headers.get("location"), url).href;
      options = {};
    }
    assert.fail("too many redirects");
  }

  /** Submits the page's first form, as if by its first button. */
  async submit({ url, html }, typed = {}) {
    const [form] = html.match(/<form[^>]*method="post"[\s\S]*?<\/form>/) ?? assert.fail(html);
    const fields = new URLSearchParams();
    for (const [tag] of form.matchAll(/<input[^>]*>/g)) {
      const name = attribute(tag, "name");
      if (name) fields.append(name, typed[attribute(tag, "type")] ?? attribute(tag, "value") ?? "");
    }
    const [button] = form.match(/<button[^>]*>/);
    if (attribute(button, "name")) fields.append(attribute(button, "name"), attribute(button, "value"));
    const action = new URL(attribute(form, "action") ?? url, url).href;
    const headers = { "content-type": "application/x-www-form-urlencoded", origin: new URL(url).origin };
    return this.visit(action, { method: "POST", body: fields.toString(), headers });
  }
}

function attribute(tag, name) {
  const value = tag.match(new RegExp(` ${name}="([^"]*)"`))?.[1];
  return value?.replace(/&#(\d+);/g, (_, code) => String.fromCodePoint(code)).replaceAll("&amp;", "&");
}

async function signIn(authentication) {
  const metadata = { redirect_uris: [REDIRECT_URI] };
  const options = { execute: [client.allowInsecureRequests] };
  const config = await client.discovery(new URL(ISSUER), CLIENT_ID, metadata, authentication, options);
  assert.equal(config.serverMetadata().issuer, ISSUER);

  const pkceCodeVerifier = client.randomPKCECodeVerifier();
  const [expectedState, expectedNonce] = [client.randomState(), client.randomNonce()];
  const address = client.buildAuthorizationUrl(config, {
    redirect_uri: REDIRECT_URI,
    scope: "openid email",
    code_challenge: await client.calculatePKCECodeChallenge(pkceCodeVerifier),
    code_challenge_method: "S256",
    state: expectedState,
    nonce: expectedNonce,
    prompt: "consent",
    max_age: "3600",
  });

  const browser = new Browser();
  let page = await browser.visit(address.href);
  page = await browser.submit(page, { email: EMAIL, password: PASSWORD });
  assert.match(page.html, /Your email address/, "the consent page names what is shared");
  page = await browser.submit(page);
  assert.ok(page.url.startsWith(`${REDIRECT_URI}?`), `${page.url} ${page.html}`);

  const checks = { pkceCodeVerifier, expectedState, expectedNonce, idTokenExpected: true, maxAge: 3600 };
  const tokens = await client.authorizationCodeGrant(config, new URL(page.url), checks);
  const claims = tokens.claims();
  assert.equal(claims.email, EMAIL);
  assert.equal(claims.email_verified, true);
  const userinfo = await client.fetchUserInfo(config, tokens.access_token, claims.sub);
  assert.deepEqual(userinfo, { sub: claims.sub, email: EMAIL, email_verified: true });

  await assert.rejects(client.authorizationCodeGrant(config, new URL(page.url), checks), { error: "invalid_grant" });
  await assert.rejects(client.fetchUserInfo(config, tokens.access_token, claims.sub), "the replay has revoked it");

  const logout = client.buildEndSessionUrl(config, {
    id_token_hint: tokens.id_token, post_logout_redirect_uri: POST_LOGOUT_REDIRECT_URI, state: expectedState,
  });
  page = await browser.visit(logout.href);
  assert.equal(page.url, `${POST_LOGOUT_REDIRECT_URI}?state=${expectedState}`);
  await receiver.check(config.serverMetadata(), claims);
  page = await browser.visit(address.href);
  assert.match(page.html, /type="password"/, "signed out: the provider asks for the password again");
}

const receiver = new LogoutReceiver();
setTimeout(() => {
  console.error("not done within a minute; perhaps no logout token came");
  process.exit(1);
}, 60_000).unref();
await signIn(client.ClientSecretPost(CLIENT_SECRET));
assert.deepEqual(receiver.tokens, [], "one token for each session");
receiver.server.close();
receiver.server.closeAllConnections();
console.log("every call did what it should");
