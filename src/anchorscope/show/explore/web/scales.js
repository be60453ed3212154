// Axes: a linear scale, round ticks, and a rectangle that is drawn with the pointer.

function linear([low, high], [from, to]) {
  const scale = (value) => from + (value - low) / (high - low || 1) * (to - from);
  scale.invert = (place) => low + (place - from) / (to - from || 1) * (high - low);
  return scale;
}

function ticks(low, high, count) {
  const rough = (high - low) / count, power = 10 ** Math.floor(Math.log10(rough || 1));
  const step = [1, 2, 5, 10].map((m) => m * power).find((size) => size >= rough) ?? rough;
  const out = [];
  for (let at = Math.ceil(low / step); at * step <= high + step * 1e-9; at++) out.push(at * step);
  return out;
}

const tickText = (value) => String(Math.round(value * 1e6) / 1e6).replace("-", "−");

// A round number at least as large: axes then stay put between neighbouring layers.
function roundUp(value) {
  if (!(value > 0)) return 1;
  const power = 10 ** Math.floor(Math.log10(value));
  return [1, 1.5, 2, 3, 4, 5, 6, 8, 10].map((m) => m * power).find((size) => size >= value);
}

// Calls `done([x0, x1, y0, y1])` in pixels after a drag, `click(x, y)` where nothing was dragged.
function brushOn(node, { area, draw, done, click }) {
  let start = null;
  const place = (event) => {
    const box = node.getBoundingClientRect(), [left, top, right, bottom] = area();
    return [clamp(event.clientX - box.left, left, right), clamp(event.clientY - box.top, top, bottom)];
  };
  const corners = ([x, y]) => [Math.min(start[0], x), Math.max(start[0], x), Math.min(start[1], y), Math.max(start[1], y)];
  const dragged = ([x, y]) => Math.abs(x - start[0]) > 4 || Math.abs(y - start[1]) > 4;
  node.addEventListener("pointerdown", (event) => {
    if (event.button !== 0) return;
    start = place(event);
    node.setPointerCapture(event.pointerId);
  });
  node.addEventListener("pointermove", (event) => {
    if (start && dragged(place(event))) draw(corners(place(event)));
  });
  node.addEventListener("pointerup", (event) => {
    if (!start) return;
    const end = place(event);
    if (dragged(end)) done(corners(end));
    else { draw(null); click(end[0], end[1]); }
    start = null;
  });
  node.addEventListener("pointercancel", () => { start = null; draw(null); });
}
