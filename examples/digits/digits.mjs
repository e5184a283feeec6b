// SPDX-License-Identifier: BSD-3-Clause
// In: digits.pte and a picture of 8 x 8 floats. Out: the digit on it and its probability.
import { readFile } from "node:fs/promises";
import { Module, Tensor } from "torchette";

const [model, picture] = await Promise.all(process.argv.slice(2).map((path) => readFile(path)));
const pixels = new Float32Array(picture.buffer.slice(picture.byteOffset, picture.byteOffset + picture.length));
const module = await Module.load(model);
const [scores] = module.forward(new Tensor(pixels, [1, 64]));
const best = scores.data.indexOf(Math.max(...scores.data));
console.log(best, scores.data[best].toFixed(4));
