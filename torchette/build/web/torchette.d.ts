// SPDX-License-Identifier: BSD-3-Clause
// The types of torchette.js.

export type DType =
  | "uint8" | "int8" | "int16" | "int32" | "int64" | "float16" | "float32" | "float64" | "bool" | "bfloat16"
  | "uint16" | "uint32" | "uint64";

export type TypedArray =
  | Uint8Array | Uint8ClampedArray | Int8Array | Uint16Array | Int16Array | Uint32Array | Int32Array
  | BigUint64Array | BigInt64Array | Float32Array | Float64Array;

/** `code` is the runtime's name of the error, such as "InvalidArgument"; `message` is what it logged. */
export class TorchetteError extends Error {
  readonly code: string;
  constructor(code: string, message: string);
}

/** A tensor without gaps. float16 and bfloat16 are held as their bits in a Uint16Array, bool as 0 and 1. */
export class Tensor {
  readonly data: TypedArray;
  readonly shape: number[];
  readonly dtype: DType;
  constructor(data: TypedArray, shape?: readonly number[], dtype?: DType);
}

export type Value = Tensor | number | bigint | boolean | null;
export type Input = Value | TypedArray;

/** A value of a method's signature; what follows `kind` is there for tensors. */
export interface Signature {
  kind: "none" | "tensor" | "string" | "double" | "int" | "bool" | "list";
  dtype?: DType | "unknown";
  /** Upper bounds where the shape is dynamic. */
  shape?: number[];
  /** Lower bounds. */
  least?: number[];
  /** Dimensions from outermost to innermost in memory. */
  dimOrder?: number[];
  dynamic?: boolean;
}

export interface LoadOptions {
  /** Where torchette.wasm is, its bytes, or compiled; by default beside torchette.js. */
  wasm?: string | URL | Response | Blob | ArrayBuffer | ArrayBufferView | WebAssembly.Module;
  /** What the runtime logs; level is D, I, E or F. */
  log?: (level: string, message: string) => void;
}

/** A program. Not to be used while one of its calls is running, which in one thread cannot happen. */
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
