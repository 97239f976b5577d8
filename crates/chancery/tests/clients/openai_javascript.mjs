// OpenAI's own JavaScript client on Chancery. Only the base URL and the key are ours.
//
//     CHANCERY_URL=http://localhost:8080 CHANCERY_API_KEY=ck_… LIMITED_API_KEY=ck_… node openai_javascript.mjs
//
// LIMITED_API_KEY is a key of an account that is limited to one request per minute. The script loads the package
// `openai` from the directory in NODE_MODULES, or else from Node's default path.

import assert from "node:assert/strict";
import { createRequire } from "node:module";
import path from "node:path";

const from = process.env.NODE_MODULES ? path.join(process.env.NODE_MODULES, "here.js") : import.meta.url;
const OpenAI = createRequire(from)("openai");

const MODEL = "smollm2-135m";
const QUESTION = "What is a ledger?";
const INSTRUCTIONS = "Answer in one short sentence.";
const baseURL = `${process.env.CHANCERY_URL}/v1`;

const client = new OpenAI({ baseURL, apiKey: process.env.CHANCERY_API_KEY });

async function responses() {
  const response = await client.responses.create({
    model: MODEL, instructions: INSTRUCTIONS, input: QUESTION, max_output_tokens: 16, temperature: 0,
  });
  assert.match(response.output_text, /^A ledger is a record/);
  assert.equal(response.status, "incomplete");
  assert.equal(response.incomplete_details.reason, "max_output_tokens");
  assert.deepEqual(
    [response.usage.input_tokens, response.usage.output_tokens, response.usage.total_tokens], [11, 16, 27],
  );
  // The id in the log and the ledger.
  assert.equal(response._request_id, response.id.replace("resp_", "req_"));
  const counted = await client.responses.inputTokens.count({ model: MODEL, instructions: INSTRUCTIONS, input: QUESTION });
  assert.deepEqual([counted.object, counted.input_tokens], ["response.input_tokens", 11]);
}

// The reply is sent back unchanged, together with the next question.
async function aConversation() {
  const turns = [{ role: "developer", content: "Answer in one word." }, { role: "user", content: "Say hello." }];
  const first = await client.responses.create({ model: MODEL, input: turns, temperature: 0 });
  assert.equal(first.status, "completed");
  turns.push(...first.output, { role: "user", content: "Say it again." });
  const second = await client.responses.create({ model: MODEL, input: turns, temperature: 0, max_output_tokens: 8 });
  assert.ok(second.usage.input_tokens > first.usage.total_tokens);
}

async function responsesAsAStream() {
  const asked = { model: MODEL, instructions: INSTRUCTIONS, input: QUESTION, max_output_tokens: 16, temperature: 0 };
  const whole = await client.responses.create(asked);
  const events = [];
  for await (const event of await client.responses.create({ ...asked, stream: true })) {
    events.push(event);
  }
  assert.deepEqual(events.map((event) => event.sequence_number), [...events.keys()]);
  const deltas = events.filter((event) => event.type === "response.output_text.delta");
  assert.equal(deltas.map((event) => event.delta).join(""), whole.output_text);
  assert.equal(events[0].type, "response.created");
  assert.equal(events.at(-1).type, "response.incomplete");
  assert.equal(events.at(-1).response.usage.output_tokens, 16);

  // The client's own aggregation of the events.
  const final = await client.responses.stream({ model: MODEL, input: "Say hello.", temperature: 0 }).finalResponse();
  assert.equal(final.status, "completed");
  assert.ok(final.output_text.length > 0);
}

async function chat() {
  const messages = [{ role: "system", content: INSTRUCTIONS }, { role: "user", content: QUESTION }];
  const completion = await client.chat.completions.create({ model: MODEL, messages, max_tokens: 16, temperature: 0 });
  const [choice] = completion.choices;
  assert.match(choice.message.content, /^A ledger is a record/);
  assert.equal(choice.finish_reason, "length");
  assert.deepEqual(
    [completion.usage.prompt_tokens, completion.usage.completion_tokens, completion.usage.total_tokens], [11, 16, 27],
  );
  messages.push(choice.message, { role: "user", content: "Go on." });
  const next = await client.chat.completions.create({ model: MODEL, messages, max_completion_tokens: 4, temperature: 0 });
  assert.ok(next.usage.prompt_tokens > completion.usage.total_tokens);
}

async function chatAsAStream() {
  const asked = { model: MODEL, messages: [{ role: "user", content: QUESTION }], max_tokens: 12, temperature: 0 };
  const whole = await client.chat.completions.create(asked);
  const chunks = [];
  const stream = await client.chat.completions.create({ ...asked, stream: true, stream_options: { include_usage: true } });
  for await (const chunk of stream) {
    chunks.push(chunk);
  }
  const usage = chunks.pop();
  assert.deepEqual([usage.choices, usage.usage.completion_tokens], [[], 12]);
  assert.equal(chunks.map((chunk) => chunk.choices[0].delta.content ?? "").join(""), whole.choices[0].message.content);
  assert.equal(chunks.at(-1).choices[0].finish_reason, "length");

  const gathered = await client.chat.completions.stream(asked).finalChatCompletion();
  assert.equal(gathered.choices[0].message.content, whole.choices[0].message.content);
}

