// SPDX-License-Identifier: BSD-3-Clause
// As answers.cpp: node answers.mjs FOLDER MODEL; a request per line on the standard input; a JSON object per line on the standard
// output. Answers in steps alone.
import { readFileSync } from "node:fs";
import { createInterface } from "node:readline";
import { pathToFileURL } from "node:url";

const [folder, model] = process.argv.slice(2);
const { Llm } = await import(new URL("llm.js", pathToFileURL(`${folder}/`)));
const llm = await Llm.load(readFileSync(model));

for await (const line of createInterface({ input: process.stdin })) {
  const [, kind, text, chat, options] = JSON.parse(line);
  const answer = { error: "Ok", message: "", text: "", tokens: [], stats: {} };
  llm.rewind();
  try {
    const given = JSON.parse(options);
    const pieces = kind === "messages" ? llm.chat(JSON.parse(text), { ...given, ...JSON.parse(chat) }) : llm.generate(text, given);
    for await (const { text: piece, token } of pieces) {
      answer.text += piece;
      if (token !== null) answer.tokens.push(token);
    }
    answer.stats = llm.statistics;
    if (kind === "messages") answer.prompt = llm.render(JSON.parse(text), JSON.parse(chat));
  } catch (error) {
    [answer.error, answer.message] = [error.code, error.message];
  }
  console.log(JSON.stringify(answer));
}
