// SPDX-License-Identifier: BSD-3-Clause
// Runs programs through torchette.js in Node.js: node module_test.mjs FOLDER < {"name": [[numbers], shape]...}
// prints the results and errors as JSON.
import { readFileSync } from "node:fs";
import { pathToFileURL } from "node:url";

const folder = pathToFileURL(`${process.argv[2]}/`);
const { Module, Tensor } = await import(new URL("torchette.js", folder));

const said = async (work) => {
  try {
    await work();
    return "nothing";
  } catch (error) {
    return `${error.name} ${error.code}: ${error.message}`;
  }
};

const result = {};
for (const [name, [numbers, shape]] of Object.entries(JSON.parse(readFileSync(0, "utf-8")))) {
  const module = await Module.load(new URL(`${name}.pte`, folder));
  const before = module.memory;
  const input = new Tensor(Float32Array.from(numbers), shape);
  const [output] = module.forward(input);
  const after = module.memory;
  const again = module.forward(input.data);
  result[name] = {
    methods: module.methods,
    inputs: module.inputs(),
    dtype: output.dtype,
    shape: output.shape,
    data: [...output.data],
    same: again[0].data.every((value, i) => value === output.data[i]),
    kept: module.memory === after,
    grown: after - before,
  };
}

const bytes = readFileSync(new URL("digits.pte", folder));
const module = await Module.load(bytes);
result.errors = {
  count: await said(() => module.forward()),
  dtype: await said(() => module.forward(new Float64Array(64))),
  shape: await said(() => module.forward(new Tensor(new Float32Array(64), [64, 1]))),
  rank: await said(() => module.forward(new Tensor(new Float32Array(64), [64]))),
  kind: await said(() => module.forward(3)),
  elements: await said(() => new Tensor(new Float32Array(4), [5])),
  width: await said(() => new Tensor(new Float32Array(4), [4], "float64")),
  method: await said(() => module.execute("backward", 1)),
  bytes: await said(() => Module.load(bytes.subarray(0, 100))),
  kernels: await said(() => Module.load(new URL("sine.pte", folder)).then((sine) => sine.loadMethod())),
  file: await said(() => Module.load(new URL("nothing.pte", folder))),
};
console.log(JSON.stringify(result));