function checkLogprobs(logprobs, text, top) {
  assert.equal(logprobs.map((position) => position.token).join(""), text);
  for (const position of logprobs) {
    assert.ok(position.logprob <= 0);
    assert.equal(position.top_logprobs.length, top);
    // At temperature 0, the most likely token is chosen.
    assert.equal(position.top_logprobs[0].token, position.token);
  }
}

async function logprobsOfResponses() {
  const asked = {
    model: MODEL, input: QUESTION, max_output_tokens: 12, temperature: 0, include: ["message.output_text.logprobs"],
    top_logprobs: 3,
  };
  const whole = await client.responses.create(asked);
  checkLogprobs(whole.output[0].content[0].logprobs, whole.output_text, 3);
  const streamed = [];
  for await (const event of await client.responses.create({ ...asked, stream: true })) {
    if (event.type === "response.output_text.delta") {
      streamed.push(...event.logprobs);
    }
  }
  checkLogprobs(streamed, whole.output_text, 3);
  const final = await client.responses.stream(asked).finalResponse();
  checkLogprobs(final.output[0].content[0].logprobs, whole.output_text, 3);
}

async function logprobsOfChat() {
  const asked = {
    model: MODEL, messages: [{ role: "user", content: QUESTION }], max_tokens: 12, temperature: 0, logprobs: true,
    top_logprobs: 2,
  };
  const whole = await client.chat.completions.create(asked);
  const text = whole.choices[0].message.content;
  checkLogprobs(whole.choices[0].logprobs.content, text, 2);
  const streamed = [];
  for await (const chunk of await client.chat.completions.create({ ...asked, stream: true })) {
    streamed.push(...(chunk.choices[0].logprobs?.content ?? []));
  }
  checkLogprobs(streamed, text, 2);
  const gathered = await client.chat.completions.stream(asked).finalChatCompletion();
  checkLogprobs(gathered.choices[0].logprobs.content, text, 2);
}

async function models() {
  const ids = [];
  for await (const model of client.models.list()) {
    ids.push(model.id);
  }
  assert.deepEqual(ids, [MODEL]);
  assert.equal((await client.models.retrieve(MODEL)).object, "model");
}

async function refused(errorClass, code, param, call) {
  try {
    await call();
  } catch (error) {
    assert.ok(error instanceof errorClass, `${error}`);
    assert.deepEqual([error.code, error.param], [code, param]);
    assert.match(error.requestID, /^req_/);
    return error;
  }
  assert.fail(`${code} was not thrown`);
}

async function errors() {
  const ask = (fields, options) => () => client.responses.create({ model: MODEL, input: "x", ...fields }, options);
  const chat = (fields) => () =>
    client.chat.completions.create({ model: MODEL, messages: [{ role: "user", content: "x" }], ...fields });
  await refused(OpenAI.BadRequestError, "invalid_value", "max_output_tokens", ask({ max_output_tokens: 1e9 }));
  await refused(OpenAI.BadRequestError, "invalid_value", "max_completion_tokens", chat({ max_completion_tokens: 1e9 }));
  await refused(OpenAI.BadRequestError, "invalid_value", "n", chat({ n: 2 }));
  await refused(OpenAI.BadRequestError, "invalid_value", "tools", chat({ tools: [{ type: "function", function: { name: "f" } }] }));
  await refused(OpenAI.BadRequestError, "invalid_value", "presence_penalty", chat({ presence_penalty: -3 }));
  await refused(OpenAI.BadRequestError, "invalid_value", "top_logprobs", chat({ top_logprobs: 2 }));
  await refused(OpenAI.BadRequestError, "invalid_value", "top_logprobs", ask({ top_logprobs: 2 }));
  await refused(OpenAI.BadRequestError, "malformed_request", "temprature", ask({ temprature: 1 }));
  await refused(OpenAI.NotFoundError, "model_not_found", "model", ask({ model: "gpt" }));
  await refused(OpenAI.NotFoundError, "not_found", null, () => client.responses.retrieve("resp_1"));
  const stranger = client.withOptions({ apiKey: "ck_nobody" });
  await refused(OpenAI.AuthenticationError, "invalid_api_key", null, () =>
    stranger.responses.create({ model: MODEL, input: "x" }));
}

// A client with retries would wait as told: the Python client does.
async function pastTheLimit() {
  const limited = client.withOptions({ apiKey: process.env.LIMITED_API_KEY });
  const asked = { model: MODEL, input: "Say hello.", max_output_tokens: 1 };
  await limited.responses.create(asked);
  const error = await refused(OpenAI.RateLimitError, "rate_limit_exceeded", null, () =>
    limited.responses.create(asked, { maxRetries: 0 }));
  const seconds = Number(error.headers.get("retry-after"));
  assert.ok(seconds > 0 && seconds <= 60);
}

for (const part of [
  responses, aConversation, responsesAsAStream, chat, chatAsAStream, logprobsOfResponses, logprobsOfChat, models, errors,
  pastTheLimit,
]) {
  await part();
}
console.log("every call did what it should");
