// SPDX-License-Identifier: BSD-3-Clause
// In: strokes on a canvas. Out: the digit that digits.pte recognizes.
import { Module } from "./torchette.js";

const GRID = 8; // width and height of the network's input
const FINE = 32; // the input is the mean of blocks of an image with four times the resolution, as in the training data
const INK = 310; // number of pixels that a digit covers there in the training data
const PENS = [4, 8.5]; // minimum and maximum width of a stroke there

const find = (id) => document.getElementById(id);
const pad = find("pad");
const strokes = []; // lists of points [x, y] in pixels of the page
const bars = Array.from({ length: 10 }, (_, digit) => {
  const bar = document.createElement("li");
  bar.innerHTML = `<b>${digit}</b><i></i><span></span>`;
  find("bars").append(bar);
  return bar;
});

/** Returns the strokes in the form of the training data: scaled to the image, centered, with the same number of dark pixels. */
function picture() {
  const points = strokes.flat();
  const [xs, ys] = [points.map(([x]) => x), points.map(([, y]) => y)];
  const [left, right, upper, lower] = [Math.min(...xs), Math.max(...xs), Math.min(...ys), Math.max(...ys)];
  const extent = Math.max(right - left, lower - upper, 1);
  const steps = strokes.flatMap((stroke) => stroke.slice(1).map(([x, y], i) => Math.hypot(x - stroke[i][0], y - stroke[i][1])));
  const length = steps.reduce((sum, step) => sum + step, 0);
  const pen = Math.max(PENS[0], Math.min(PENS[1], INK / ((length / extent) * FINE)));
  const scale = (FINE - pen) / extent;
  const fine = new OffscreenCanvas(FINE, FINE).getContext("2d");
  fine.translate(FINE / 2, FINE / 2);
  fine.scale(scale, scale);
  fine.translate(-(left + right) / 2, -(upper + lower) / 2);
  draw(fine, pen / scale);
  const ink = fine.getImageData(0, 0, FINE, FINE).data;
  const block = FINE / GRID;
  const result = new Float32Array(GRID * GRID);
  for (let y = 0; y < FINE; ++y)
    for (let x = 0; x < FINE; ++x)
      result[Math.floor(y / block) * GRID + Math.floor(x / block)] += ink[4 * (y * FINE + x) + 3] / 255 / block ** 2;
  return result;
}

function draw(context, width) {
  context.lineWidth = width;
  context.lineCap = context.lineJoin = "round";
  for (const stroke of strokes) {
    context.beginPath();
    stroke.forEach(([x, y]) => context.lineTo(x, y));
    context.lineTo(...stroke.at(-1)); // a stroke of one point is a dot
    context.stroke();
  }
}

function repaint() {
  const { width, height } = pad.getBoundingClientRect();
  pad.width = width * devicePixelRatio;
  pad.height = height * devicePixelRatio;
  const context = pad.getContext("2d");
  context.scale(devicePixelRatio, devicePixelRatio);
  context.strokeStyle = getComputedStyle(pad).color;
  draw(context, width / 14);
}

function show(pixels, shares) {
  const best = shares ? shares.indexOf(Math.max(...shares)) : -1;
  find("digit").value = shares ? best : "–";
  bars.forEach((bar, digit) => {
    bar.classList.toggle("best", digit === best);
    bar.style.setProperty("--share", shares?.[digit] ?? 0);
    bar.lastChild.textContent = shares ? `${Math.round(100 * shares[digit])} %` : "";
  });
  const context = find("seen").getContext("2d");
  const image = context.createImageData(GRID, GRID);
  const [red, green, blue] = getComputedStyle(pad).color.match(/\d+/g);
  pixels?.forEach((value, i) => image.data.set([red, green, blue, 255 * value], 4 * i));
  context.putImageData(image, 0, 0);
}

function update(module) {
  repaint();
  find("clear").disabled = strokes.length === 0;
  find("hint").hidden = strokes.length > 0;
  if (strokes.length === 0) return show();
  const pixels = picture();
  const start = performance.now();
  const [shares] = module.forward(pixels);
  const milliseconds = performance.now() - start;
  show(pixels, shares.data);
  find("time").textContent = milliseconds < 0.1 ? "less than 0.1 ms" : `${milliseconds.toFixed(1)} ms`;
}

async function size(name) {
  return `${((await (await fetch(name)).arrayBuffer()).byteLength / 1000).toFixed(0)} kB`;
}

async function main() {
  const module = await Module.load("digits.pte");
  const changed = () => update(module);
  const at = (event) => {
    const box = pad.getBoundingClientRect();
    return [event.clientX - box.left, event.clientY - box.top];
  };
  let drawing = null; // the pointer that draws: a second finger does not disturb
  pad.addEventListener("pointerdown", (event) => {
    if (drawing !== null || event.button !== 0) return;
    drawing = event.pointerId;
    pad.setPointerCapture(drawing);
    strokes.push([at(event)]);
    changed();
  });
  pad.addEventListener("pointermove", (event) => {
    if (event.pointerId !== drawing) return;
    const passed = event.getCoalescedEvents?.() ?? [];
    strokes.at(-1).push(...(passed.length ? passed : [event]).map(at));
    changed();
  });
  for (const end of ["pointerup", "pointercancel"])
    pad.addEventListener(end, (event) => {
      if (event.pointerId === drawing) drawing = null;
    });
  const clear = () => {
    strokes.length = 0;
    changed();
  };
  find("clear").addEventListener("click", clear);
  addEventListener("keydown", (event) => event.key === "Escape" && clear());
  addEventListener("resize", changed);
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", changed);
  const [runtime, model] = await Promise.all([size("torchette.wasm"), size("digits.pte")]);
  const memory = `${Math.round(module.memory / 1000)} kB`;
  find("facts").innerHTML = `runtime ${runtime} · model ${model} · memory ${memory} · answer in <span id="time">–</span>`;
  changed();
  document.body.dataset.ready = "";
}

main().catch((error) => {
  find("facts").textContent = `${error.name}: ${error.message}`;
});
