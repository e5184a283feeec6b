// SPDX-License-Identifier: BSD-3-Clause
// The class of llm.js for a language model that a server runs: `torchette serve` sends this module as llm.js to the chat page.

/** A language model of a server with OpenAI's endpoints. The caller keeps the conversation. */
export class Llm {
  #url;
  #headers;
  #model;
  /** Counts and times of the last answer, with the names of llm.js. */
  statistics = null;
  hasTemplate = true;

  /**
   * Asks the server for a model.
   * @param source the URL of the model, .../v1/models/NAME.
   * @param options key: the API key of the server.
   */
  static async load(source, { key } = {}) {
    if (source instanceof Blob) throw failure({ code: "InvalidArgument", message: "to open a file, start torchette serve with it" });
    const llm = new Llm();
    llm.#url = source.slice(0, source.lastIndexOf("models/"));
    llm.#headers = { "Content-Type": "application/json", ...(key && { Authorization: `Bearer ${key}` }) };
    llm.#model = await (await llm.#ask(source)).json();
    return llm;
  }

  /** The maximum number of tokens of a conversation. */
  get maxContext() {
    return this.#model.max_model_len;
  }

  /** Yields the pieces {text} of the answer to messages. Leaving the loop ends the answer on the server. */
  async *chat(messages, { maxNewTokens, ...options }) {
    const inference_start_ms = performance.now();
    const body = { model: this.#model.id, max_tokens: maxNewTokens, stream: true, stream_options: { include_usage: true }, ...options };
    const connection = new AbortController();
    let [first_token_ms, generated_tokens] = [0, 0];
    try {
      const response = await this.#ask("chat/completions", { ...body, messages }, connection.signal).catch((error) => {
        if (error.code !== "no-chat-template") throw error;
        const prompt = messages.map((message) => message.content).join("");
        return this.#ask("completions", { ...body, prompt }, connection.signal);
      });
      for await (const { error, usage, choices } of events(response)) {
        if (error) throw failure(error);
        const text = choices?.[0]?.delta?.content ?? choices?.[0]?.text;
        if (text) {
          first_token_ms ||= performance.now();
          generated_tokens += 1;
          yield { text };
        }
        generated_tokens = usage?.completion_tokens ?? generated_tokens;
      }
    } finally {
      connection.abort();
      this.statistics = { generated_tokens, inference_start_ms, first_token_ms, inference_end_ms: performance.now() };
    }
  }

  async #ask(path, body, signal) {
    const method = body ? "POST" : "GET";
    const response = await fetch(new URL(path, this.#url), { method, headers: this.#headers, body: JSON.stringify(body), signal });
    if (!response.ok) throw failure((await response.json().catch(() => ({}))).error ?? { message: `${response.url}: ${response.status}` });
    return response;
  }
}

/** An error as llm.js throws it. */
function failure({ code, message }) {
  return Object.assign(new Error(message), { code: code === "context_length_exceeded" ? "OutOfResources" : code });
}

/** Yields the objects of a stream of server-sent events. */
async function* events(response) {
  const decoder = new TextDecoder();
  let text = "";
  for (const reader = response.body.getReader(); ; ) {
    const { done, value } = await reader.read();
    if (done) return;
    const parts = (text + decoder.decode(value, { stream: true })).split("\n\n");
    text = parts.pop();
    for (const part of parts) if (!part.endsWith("[DONE]")) yield JSON.parse(part.slice("data: ".length));
  }
}
