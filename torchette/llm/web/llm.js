// SPDX-License-Identifier: BSD-3-Clause
// In: a language model in a .pte file, texts. Out: answers in pieces. Runs in browsers, workers and Node.js. Needs
// torchette.js and torchette_llm.wasm, which `torchette build --target wasm32-browser --llm` writes to the same folder.
import { TorchetteError, bytesOf } from "./torchette.js";

const BAD_FILE = 8; // WASI's EBADF, the result of all functions for files

/** A language model and its conversation. Both are freed with the object. */
export class Llm {
  #wasm;
  #log = [];
  #properties;
  #current = null; // identifies the answer in generation

  /**
   * Fetches and opens a language model.
   * @param source a URL, a Response, a Blob (such as a dropped file), or the bytes of a .pte file.
   * @param options wasm: the URL or the bytes of torchette_llm.wasm; by default the file next to this module. tokenizer: the
   *   same for a tokenizer.json, a SentencePiece model or a tiktoken file, if the program has no tokenizer. progress(bytes,
   *   total): called during the download. log(level, message): receives the log of the runtime.
   */
  static async load(source, { wasm = new URL("torchette_llm.wasm", import.meta.url), tokenizer, progress, log = () => {} } = {}) {
    const llm = new Llm();
    const code = await WebAssembly.compile(await bytesOf(wasm));
    const host = {
      log: (level, address, length) => {
        const message = new TextDecoder().decode(llm.#bytes(address, length));
        llm.#log.push(message);
        log(String.fromCharCode(level), message);
      },
      now: () => performance.now(),
    };
    const wasi = {
      clock_time_get: (_clock, _precision, address) => {
        new DataView(llm.#wasm.memory.buffer).setBigUint64(address, BigInt(Date.now()) * 1000000n, true);
        return 0;
      },
      proc_exit: (status) => {
        throw new TorchetteError("Internal", `the runtime has ended with ${status}`);
      },
    };
    const imports = { torchette: host, wasi_snapshot_preview1: {} };
    for (const { module, name } of WebAssembly.Module.imports(code))
      if (module === "wasi_snapshot_preview1") imports[module][name] = wasi[name] ?? (() => BAD_FILE);
    llm.#wasm = (await WebAssembly.instantiate(code, imports)).exports;
    llm.#wasm._initialize();
    const [program, own] = [await bytesOf(source, progress), tokenizer === undefined ? null : await bytesOf(tokenizer)];
    const at = llm.#copyIn(program); // stays allocated: the runtime reads the weights there
    if (own === null) llm.#check(() => llm.#wasm.open(at, program.length, 0, 0));
    else llm.#with([own], (...given) => llm.#wasm.open(at, program.length, ...given));
    llm.#properties = llm.#result();
    return llm;
  }

  /** The maximum of tokens in a conversation. */
  get maxContext() {
    return this.#properties.maxContext;
  }
  get vocabSize() {
    return this.#properties.vocabSize;
  }
  /** Whether the file has a chat template. */
  get hasTemplate() {
    return this.#properties.hasTemplate;
  }
  /** The tokens of the conversation so far. */
  get tokens() {
    this.#wasm.tokens();
    return this.#result();
  }
  /** Counts and times of the last answer, as print_report() of the runtime has them. */
  get statistics() {
    this.#wasm.stats();
    return this.#result();
  }
  /** Bytes of memory in use. */
  get memory() {
    return this.#wasm.memory.buffer.byteLength;
  }

  /**
   * Generates an answer. A text continues the conversation after the last answer. A list of tokens is a complete conversation;
   * tokens that it shares with the last one are not computed again. Yields pieces {text, token, logprob, top, last}. Other tasks
   * run between two pieces, so a page stays responsive. Leaving the loop ends the answer. An `Llm` generates one answer at a
   * time: a second answer is the error "InvalidState".
   * @param options generation options by the names of docs/llm-cpp.md, such as maxNewTokens, temperature, topP and stop.
   *   The defaults are those of the file's generation_config.json, else the most probable token is chosen.
   */
  generate(prompt, options = {}) {
    return typeof prompt === "string" ? this.#answer("begin", [prompt], options) : this.#answer("begin_tokens", [json(prompt)], options);
  }

  /**
   * Generates the answer to messages, [{role: "user", content: "Hello"}]; runs only what is new.
   * @param options as for generate, and tools and toolChoice in the form of OpenAI, and template: other variables of the chat
   *   template, such as {enable_thinking: false}.
   */
  chat(messages, { tools, toolChoice, tool_choice = toolChoice, template, ...options } = {}) {
    return this.#answer("begin_chat", [json(messages), json({ tools, tool_choice, template })], options);
  }

  async *#answer(begin, texts, options) {
    if (this.#current !== null)
      throw new TorchetteError("InvalidState", "another answer of this Llm is not complete; leave its loop or call rewind() first");
    const answer = (this.#current = {});
    try {
      this.#with([...texts, json(options)], this.#wasm[begin]);
      for (let piece = { last: false }; !piece.last; ) {
        if (this.#current !== answer) throw new TorchetteError("InvalidState", "rewind() has ended this answer");
        this.#check(() => this.#wasm.next());
        piece = this.#result();
        yield piece;
        await turn();
      }
    } finally {
      if (this.#current === answer) this.#current = null;
    }
  }

  /** Returns the prompt that the chat template renders from messages, with tools, toolChoice and template as for chat. */
  render(messages, { tools, toolChoice, tool_choice = toolChoice, template } = {}) {
    return this.#with([json(messages), json({ tools, tool_choice, template })], this.#wasm.render);
  }
  /** Returns the tokens of a text, with the tokens that begin every text if `special`. */
  encode(text, special = true) {
    return this.#with([text], (at, size) => this.#wasm.encode(at, size, special ? 1 : 0));
  }
  /** Returns the text of tokens without special tokens. */
  decode(tokens) {
    return this.#with([json(tokens)], this.#wasm.decode);
  }
  /** Removes all tokens from `position` on, and ends an answer that is not complete. */
  rewind(position = 0) {
    if (!Number.isInteger(position) || position < 0) throw new TorchetteError("InvalidArgument", `there is no position ${position}`);
    this.#check(() => this.#wasm.rewind(position));
    this.#current = null;
  }

  /** Calls a function with the address and the size of each text. Returns its result, or null. */
  #with(texts, call) {
    const bytes = texts.map((text) => (typeof text === "string" ? new TextEncoder().encode(text) : text));
    const addresses = bytes.map((one) => this.#copyIn(one));
    try {
      this.#check(() => call(...bytes.flatMap((one, i) => [addresses[i], one.length])));
      return this.#result();
    } finally {
      for (const address of addresses) this.#wasm.release(address);
    }
  }

  #copyIn(bytes) {
    const at = this.#wasm.reserve(bytes.length) >>> 0;
    if (at === 0) throw new TorchetteError("MemoryAllocationFailed", `no memory for ${bytes.length} bytes`);
    this.#bytes(at, bytes.length).set(bytes);
    return at;
  }
  #bytes(address, length) {
    return new Uint8Array(this.#wasm.memory.buffer, address >>> 0, length >>> 0);
  }
  #result() {
    const text = new TextDecoder().decode(this.#bytes(this.#wasm.result(), this.#wasm.result_size()));
    return text === "" ? null : JSON.parse(text);
  }
  #check(call) {
    this.#log = [];
    let error;
    try {
      error = call();
    } catch (trap) {
      if (trap instanceof TorchetteError) throw trap;
      throw new TorchetteError("Internal", this.#log.join("\n") || `the runtime has ended: ${trap.message}`);
    }
    if (error === 0) return;
    const name = this.#wasm.error_name(error) >>> 0;
    const bytes = new Uint8Array(this.#wasm.memory.buffer, name);
    const code = new TextDecoder().decode(bytes.subarray(0, bytes.indexOf(0)));
    throw new TorchetteError(code, this.#log.join("\n") || code);
  }
}

/**
 * JSON of a value. -Infinity becomes a number that a float of C++ represents as -infinity; NaN becomes a text, which is refused.
 * Half a surrogate pair becomes U+FFFD, as in a prompt.
 */
function json(value) {
  const valid = (_, item) => {
    if (typeof item === "string") return new TextDecoder("utf-8", { ignoreBOM: true }).decode(new TextEncoder().encode(item));
    return typeof item !== "number" || Number.isFinite(item) ? item : item === -Infinity ? -1e300 : String(item);
  };
  return JSON.stringify(value, valid);
}

/** Lets other tasks run. A timer would wait for milliseconds. */
const turn = globalThis.setImmediate
  ? () => new Promise((resolve) => globalThis.setImmediate(resolve))
  : () =>
      new Promise((resolve) => {
        const { port1, port2 } = new MessageChannel();
        port1.onmessage = () => {
          port1.close();
          resolve();
        };
        port2.postMessage(null);
      });
