// SPDX-License-Identifier: BSD-3-Clause
// Generates text with a language model through llm.js in Node.js: node llm_test.mjs FOLDER PROMPT MESSAGES prints the results and
// errors as JSON.
import { readFileSync } from "node:fs";
import { pathToFileURL } from "node:url";

const [folder, prompt, messages] = [pathToFileURL(`${process.argv[2]}/`), process.argv[3], JSON.parse(process.argv[4])];
const { Llm } = await import(new URL("llm.js", folder));

const said = async (work) => {
  try {
    await work();
    return "nothing";
  } catch (error) {
    return `${error.name} ${error.code}: ${error.message}`;
  }
};
const all = async (answer) => {
  const pieces = [];
  for await (const piece of answer) pieces.push(piece);
  return { pieces: pieces.length, text: pieces.map(({ text }) => text).join(""), tokens: pieces.map(({ token }) => token).filter((token) => token !== null) };
};

const bytes = readFileSync(new URL("model.pte", folder));
const llm = await Llm.load(new Blob([bytes]));
const options = { maxNewTokens: 40, ignoreEos: true };
const result = { greedy: await all(llm.generate(prompt, options)), statistics: llm.statistics, context: llm.maxContext };
llm.rewind();
result.unset = await all(llm.generate(prompt, { ...options, minP: undefined, topK: null }));
result.chat = await all(llm.chat(messages, { max_tokens: 9, tools: undefined }));
result.rendered = llm.render(messages);
result.encoded = llm.encode("Grüße 😀", false);
result.decoded = llm.decode(result.encoded);
llm.rewind();
let turns = 0;
const timer = setInterval(() => ++turns, 0);
for await (const { token } of llm.generate(prompt, { slide: true, ignore_eos: true })) if (token === null || turns > 3) break;
clearInterval(timer);
result.left = llm.tokens.length; // stopped an endless generation, and other tasks ran meanwhile
// one answer at a time: a second one is an error, and the first continues; rewind() ends an answer
llm.rewind();
const first = llm.generate(prompt, options);
const begun = (await first.next()).value;
result.busy = [await said(() => all(llm.generate(prompt, options))), await said(() => llm.chat(messages).next())];
result.continued = [begun.token, ...(await all(first)).tokens];
const ended = llm.generate(prompt, options);
await ended.next();
llm.rewind();
const next = llm.generate(prompt, options);
const tokens = [(await next.next()).value.token];
result.busy.push(await said(() => ended.next()));
result.rewound = [...tokens, ...(await all(next)).tokens];
const forbidden = result.greedy.tokens[0];
llm.rewind();
result.biased = (await all(llm.generate(prompt, { ...options, logitBias: { [forbidden]: -Infinity } }))).tokens;
result.again = await all(llm.generate(llm.encode(prompt), options));
result.errors = {
  nan: await said(() => all(llm.generate(prompt, { topP: NaN }))),
  position: await said(() => llm.rewind(-1)),
  file: await said(() => Llm.load(bytes.subarray(0, 100))),
  url: await said(() => Llm.load(new URL("nothing.pte", folder))),
  tokenizer: await said(() => Llm.load(bytes, { tokenizer: new TextEncoder().encode("{}") })),
};
result.alive = (await all(llm.generate(llm.encode(prompt), options))).tokens;
console.log(JSON.stringify(result));
