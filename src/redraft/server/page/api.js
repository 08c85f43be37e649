// The server, and nothing else: requests, streams of events, and errors in words.

const BASE = new URL("../", import.meta.url);
const KEY = "redraft.key";

/** An answer that is an error. `status` is 0 where there was no answer at all. */
export class ApiError extends Error {
  constructor(status, message, { param = null, code = null, retry = 0 } = {}) {
    super(message);
    Object.assign(this, { status, param, code, retry });
  }
}

/** The API key for this tab; forgotten when it is closed. */
export const key = {
  get: () => sessionStorage.getItem(KEY) ?? "",
  set: (value) => sessionStorage.setItem(KEY, value),
};

/** GET, as JSON. */
export async function get(path, signal) {
  return (await send(path, { method: "GET", signal })).json();
}

/** GET, as text. */
export async function getText(path) {
  return (await send(path, { method: "GET" })).text();
}

/** POST, as JSON. */
export async function post(path, body, signal) {
  return (await send(path, { method: "POST", body: JSON.stringify(body), signal })).json();
}

/** POST, and the chunks of the answer as they come. Throws ApiError if the stream breaks off. */
export async function* stream(path, body, signal) {
  const answer = await send(path, { method: "POST", body: JSON.stringify({ ...body, stream: true }), signal });
  for await (const data of events(answer.body)) {
    if (data === "[DONE]") return;
    const chunk = parsed(data);
    if (chunk.error) throw failure(0, chunk.error);
    yield chunk;
  }
  throw new ApiError(0, "The connection ended before the answer did. Ask again.");
}

/** The data of each server-sent event of a stream of bytes. Comments and other fields are passed over. */
export async function* events(bytes) {
  const reader = bytes.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  let data = [];
  try {
    for (;;) {
      const { value, done } = await pull(reader);
      if (done) return;
      const lines = (rest + value).split(/\r\n|\n|\r(?!$)/);
      rest = lines.pop();
      for (const line of lines) {
        if (line.startsWith("data:")) data.push(line.slice(5).replace(/^ /, ""));
        else if (line === "" && data.length) {
          yield data.join("\n");
          data = [];
        }
      }
    }
  } finally {
    reader.cancel().catch(() => {});
  }
}

function parsed(data) {
  try {
    return JSON.parse(data);
  } catch {
    throw new ApiError(0, `A piece of the answer is not JSON: ${data.slice(0, 100)}`);
  }
}

async function pull(reader) {
  try {
    return await reader.read();
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new ApiError(0, "The connection broke. Ask again when the server is back.");
  }
}

async function send(path, options) {
  const headers = { "content-type": "application/json" };
  if (key.get()) headers.authorization = `Bearer ${key.get()}`;
  let answer;
  try {
    answer = await fetch(new URL(path, BASE), { ...options, headers, cache: "no-store" });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new ApiError(0, "The server does not answer. Is it still running?");
  }
  if (!answer.ok) throw await refused(answer);
  return answer;
}

async function refused(answer) {
  const retry = Number(answer.headers.get("retry-after")) || 0;
  try {
    return failure(answer.status, (await answer.json()).error, retry);
  } catch {
    return new ApiError(answer.status, `The server answered ${answer.status}.`, { retry });
  }
}

function failure(status, error, retry = 0) {
  return new ApiError(status, error.message, { param: error.param, code: error.code, retry });
}
