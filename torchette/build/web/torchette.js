// SPDX-License-Identifier: BSD-3-Clause
// Runs a .pte program on typed arrays, in browsers, workers and Node.js. Requires only torchette.wasm, which
// `torchette build --target wasm32-browser` writes next to this file. Types: torchette.d.ts.

// torch's number -> name and array type (torchette/schema/dtypes.def; tests/build/test_web.py compares them).
const DTYPES = new Map([
  [0, ["uint8", Uint8Array]],
  [1, ["int8", Int8Array]],
  [2, ["int16", Int16Array]],
  [3, ["int32", Int32Array]],
  [4, ["int64", BigInt64Array]],
  [5, ["float16", Uint16Array]],
  [6, ["float32", Float32Array]],
  [7, ["float64", Float64Array]],
  [11, ["bool", Uint8Array]],
  [15, ["bfloat16", Uint16Array]],
  [27, ["uint16", Uint16Array]],
  [28, ["uint32", Uint32Array]],
  [29, ["uint64", BigUint64Array]],
]);
const NUMBERS = new Map([...DTYPES].map(([number, [name]]) => [name, number]));
const KINDS = ["none", "tensor", "string", "double", "int", "bool"];
const [NONE, TENSOR, , DOUBLE, INT, BOOL] = KINDS.keys();
const MAX_DIM = 16;
const STATIC = 0;

/** An error. `code` is the runtime's name of the error, such as "InvalidArgument". */
export class TorchetteError extends Error {
  constructor(code, message) {
    super(message);
    this.name = "TorchetteError";
    this.code = code;
  }
}

/** Elements in row-major order (or in the dim order of the method, if it differs), and their sizes. */
export class Tensor {
  constructor(data, shape = [data.length], dtype = undefined) {
    if (!ArrayBuffer.isView(data) || data instanceof DataView)
      throw new TorchetteError("InvalidArgument", "the data of a tensor must be a typed array, such as Float32Array");
    if (dtype !== undefined && !NUMBERS.has(dtype))
      throw new TorchetteError("InvalidArgument", `there is no dtype ${dtype}; dtypes: ${[...NUMBERS.keys()].join(", ")}`);
    const count = shape.reduce((product, size) => product * size, 1);
    if (shape.length > MAX_DIM || !shape.every((size) => Number.isInteger(size) && size >= 0 && size < 2 ** 31) || count !== data.length)
      throw new TorchetteError("InvalidArgument", `${data.length} elements do not make a tensor of shape [${shape.join(", ")}]`);
    this.data = data;
    this.shape = [...shape];
    this.dtype = dtype ?? dtypeOf(data);
    const width = DTYPES.get(NUMBERS.get(this.dtype))[1].BYTES_PER_ELEMENT;
    if (width !== data.BYTES_PER_ELEMENT)
      throw new TorchetteError("InvalidArgument", `elements of ${dtype} have ${width} bytes, but elements of ${data.constructor.name} have ${data.BYTES_PER_ELEMENT}`);
  }
}

/** Returns the default dtype of an array type; float16, bfloat16 and bool must be passed explicitly. */
function dtypeOf(data) {
  for (const [name, Type] of DTYPES.values())
    if (data instanceof Type && name !== "float16") return name === "bfloat16" ? "uint16" : name;
  if (data instanceof Uint8ClampedArray) return "uint8";
  throw new TorchetteError("InvalidArgument", `${data.constructor.name} does not correspond to a dtype`);
}

/** A program in its own instance of the runtime; both are garbage-collected. */
export class Module {
  #wasm;
  #log = [];
  #methods = new Map();
  #at;

  /**
   * Fetches and opens a program.
   * @param source a URL, a Response, a Blob, or the bytes of a .pte file.
   * @param options wasm: URL or bytes of torchette.wasm, or a compiled WebAssembly.Module; by default torchette.wasm next
   *   to this file. log(level, message): receives log messages of the runtime, in addition to thrown errors.
   */
  static async load(source, { wasm = new URL("torchette.wasm", import.meta.url), log = () => {} } = {}) {
    const [bytes, compiled] = await Promise.all([bytesOf(source), compile(wasm)]);
    const module = new Module();
    await module.#open(bytes, compiled, log);
    return module;
  }

