// Checks identity tokens with `jose`, as a service that trusts the server would. Run by scripts/test-identity.
import { strict as assert } from "node:assert";
import { createRemoteJWKSet, jwtVerify } from "jose";

const url = process.env.COVE_URL;
const headers = { authorization: `Bearer ${process.env.COVE_API_KEY}`, "content-type": "application/json" };

async function ask(method, path, body) {
  const answer = await fetch(url + path, { method, headers, body: body && JSON.stringify(body) });
  const text = await answer.text();
  assert.ok(answer.ok, text);
  return text ? JSON.parse(text) : undefined;
}

const discovery = await (await fetch(`${url}/.well-known/openid-configuration`)).json();
const keys = createRemoteJWKSet(new URL(discovery.jwks_uri));
const box = await ask("POST", "/v1/sandboxes", {});
try {
  const { token } = await ask("POST", `/v1/sandboxes/${box.id}/identity`, { audience: "vault" });
  const { payload, protectedHeader } = await jwtVerify(token, keys, { issuer: discovery.issuer, audience: "vault" });
  assert.equal(protectedHeader.alg, "RS256");
  assert.equal(payload.cove.sandbox, box.id);
  await assert.rejects(jwtVerify(token, keys, { issuer: discovery.issuer, audience: "other" }));
  await assert.rejects(jwtVerify(token.slice(0, -4) + "AAAA", keys, { issuer: discovery.issuer, audience: "vault" }));
} finally {
  await ask("DELETE", `/v1/sandboxes/${box.id}`);
}
console.log("jose: good");
