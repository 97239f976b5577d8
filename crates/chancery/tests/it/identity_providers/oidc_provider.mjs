// npm's oidc-provider, set up as in its documentation: one client, one user, its own sign-in and consent pages. It
// prints its issuer when it is ready.

import { generateKeyPairSync } from 'node:crypto';
import { createServer } from 'node:http';
import { createRequire } from 'node:module';

const { NODE_MODULES, CLIENT_ID, CLIENT_SECRET, REDIRECT_URI, LOGIN, EMAIL } = process.env;
const { default: Provider } = await import(createRequire(`${NODE_MODULES}/`).resolve('oidc-provider'));

// Several keys of several types, so that a client must select one by `kid`.
const newKey = (kid, type, options) => {
  const { privateKey } = generateKeyPairSync(type, options);
  return { ...privateKey.export({ format: 'jwk' }), kid, use: 'sig' };
};
const keys = [
  newKey('curve-1', 'ec', { namedCurve: 'P-256' }),
  newKey('rsa-1', 'rsa', { modulusLength: 2048 }),
  newKey('curve-2', 'ec', { namedCurve: 'P-256' }),
];

const server = createServer();
await new Promise((listening) => server.listen(0, '127.0.0.1', listening));
const issuer = `http://127.0.0.1:${server.address().port}`;

const provider = new Provider(issuer, {
  clients: [
    {
      client_id: CLIENT_ID,
      client_secret: CLIENT_SECRET,
      redirect_uris: [REDIRECT_URI],
      grant_types: ['authorization_code'],
      response_types: ['code'],
      token_endpoint_auth_method: 'client_secret_basic',
      id_token_signed_response_alg: 'ES256',
    },
  ],
  claims: { openid: ['sub'], email: ['email', 'email_verified'] },
  cookies: { keys: ['a key of the tests'] },
  findAccount: (_, login) =>
    login === LOGIN
      ? { accountId: login, claims: () => ({ sub: login, email: EMAIL, email_verified: true }) }
      : undefined,
  jwks: { keys },
});
server.on('request', provider.callback());
console.log(`issuer ${issuer}`);
