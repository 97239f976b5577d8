// npm's oidc-provider, set up as in its documentation: one client, two users, its own sign-in and consent pages. It
// prints its issuer when it is ready.

import { generateKeyPairSync } from 'node:crypto';
import { createServer } from 'node:http';
import { createRequire } from 'node:module';

const { NODE_MODULES, CLIENT_ID, CLIENT_SECRET, REDIRECT_URI, LOGIN, EMAIL } = process.env;
const { OTHER_LOGIN, OTHER_EMAIL, POST_LOGOUT_REDIRECT_URI, BACKCHANNEL_LOGOUT_URI } = process.env;
const addresses = { [LOGIN]: EMAIL, [OTHER_LOGIN]: OTHER_EMAIL };
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
      post_logout_redirect_uris: [POST_LOGOUT_REDIRECT_URI],
      backchannel_logout_uri: BACKCHANNEL_LOGOUT_URI,
      backchannel_logout_session_required: true,
      grant_types: ['authorization_code'],
      response_types: ['code'],
      token_endpoint_auth_method: 'client_secret_basic',
      id_token_signed_response_alg: 'ES256',
    },
  ],
  claims: { openid: ['sub'], email: ['email', 'email_verified'] },
  cookies: { keys: ['a key of the tests'] },
  findAccount: (_, login) =>
    addresses[login]
      ? { accountId: login, claims: () => ({ sub: login, email: addresses[login], email_verified: true }) }
      : undefined,
  features: { backchannelLogout: { enabled: true } },
  // Its default connections refuse loopback addresses, and here everything is on loopback. The printed logout tokens are
  // for a test that sends one again.
  fetch: (url, { dispatcher, ...options }) => {
    console.log(`sends ${options.body}`);
    return fetch(url, options);
  },
  jwks: { keys },
});
server.on('request', provider.callback());
console.log(`issuer ${issuer}`);
