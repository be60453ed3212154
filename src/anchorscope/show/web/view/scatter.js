// Clean against knocked-out logit at one layer, a mark for each sample; drawn on a canvas, since
// thousands of marks are too many for a picture of elements.

function scatterChart(run, app) {
  const node = element("canvas", { class: "chart", role: "img" });
  let x, y, points = [], current = null;

  function draw(state, kept) {
    const width = node.parentNode.clientWidth || 560;
    current = { state, kept, width };
    points = pointsOf(run, state);
    const end = roundUp(1.04 * points.reduce((most, point) => Math.max(most, Math.abs(point.x), Math.abs(point.y)), 0));
    x = linear([-end, end], [AREA.left, width - AREA.right]);
    y = linear([-end, end], [HEIGHT - AREA.bottom, AREA.top]);
    node.setAttribute("aria-label", `Clean against knocked-out belief of ${points.length} samples at layer ${state.layers[run.number]} of ${run.model}. The table lists the same samples.`);
    paint(null);
  }

  function paint(corners) {
    const { state, kept, width } = current, pen = penOf(node, width), colors = themeOf(node);
    ground(pen, colors, x, y, width);
    pen.save();
    pen.beginPath();
    pen.rect(AREA.left, AREA.top, width - AREA.right - AREA.left, HEIGHT - AREA.bottom - AREA.top);
    pen.clip();
    oneMechanism(pen, run, state, x, y);
    pen.lineWidth = 1.3;
    pen.globalAlpha = 0.4;
    for (const point of points) if (!kept[point.i]) mark(pen, point, x(point.x), y(point.y), colors.faint);
    pen.globalAlpha = 0.85;
    for (const point of points) if (kept[point.i]) mark(pen, point, x(point.x), y(point.y), point.color);
    pen.globalAlpha = 1;
    const open = points.find((point) => point.i === app.openOf(run));
    if (open) ring(pen, colors, x(open.x), y(open.y));
    const range = state.points && state.points[0] === run.number ? state.points.slice(1) : null;
    if (corners || range) rectangle(pen, colors, corners ?? [x(range[0]), x(range[1]), y(range[3]), y(range[2])]);
    pen.restore();
  }

  const nearestTo = (some, atX, atY) => {
    let best = null, least = 100;
    for (const point of some) {
      const distance = (x(point.x) - atX) ** 2 + (y(point.y) - atY) ** 2;
      if (distance < least) { least = distance; best = point; }
    }
    return best;
  };
  brushOn(node, {
    draw: paint,
    done: ([x0, x1, y0, y1]) => {
      const edges = [x.invert(x0), x.invert(x1), y.invert(y1), y.invert(y0)].map(rounded);
      app.update({ points: [run.number, ...edges], page: 1 }, { push: true });
    },
    click: (atX, atY) => {
      const near = nearestTo(points.filter((point) => current.kept[point.i]), atX, atY);
      if (near) app.open(run.id[near.i]);
    },
  });
  node.addEventListener("pointermove", (event) => {
    const bounds = node.getBoundingClientRect(), near = nearestTo(points, event.clientX - bounds.left, event.clientY - bounds.top);
    node.title = near ? visible(run.question[near.i]).map((part) => part.textContent).join("") : "";
    node.style.cursor = near ? "pointer" : "crosshair";
  });
  return { node, draw };
}

function pointsOf(run, state) {
  const out = [], k = state.layers[run.number], group = run.group[state.mode];
  for (let i = 0; i < run.n; i++) {
    const dataset = run.datasets[run.dataset[i]], clean = run.clean(state.mode, i, k), cut = run.cut(state.mode, i, k);
    if (Number.isNaN(clean) || Number.isNaN(cut) || state.hide.includes(dataset.name)) continue;
    out.push({ i, x: clean, y: cut, isQ: group[run.at(i, k)] === Q, color: dataset.color, wrong: run.verdicts[run.verdict[i]] === "wrong" });
  }
  return out;
}

// A round number at least as large: axes then stay put between neighbouring layers.
function roundUp(value) {
  if (!(value > 0)) return 1;
  const power = 10 ** Math.floor(Math.log10(value));
  return [1, 1.5, 2, 3, 4, 5, 6, 8, 10].map((m) => m * power).find((size) => size >= value);
}

function penOf(node, width) {
  // In main memory: thousands of small marks are painted sooner there than by way of a GPU.
  const ratio = window.devicePixelRatio || 1, pen = node.getContext("2d", { willReadFrequently: true });
  node.width = Math.round(width * ratio);
  node.height = Math.round(HEIGHT * ratio);
  node.style.height = `${HEIGHT}px`;
  pen.setTransform(ratio, 0, 0, ratio, 0, 0);
  return pen;
}

