// SPDX-License-Identifier: BSD-3-Clause
// The search and the copy buttons. The search reads INDEX (rows of page, heading, address, text) and lists the headings whose
// section contains all typed words; matches in the title come first.
"use strict";

const box = document.getElementById("search");
const list = document.getElementById("found");
const top_ = document.body.dataset.top;
const MAX_RESULTS = 20;
const lowered = INDEX.map(([page, heading, , text]) => [`${page} ${heading}`.toLowerCase(), text.toLowerCase()]);

function score(words, title, text) {
  let sum = 0;
  for (const word of words) {
    const inTitle = title.includes(word);
    if (!inTitle && !text.includes(word)) return 0;
    sum += inTitle ? 3 : 1;
  }
  return sum;
}

// Returns the text around the first match of `word`.
function excerpt(text, word) {
  const at = Math.max(0, text.toLowerCase().indexOf(word));
  const start = Math.max(0, at - 40);
  return (start ? "… " : "") + text.slice(start, at + 80) + (at + 80 < text.length ? " …" : "");
}

function show() {
  const words = box.value.toLowerCase().split(/\s+/).filter(Boolean);
  const found = words.length
    ? lowered
        .map(([title, text], place) => [score(words, title, text), place])
        .filter(([value]) => value)
        .sort((a, b) => b[0] - a[0] || a[1] - b[1])
        .slice(0, MAX_RESULTS)
    : [];
  list.replaceChildren(
    ...found.map(([, place]) => {
      const [page, heading, address, text] = INDEX[place];
      const item = document.createElement("li");
      const link = item.appendChild(document.createElement("a"));
      link.href = `${top_}/${address}`;
      link.textContent = page === heading ? page : `${page}: ${heading}`;
      item.appendChild(document.createElement("small")).textContent = excerpt(text, words[0]);
      return item;
    }),
  );
  list.hidden = !words.length;
  if (words.length && !found.length) list.textContent = "No section contains all of these words.";
}

box.addEventListener("input", show);
document.addEventListener("keydown", (event) => {
  if (event.key === "/" && document.activeElement !== box) {
    event.preventDefault();
    box.focus();
  } else if (event.key === "Enter" && document.activeElement === box && list.querySelector("a")) {
    list.querySelector("a").click();
  } else if (event.key === "Escape") {
    box.value = "";
    show();
  }
});
document.querySelector("[aria-current]")?.scrollIntoView({ block: "center" });

for (const block of document.querySelectorAll("main pre")) {
  const button = document.createElement("button");
  button.type = "button";
  button.className = "copy";
  button.textContent = "Copy";
  button.addEventListener("click", async () => {
    try {
      await navigator.clipboard.writeText(block.querySelector("code").textContent);
      button.textContent = "Copied";
    } catch {
      button.textContent = "Not allowed";
    }
    setTimeout(() => (button.textContent = "Copy"), 1500);
  });
  const frame = document.createElement("div");
  frame.className = "code";
  block.replaceWith(frame);
  frame.append(block, button);
}
