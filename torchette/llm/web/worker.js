// SPDX-License-Identifier: BSD-3-Clause
// The model of the page, in a worker, so that the page never waits for it. In: {open: file or URL, key}, {ask: messages, options},
// {stop: true}. Out: {progress}, {ready: properties}, {piece: text}, {end: statistics}, {error: text, code}.
import { Llm } from "./llm.js";

let llm = null;
let stopped = false;

const work = {
  async open(source, key) {
    llm = null;
    llm = await Llm.load(source, { key, progress: (bytes, of) => postMessage({ progress: [bytes, of] }) });
    const { maxContext, hasTemplate, memory } = llm;
    postMessage({ ready: { maxContext, hasTemplate, memory } });
  },
  async ask(messages, options) {
    stopped = false;
    let forgotten = 0;
    for (;;) {
      try {
        // a file without a template goes on with the text alone
        const answer = llm.hasTemplate ? llm.chat(messages, options) : llm.generate(messages.at(-1).content, { slide: true, ...options });
        for await (const { text } of answer) {
          if (text) postMessage({ piece: text });
          if (stopped) break;
        }
        return postMessage({ end: { ...llm.statistics, stopped, forgotten, memory: llm.memory } });
      } catch (error) {
        // the context is full: the oldest question and its answer are forgotten
        const first = messages[0].role === "system" ? 1 : 0;
        if (error.code !== "OutOfResources" || messages.length < first + 3) throw error;
        messages = [...messages.slice(0, first), ...messages.slice(first + 2)];
        forgotten += 2;
      }
    }
  },
};

onmessage = async ({ data }) => {
  try {
    if (data.stop) stopped = true;
    else if (data.open) await work.open(data.open, data.key);
    else await work.ask(data.ask, data.options);
  } catch (error) {
    postMessage({ error: error.message, code: error.code ?? error.name });
  }
};