function themeOf(node) {
  const style = getComputedStyle(node), get = (name) => style.getPropertyValue(name).trim();
  return { ink: get("--ink"), quiet: get("--quiet"), line: get("--line"), faint: get("--control"), shade: get("--shade"), brush: get("--q"), sans: get("--sans") };
}

function ground(pen, colors, x, y, width) {
  const [left, top, right, bottom] = [AREA.left, AREA.top, width - AREA.right, HEIGHT - AREA.bottom];
  const text = (words, align, a, b) => { pen.fillStyle = colors.quiet; pen.textAlign = align; pen.fillText(words, a, b); };
  pen.font = `12px ${colors.sans}`;
  pen.fillStyle = colors.shade; // where the prediction flips
  pen.fillRect(left, top, x(0) - left, y(0) - top);
  pen.fillRect(x(0), y(0), right - x(0), bottom - y(0));
  pen.strokeStyle = colors.line;
  pen.lineWidth = 1;
  for (const value of ticks(x.invert(left), x.invert(right), right - left < 320 ? 4 : 6)) {
    trace(pen, [[x(value), top], [x(value), bottom]]);
    trace(pen, [[left, y(value)], [right, y(value)]]);
    if (x(value) < right - 8) text(tickText(value), "center", x(value), bottom + 15);
    text(tickText(value), "right", left - 6, y(value) + 4);
  }
  pen.strokeStyle = colors.quiet;
  trace(pen, [[x(0), top], [x(0), bottom]]);
  trace(pen, [[left, y(0)], [right, y(0)]]);
  pen.setLineDash([2, 3]);
  trace(pen, [[left, bottom], [right, top]]);
  pen.setLineDash([]);
  text("logit of wrong, clean", "center", (left + right) / 2, bottom + 32);
  text("logit of wrong, knocked out", "left", left + 4, top + 12);
  text("predicted right", "right", x(0) - 5, bottom - 6);
  text("predicted wrong", "left", x(0) + 5, bottom - 6);
}

function trace(pen, points, fill = false) {
  pen.beginPath();
  points.forEach(([a, b], at) => (at ? pen.lineTo(a, b) : pen.moveTo(a, b)));
  if (fill) pen.fill();
  else pen.stroke();
}

// The line that one mechanism would follow, with the middle 95 % of its noise.
function oneMechanism(pen, run, state, x, y) {
  if (!state.nulls) return;
  const k = state.layers[run.number], ends = [x.invert(AREA.left), -x.invert(AREA.left)];
  for (const fit of run.lines[state.mode]) {
    if (state.hide.includes(fit.dataset) || fit.slope[k - 1] === null) continue;
    const at = (logit, more) => [x(logit), y(fit.intercept[k - 1] + fit.slope[k - 1] * logit + more * 1.96 * fit.spread[k - 1])];
    pen.fillStyle = pen.strokeStyle = run.datasets.find((each) => each.name === fit.dataset).color;
    pen.globalAlpha = 0.09;
    trace(pen, [at(ends[0], -1), at(ends[1], -1), at(ends[1], 1), at(ends[0], 1)], true);
    pen.globalAlpha = 1;
    pen.lineWidth = 1.6;
    pen.setLineDash([7, 4]);
    trace(pen, ends.map((logit) => at(logit, 0)));
    pen.setLineDash([]);
  }
}

// Q filled, A hollow; right a circle, wrong a triangle.
function mark(pen, { wrong, isQ }, a, b, color) {
  const size = 3.4;
  pen.beginPath();
  if (wrong) {
    pen.moveTo(a, b - size - 0.8);
    pen.lineTo(a + size + 0.5, b + size);
    pen.lineTo(a - size - 0.5, b + size);
    pen.closePath();
  } else pen.arc(a, b, size, 0, 2 * Math.PI);
  pen.fillStyle = pen.strokeStyle = color;
  if (isQ) pen.fill();
  else pen.stroke();
}

function ring(pen, colors, a, b) {
  pen.strokeStyle = colors.ink;
  pen.lineWidth = 2;
  pen.beginPath();
  pen.arc(a, b, 8, 0, 2 * Math.PI);
  pen.stroke();
}

function rectangle(pen, colors, [x0, x1, y0, y1]) {
  pen.strokeStyle = pen.fillStyle = colors.brush;
  pen.globalAlpha = 0.12;
  pen.fillRect(x0, y0, x1 - x0, y1 - y0);
  pen.globalAlpha = 1;
  pen.lineWidth = 1;
  pen.strokeRect(x0, y0, x1 - x0, y1 - y0);
}