  async #open(bytes, compiled, log) {
    const imports = {
      log: (level, address, length) => {
        const message = new TextDecoder().decode(this.#bytes(address, length));
        this.#log.push(message);
        log(String.fromCharCode(level), message);
      },
      now: () => performance.now(),
    };
    const instance = await WebAssembly.instantiate(compiled, { torchette: imports });
    this.#wasm = instance.exports;
    this.#wasm._initialize();
    this.#at = this.#wasm.description();
    const address = this.#wasm.reserve(bytes.length) >>> 0;
    if (address === 0) throw new TorchetteError("MemoryAllocationFailed", `no memory for a program of ${bytes.length} bytes`);
    this.#bytes(address, bytes.length).set(bytes);
    this.#check(() => this.#wasm.open(address, bytes.length));
    for (let index = 0; index < this.#wasm.num_methods(); ++index) {
      const name = this.#text(this.#wasm.method_name(index));
      this.#methods.set(name, {
        name,
        index,
        inputs: this.#signature(index, false, this.#wasm.num_inputs(index)),
        outputs: this.#signature(index, true, this.#wasm.num_outputs(index)),
        loaded: false,
      });
    }
  }

  /** Names of the program's methods. */
  get methods() {
    return [...this.#methods.keys()];
  }

  /** Returns the inputs of a method: kind and, for tensors, dtype, shape (maximum sizes) and minimum sizes. */
  inputs(method = "forward") {
    return structuredClone(this.#method(method).inputs);
  }

  /** Returns the outputs of a method, in the form of inputs(). */
  outputs(method = "forward") {
    return structuredClone(this.#method(method).outputs);
  }

  /** Bytes of linear memory in use: runtime, stack, program, and loaded methods. */
  get memory() {
    return this.#wasm.used() >>> 0;
  }

  /** Allocates the memory of a method and loads it; execute() does this on the first call. */
  loadMethod(method = "forward") {
    const entry = this.#method(method);
    if (!entry.loaded) this.#check(() => this.#wasm.load(entry.index));
    entry.loaded = true;
  }

  /** Runs the method "forward", see execute(). */
  forward(...inputs) {
    return this.execute("forward", ...inputs);
  }

  /**
   * Runs a method. Inputs are Tensors, typed arrays (for inputs with a static shape), numbers, bigints and booleans; null
   * for inputs that were fixed at export. Outputs are new Tensors, or such values.
   */
  execute(method, ...inputs) {
    const entry = this.#method(method);
    if (inputs.length !== entry.inputs.length)
      throw new TorchetteError("InvalidArgument", `${method}: expected ${entry.inputs.length} inputs, got ${inputs.length}`);
    this.loadMethod(method);
    inputs.forEach((input, index) => this.#set(entry, index, input));
    this.#check(() => this.#wasm.execute(entry.index));
    return entry.outputs.map((_, index) => {
      this.#wasm.output(entry.index, index);
      return this.#value();
    });
  }

  #method(name) {
    const entry = this.#methods.get(name);
    if (entry === undefined)
      throw new TorchetteError("InvalidArgument", `there is no method ${name}; the program has ${this.methods.join(", ")}`);
    return entry;
  }

  #set(entry, index, input) {
    const wanted = entry.inputs[index];
    if (input === null || input === undefined) return;
    if (wanted.kind !== "tensor") {
      if (!["number", "bigint", "boolean"].includes(typeof input))
        throw new TorchetteError("InvalidArgument", `input ${index} of ${entry.name} has kind ${wanted.kind}, got ${typeof input}`);
      const kind = typeof input === "boolean" ? BOOL : wanted.kind === "double" ? DOUBLE : INT;
      if (kind === INT && typeof input === "number" && !Number.isSafeInteger(input))
        throw new TorchetteError("InvalidArgument", `input ${index} of ${entry.name} must be an integer, got ${input}`);
      this.#check(() => this.#wasm.set_number(entry.index, index, kind, Number(input), kind === INT ? BigInt(input) : BigInt(Boolean(input))));
      return;
    }
    const tensor = input instanceof Tensor ? input : this.#tensorFor(entry, index, input);
    if (tensor.dtype !== wanted.dtype)
      throw new TorchetteError("InvalidArgument", `input ${index} of ${entry.name} has dtype ${wanted.dtype}, got ${tensor.dtype}`);
    const view = this.#view();
    tensor.shape.forEach((size, d) => view.setInt32(SIZES + 4 * d, size, true));
    this.#check(() => this.#wasm.set_tensor(entry.index, index, NUMBERS.get(tensor.dtype), tensor.shape.length));
    const { data, nbytes } = this.#place();
    this.#bytes(data, nbytes).set(new Uint8Array(tensor.data.buffer, tensor.data.byteOffset, tensor.data.byteLength));
  }

  /** Returns a tensor of the input's shape. Throws if the shape is dynamic. */
  #tensorFor(entry, index, array) {
    const { shape, least, dtype } = entry.inputs[index];
    if (!ArrayBuffer.isView(array) || array instanceof DataView)
      throw new TorchetteError("InvalidArgument", `input ${index} of ${entry.name} must be a Tensor or a typed array`);
    if (least.some((size, d) => size !== shape[d]))
      throw new TorchetteError("InvalidArgument", `input ${index} of ${entry.name} has a dynamic shape: pass new Tensor(data, shape)`);
    const holds = DTYPES.get(NUMBERS.get(dtype))[1];
    return new Tensor(array, shape, array instanceof holds ? dtype : undefined);
  }

  #signature(method, output, count) {
    return Array.from({ length: count }, (_, index) => {
      this.#check(() => this.#wasm.describe(method, output ? 1 : 0, index));
      const view = this.#view();
      const kind = KINDS[view.getUint32(KIND, true)] ?? "list";
      if (kind !== "tensor") return { kind };
      const dim = view.getUint32(DIM, true);
      const list = (start) => Array.from({ length: dim }, (_, d) => view.getInt32(start + 4 * d, true));
      return {
        kind,
        dtype: DTYPES.get(view.getUint32(DTYPE, true))?.[0] ?? "unknown",
        shape: list(SIZES),
        least: list(LEAST),
        dimOrder: [...this.#bytes(this.#at + ORDER, dim)],
        dynamic: view.getUint8(DYNAMISM) !== STATIC,
      };
    });
  }

  /** Returns a copy of the value that the runtime described last. */
  #value() {
    const view = this.#view();
    switch (view.getUint32(KIND, true)) {
      case NONE:
        return null;
      case DOUBLE:
        return view.getFloat64(NUMBER, true);
      case INT:
        return view.getBigInt64(INTEGER, true);
      case BOOL:
        return view.getBigInt64(INTEGER, true) !== 0n;
      case TENSOR: {
        const [dtype, Type] = DTYPES.get(view.getUint32(DTYPE, true));
        const { data, nbytes } = this.#place();
        const shape = Array.from({ length: view.getUint32(DIM, true) }, (_, d) => view.getInt32(SIZES + 4 * d, true));
        return new Tensor(new Type(this.#wasm.memory.buffer.slice(data, data + nbytes)), shape, dtype);
      }
      default:
        throw new TorchetteError("NotSupported", "list outputs are not supported in JavaScript");
    }
  }

  #place() {
    const view = this.#view();
    return { data: view.getUint32(DATA, true), nbytes: view.getUint32(NBYTES, true) };
  }

  // Created for each access, because growing the memory detaches existing views.
  #view() {
    return new DataView(this.#wasm.memory.buffer, this.#at, DESCRIPTION);
  }
  #bytes(address, length) {
    return new Uint8Array(this.#wasm.memory.buffer, address, length);
  }
  #text(address) {
    const bytes = new Uint8Array(this.#wasm.memory.buffer, address);
    return new TextDecoder().decode(bytes.subarray(0, bytes.indexOf(0)));
  }

  #check(call) {
    this.#log = [];
    const error = call();
    if (error === 0) return;
    const code = this.#text(this.#wasm.error_name(error));
    throw new TorchetteError(code, this.#log.join("\n") || code);
  }
}

