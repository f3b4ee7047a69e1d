// Asks a server the same by each client library of npm, whole and streamed: node clients.mjs HOST:PORT FOLDER, where FOLDER has their
// node_modules. All of them have to get the same answer.
import assert from "node:assert/strict";
import { createRequire } from "node:module";
import { pathToFileURL } from "node:url";

const [address, folder] = process.argv.slice(2);
const installed = createRequire(`${folder}/clients.mjs`);
const load = (name) => import(pathToFileURL(installed.resolve(name)));
const { default: OpenAI } = await load("openai");
const { createOpenAICompatible } = await load("@ai-sdk/openai-compatible");
const { generateText, jsonSchema, Output, streamText, tool } = await load("ai");

const url = `http://${address}/v1`;
const messages = [{ role: "user", content: "Who lives on the island?" }];
const look = { type: "function", function: { name: "look", parameters: { type: "object", properties: {} } } };

const client = new OpenAI({ baseURL: url, apiKey: "any", maxRetries: 0 });
const model = (await client.models.list()).data[0].id;
const chat = { model, messages, max_tokens: 12, temperature: 0 };
const reply = await client.chat.completions.create(chat);
const text = reply.choices[0].message.content;
assert.ok(text && reply.choices[0].finish_reason === "length" && reply.usage.completion_tokens === 12, text);
let streamed = "";
for await (const chunk of await client.chat.completions.create({ ...chat, stream: true })) {
  streamed += chunk.choices[0]?.delta.content ?? "";
}
assert.equal(streamed, text);
const named = { type: "function", function: { name: "look" } };
const called = await client.chat.completions.create({ ...chat, tools: [look], tool_choice: named });
assert.equal(called.choices[0].message.tool_calls[0].function.name, "look");
const response = await client.responses.create({ model, input: messages[0].content, max_output_tokens: 12, temperature: 0 });
assert.equal(response.output_text, text);
await assert.rejects(
  client.chat.completions.create({ ...chat, mirostat: 2 }),
  (error) => error instanceof OpenAI.BadRequestError && error.message.includes("mirostat"),
);

const provider = createOpenAICompatible({ name: "unicorn", baseURL: url, includeUsage: true, supportsStructuredOutputs: true });
const ask = { model: provider(model), messages, maxOutputTokens: 12, temperature: 0, maxRetries: 0 };
const whole = await generateText(ask);
assert.equal(whole.text, text);
assert.deepEqual([whole.finishReason, whole.usage.outputTokens], ["length", 12]);
const parts = streamText(ask);
streamed = "";
for await (const part of parts.textStream) streamed += part;
assert.equal(streamed, text);
assert.equal((await parts.usage).outputTokens, 12);
const schema = { type: "object", properties: { days: { type: "integer", minimum: 1, maximum: 9 } }, required: ["days"], additionalProperties: false };
const tools = { look: tool({ inputSchema: jsonSchema(schema) }) };
const made = await generateText({ ...ask, maxOutputTokens: 64, tools, toolChoice: { type: "tool", toolName: "look" } });
assert.equal(made.toolCalls[0].toolName, "look");
assert.ok(made.toolCalls[0].input.days >= 1 && made.toolCalls[0].input.days <= 9, JSON.stringify(made.toolCalls));
const found = await generateText({ ...ask, maxOutputTokens: 64, output: Output.object({ schema: jsonSchema(schema) }) });
assert.ok(found.output.days >= 1 && found.output.days <= 9, found.text);
