// SPDX-License-Identifier: BSD-3-Clause
// In: a language model in a .pte file, texts. Out: answers, piece by piece. Runs in browsers, workers and Node.js; needs
// torchette_llm.wasm, which `torchette build --target wasm32-browser --llm` puts beside it, and torchette.js.
import { TorchetteError } from "./torchette.js";

const BAD_FILE = 8; // what WASI answers to all who ask for files: there are none

/** A language model and its conversation; both go when nobody refers to them any more. */
export class Llm {
  #wasm;
  #log = [];
  #facts;

  /**
   * Fetches and opens a language model.
   * @param source a URL, a Response, a Blob (such as a dropped file), or the bytes of a .pte file.
   * @param options wasm: where torchette_llm.wasm is, or its bytes; by default beside this file. tokenizer: likewise, of
   *   a tokenizer.json, a SentencePiece model or a tiktoken file, where the program has none. progress(bytes, of): how much
   *   has come. log(level, message): what the runtime has to say, besides to throwing it.
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
    const at = llm.#put(program); // stays: weights are used where they lie
    if (own === null) llm.#check(() => llm.#wasm.open(at, program.length, 0, 0));
    else llm.#with([own], (...given) => llm.#wasm.open(at, program.length, ...given));
    llm.#facts = llm.#result();
    return llm;
  }

  /** How many tokens a conversation may have. */
  get maxContext() {
    return this.#facts.maxContext;
  }
  get vocabSize() {
    return this.#facts.vocabSize;
  }
  /** Whether the file says how messages become a prompt. */
  get hasTemplate() {
    return this.#facts.hasTemplate;
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
   * Goes on with a text where the last answer ended; with a list of tokens, which are the whole conversation, from where
   * it departs. Yields pieces {text, token, logprob, top, last}; between them others have their turn, so that a page lives
   * and may leave the loop. Options are the members of GenerationConfig by name: max_new_tokens, temperature, top_k, top_p,
   * min_p, seed, stop, repetition_penalty, presence_penalty, frequency_penalty, logit_bias, logprobs, slide...; what is not
   * given is as the file's generation_config.json says, else the likeliest token is taken.
   */
  generate(prompt, options = {}) {
    return this.#answer(typeof prompt === "string" ? "begin" : "begin_tokens", typeof prompt === "string" ? prompt : JSON.stringify(prompt), options);
  }

  /** The answer to messages, [{role: "user", content: "Hello"}]; what earlier turns have computed is kept. */
  chat(messages, options = {}) {
    return this.#answer("begin_chat", JSON.stringify(messages), options);
  }

  async *#answer(how, given, options) {
    this.#with([given, JSON.stringify(options)], this.#wasm[how]);
    for (let piece = { last: false }; !piece.last; ) {
      this.#check(() => this.#wasm.next());
      piece = this.#result();
      yield piece;
      await turn();
    }
  }

  /** The prompt that the file's template makes of messages. */
  render(messages) {
    return this.#with([JSON.stringify(messages)], this.#wasm.render);
  }
  /** The tokens of a text, with those that begin every text if `special`. */
  encode(text, special = true) {
    return this.#with([text], (at, size) => this.#wasm.encode(at, size, special ? 1 : 0));
  }
  /** The text of tokens, special ones left out. */
  decode(tokens) {
    return this.#with([JSON.stringify(tokens)], this.#wasm.decode);
  }
  /** Forgets all tokens from `position` on. */
  rewind(position = 0) {
    if (!Number.isInteger(position) || position < 0) throw new TorchetteError("InvalidArgument", `there is no position ${position}`);
    this.#check(() => this.#wasm.rewind(position));
  }

  /** Calls with texts, each as its place and its size; the result, where there is one. */
  #with(texts, call) {
    const bytes = texts.map((text) => (typeof text === "string" ? new TextEncoder().encode(text) : text));
    const places = bytes.map((one) => this.#put(one));
    try {
      this.#check(() => call(...bytes.flatMap((one, i) => [places[i], one.length])));
      return this.#result();
    } finally {
      for (const place of places) this.#wasm.release(place);
    }
  }

  #put(bytes) {
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

/** Lets everything else have its turn; a timer would wait. */
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

async function bytesOf(source, progress = () => {}) {
  if (source instanceof ArrayBuffer) return new Uint8Array(source);
  if (ArrayBuffer.isView(source)) return new Uint8Array(source.buffer, source.byteOffset, source.byteLength);
  if (source instanceof Blob) return new Uint8Array(await source.arrayBuffer());
  const url = source instanceof Response ? null : new URL(source, globalThis.location?.href ?? import.meta.url);
  if (url?.protocol === "file:") {
    const { readFile } = await import("node:fs/promises");
    return readFile(url).catch((error) => {
      throw new TorchetteError("AccessFailed", error.message);
    });
  }
  const response = url === null ? source : await fetch(url);
  if (!response.ok) throw new TorchetteError("AccessFailed", `${response.url}: ${response.status} ${response.statusText}`);
  const parts = [];
  let size = 0;
  for (const reader = response.body.getReader(); ; ) {
    const { done, value } = await reader.read();
    if (done) break;
    parts.push(value);
    progress((size += value.length), Number(response.headers.get("Content-Length")) || null);
  }
  const bytes = new Uint8Array(size);
  size = 0;
  for (const part of parts) {
    bytes.set(part, size);
    size += part.length;
  }
  return bytes;
}
