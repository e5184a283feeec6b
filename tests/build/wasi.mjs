// SPDX-License-Identifier: BSD-3-Clause
// Runs a WASI program in a folder: node wasi.mjs FOLDER PROGRAM.wasm ARGUMENTS...
import { readFileSync } from "node:fs";
import { join } from "node:path";
import { WASI } from "node:wasi";

const [folder, program] = process.argv.slice(2);
const wasi = new WASI({ version: "preview1", args: process.argv.slice(3), preopens: { ".": folder }, returnOnExit: true });
const compiled = await WebAssembly.compile(readFileSync(join(folder, program)));
process.exitCode = wasi.start(await WebAssembly.instantiate(compiled, wasi.getImportObject()));
