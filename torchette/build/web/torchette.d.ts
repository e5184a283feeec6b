// SPDX-License-Identifier: BSD-3-Clause
// The types of torchette.js.

export type DType =
  | "uint8" | "int8" | "int16" | "int32" | "int64" | "float16" | "float32" | "float64" | "bool" | "bfloat16"
  | "uint16" | "uint32" | "uint64";

export type TypedArray =
  | Uint8Array | Uint8ClampedArray | Int8Array | Uint16Array | Int16Array | Uint32Array | Int32Array
  | BigUint64Array | BigInt64Array | Float32Array | Float64Array;

/** `code` is the runtime's name of the error, such as "InvalidArgument"; `message` contains its log messages. */
export class TorchetteError extends Error {
  readonly code: string;
  constructor(code: string, message: string);
}

/** A contiguous tensor. float16 and bfloat16 are stored as bits in a Uint16Array, bool as 0 and 1. */
export class Tensor {
  readonly data: TypedArray;
  readonly shape: number[];
  readonly dtype: DType;
  constructor(data: TypedArray, shape?: readonly number[], dtype?: DType);
}

export type Value = Tensor | number | bigint | boolean | null;
export type Input = Value | TypedArray;

/** A value of a method's signature; the members after `kind` are set for tensors. */
export interface Signature {
  kind: "none" | "tensor" | "string" | "double" | "int" | "bool" | "list";
  dtype?: DType | "unknown";
  /** Maximum sizes if the shape is dynamic. */
  shape?: number[];
  /** Minimum sizes. */
  least?: number[];
  /** Dimensions from outermost to innermost in memory. */
  dimOrder?: number[];
  dynamic?: boolean;
}

export interface LoadOptions {
  /** URL, bytes or compiled module of torchette.wasm; by default the file next to torchette.js. */
  wasm?: string | URL | Response | Blob | ArrayBuffer | ArrayBufferView | WebAssembly.Module;
  /** Receives the log of the runtime; level is D, I, E or F. */
  log?: (level: string, message: string) => void;
}

/** A program. Not thread-safe: do not use it from several threads. */
export class Module {
  private constructor();
  static load(source: string | URL | Response | Blob | ArrayBuffer | ArrayBufferView, options?: LoadOptions): Promise<Module>;
  readonly methods: string[];
  inputs(method?: string): Signature[];
  outputs(method?: string): Signature[];
  /** Bytes of linear memory in use. */
  readonly memory: number;
  loadMethod(method?: string): void;
  forward(...inputs: Input[]): Value[];
  execute(method: string, ...inputs: Input[]): Value[];
}

/** Reads a source. progress: called during a download. */
export function bytesOf(
  source: string | URL | Response | Blob | ArrayBuffer | ArrayBufferView,
  progress?: (bytes: number, total: number | null) => void,
): Promise<Uint8Array>;
