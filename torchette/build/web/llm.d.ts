// SPDX-License-Identifier: BSD-3-Clause
// The types of llm.js.

/** Options of an answer, such as maxNewTokens, temperature, topP, stop and seed: docs/llm-cpp.md#options. */
export interface GenerationOptions {
  [option: string]: number | boolean | string | object | null | undefined;
}

/** What chat templates read in addition to messages. */
export interface RenderOptions {
  /** Functions that the model may call, in the form of OpenAI. */
  tools?: readonly object[];
  toolChoice?: string | object;
  /** Other variables of the chat template, such as { enable_thinking: false }. */
  template?: Readonly<Record<string, unknown>>;
}

export type ChatOptions = GenerationOptions & RenderOptions;

export interface Message {
  role: string;
  content: string | readonly object[];
  [name: string]: unknown;
}

/** The output of one step. */
export interface Piece {
  /** Complete characters. */
  text: string;
  /** null for text that was held back until the end. */
  token: number | null;
  /** The log-probability of the token; 0 if logprobs was not set. */
  logprob: number | null;
  /** The most probable tokens with their log-probabilities. */
  top: [token: number, logprob: number][];
  last: boolean;
}

/** Counts of tokens, and times in milliseconds. */
export interface Statistics {
  prompt_tokens: number;
  generated_tokens: number;
  drafted_tokens: number;
  accepted_tokens: number;
  model_load_start_ms: number;
  model_load_end_ms: number;
  inference_start_ms: number;
  token_encode_end_ms: number;
  prompt_eval_end_ms: number;
  first_token_ms: number;
  inference_end_ms: number;
  aggregate_sampling_time_ms: number;
  finish_reason: string;
}

export type Source = string | URL | Response | Blob | ArrayBuffer | ArrayBufferView;

export interface LlmLoadOptions {
  /** torchette_llm.wasm or its URL; by default the file next to llm.js. */
  wasm?: Source;
  /** A tokenizer.json, a SentencePiece model or a tiktoken file, if the program has no tokenizer. */
  tokenizer?: Source;
  progress?: (bytes: number, total: number | null) => void;
  /** Receives the log of the runtime; level is D, I, E or F. */
  log?: (level: string, message: string) => void;
}

/** A language model and its conversation. It generates one answer at a time. */
export class Llm {
  static load(source: Source, options?: LlmLoadOptions): Promise<Llm>;
  readonly maxContext: number;
  readonly vocabSize: number;
  readonly hasTemplate: boolean;
  readonly tokens: number[];
  readonly statistics: Statistics;
  /** Bytes of linear memory in use. */
  readonly memory: number;
  generate(prompt: string | readonly number[], options?: GenerationOptions): AsyncGenerator<Piece, void, void>;
  chat(messages: readonly Message[], options?: ChatOptions): AsyncGenerator<Piece, void, void>;
  render(messages: readonly Message[], options?: RenderOptions): string;
  encode(text: string, special?: boolean): number[];
  decode(tokens: readonly number[]): string;
  rewind(position?: number): void;
}