// Offsets into Description of module.cpp.
const [KIND, DTYPE, DIM, NBYTES, DATA, DYNAMISM, NUMBER, INTEGER, SIZES] = [0, 4, 8, 12, 16, 20, 24, 32, 40];
const LEAST = SIZES + 4 * MAX_DIM;
const ORDER = LEAST + 4 * MAX_DIM;
const DESCRIPTION = ORDER + MAX_DIM;

/** Returns the bytes of a source. progress(bytes, total): called during a download. */
export async function bytesOf(source, progress = () => {}) {
  if (source instanceof ArrayBuffer) return new Uint8Array(source);
  if (ArrayBuffer.isView(source)) return new Uint8Array(source.buffer, source.byteOffset, source.byteLength);
  if (source instanceof Blob) return new Uint8Array(await source.arrayBuffer());
  const url = source instanceof Response ? null : new URL(source, globalThis.location?.href ?? import.meta.url);
  if (url?.protocol === "file:") {
    // Only in Node.js. The computed name prevents bundlers for browsers from resolving the module.
    const { readFile } = await import(/* webpackIgnore: true */ /* @vite-ignore */ ["node:fs", "promises"].join("/"));
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

const compiled = new Map(); // by URL
function compile(wasm) {
  if (wasm instanceof WebAssembly.Module) return wasm;
  if (typeof wasm !== "string" && !(wasm instanceof URL)) return bytesOf(wasm).then((bytes) => WebAssembly.compile(bytes));
  const key = String(wasm);
  if (!compiled.has(key)) {
    const promise = bytesOf(wasm).then((bytes) => WebAssembly.compile(bytes));
    promise.catch(() => compiled.delete(key)); // so that the next call retries
    compiled.set(key, promise);
  }
  return compiled.get(key);
}
