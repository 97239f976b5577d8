// npm's openid-client, unmodified, with every check that it has. See mod.rs for what is said to it and by it.

import { createServer } from 'node:http';
import { createRequire } from 'node:module';
import { createInterface } from 'node:readline';

const client = await import(createRequire(`${process.env.NODE_MODULES}/`).resolve('openid-client'));

const server = createServer();
await new Promise((listening) => server.listen(0, '127.0.0.1', listening));
const redirectUri = `http://localhost:${server.address().port}/auth/callback`;
console.log(redirectUri);

const { issuer, client_id, client_secret } = JSON.parse(
  (await createInterface({ input: process.stdin })[Symbol.asyncIterator]().next()).value,
);
const config = await client.discovery(
  new URL(issuer),
  client_id,
  client_secret,
  client.ClientSecretBasic(client_secret),
  { execute: [client.allowInsecureRequests, client.enableNonRepudiationChecks] }, // plain HTTP; signatures checked too
);
const pkceCodeVerifier = client.randomPKCECodeVerifier();
const expectedState = client.randomState();
const expectedNonce = client.randomNonce();
const authorize = client.buildAuthorizationUrl(config, {
  redirect_uri: redirectUri,
  scope: 'openid email',
  code_challenge: await client.calculatePKCECodeChallenge(pkceCodeVerifier),
  code_challenge_method: 'S256',
  state: expectedState,
  nonce: expectedNonce,
});
console.log(authorize.href);

const answer = await new Promise((arrived) => {
  server.on('request', (request, response) => {
    response.end('Back at the client');
    if (request.url.startsWith('/auth/callback')) arrived(new URL(request.url, redirectUri));
  });
});
const tokens = await client.authorizationCodeGrant(config, answer, {
  pkceCodeVerifier,
  expectedState,
  expectedNonce,
  idTokenExpected: true,
});
const idToken = tokens.claims();
const userinfo = await client.fetchUserInfo(config, tokens.access_token, idToken.sub);
console.log(JSON.stringify({ id_token: idToken, userinfo }));
process.exit(0);
