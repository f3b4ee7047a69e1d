// The server: JSON, and streams of events.

const KEY = "unicorn.key";

/** A response that is no success. */
export class Refused extends Error {
  constructor(status, message) {
    super(message);
    this.status = status;
  }
}

export const keyOf = () => sessionStorage.getItem(KEY) ?? "";

export function setKey(key) {
  if (key) sessionStorage.setItem(KEY, key);
  else sessionStorage.removeItem(KEY);
}

/** The JSON at `path`. */
export async function get(path) {
  return (await ask(path, {})).json();
}

/** The chunks of a chat completion, as they come. */
export async function* complete(request, signal) {
  const body = JSON.stringify({ ...request, stream: true, stream_options: { include_usage: true } });
  const response = await ask("v1/chat/completions", { method: "POST", body, signal });
  for await (const data of events(response.body)) {
    if (data === "[DONE]") return;
    const chunk = JSON.parse(data);
    if (chunk.error) throw new Refused(chunk.error.code ?? 500, chunk.error.message ?? "the server failed");
    yield chunk;
  }
  throw new Refused(0, "The connection ended before the answer did.");
}

async function ask(path, options) {
  const headers = options.body ? { "Content-Type": "application/json" } : {};
  if (keyOf()) headers.Authorization = `Bearer ${keyOf()}`;
  let response;
  try {
    response = await fetch(path, { ...options, headers, cache: "no-store" });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new Refused(0, "The server cannot be reached.");
  }
  if (response.ok) return response;
  const text = await response.text();
  let message = text;
  try {
    message = JSON.parse(text).error.message ?? text;
  } catch { /* It is no JSON: shown as it is. */ }
  throw new Refused(response.status, message || `status ${response.status}`);
}

/** The data of the events of a stream. */
async function* events(body) {
  const reader = body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    const { done, value } = await reader.read();
    if (done) return;
    const lines = (rest + value).split("\n");
    rest = lines.pop();
    for (const line of lines) if (line.startsWith("data: ")) yield line.slice(6).trimEnd();
  }
}
