// Clean against knocked-out belief at one layer, a mark for each sample; drawn on a canvas.

const PLOT = { left: 44, right: 12, top: 10, bottom: 34, height: 300 };

function scatterChart(run, app) {
  const node = element("canvas", { class: "chart", role: "img" }), chart = { node };
  let width = 0, x, y, points = [], current = null;
  const area = () => [PLOT.left, PLOT.top, width - PLOT.right, PLOT.height - PLOT.bottom];
  const toAxis = (logit) => (app.state.scale === "logit" ? logit : sigmoid(logit));
  const toLogit = (value) => (app.state.scale === "logit" ? value : logitOf(value));

  chart.draw = (state, kept) => {
    current = { state, kept };
    width = node.parentNode.clientWidth || 560;
    points = pointsOf(run, state, toAxis);
    const [low, high] = state.scale === "logit" ? symmetric(points) : [0, 1];
    x = linear([low, high], [PLOT.left, width - PLOT.right]);
    y = linear([low, high], [PLOT.height - PLOT.bottom, PLOT.top]);
    node.setAttribute("aria-label", `Clean against knocked-out belief of ${points.length} samples at layer ${state.layers[run.number]} of ${run.model}. The table lists the same samples.`);
    paint(state, kept, null);
  };

  function paint(state, kept, corners) {
    const pen = penOf(node, width, PLOT.height), colors = themeOf(node);
    ground(pen, colors, x, y, area(), state.scale);
    pen.save();
    pen.beginPath();
    pen.rect(area()[0], area()[1], area()[2] - area()[0], area()[3] - area()[1]);
    pen.clip();
    oneMechanism(pen, run, state, x, y, toAxis);
    pen.lineWidth = 1.3;
    pen.globalAlpha = 0.4;
    for (const point of points) if (!kept[point.i]) mark(pen, point, x(point.x), y(point.y), colors.faint);
    pen.globalAlpha = 0.85;
    for (const point of points) if (kept[point.i]) mark(pen, point, x(point.x), y(point.y), point.color);
    pen.globalAlpha = 1;
    ring(pen, colors, points.find((point) => point.i === app.openOf(run)), x, y);
    rectangle(pen, colors, corners ?? cornersOf(state.points));
    pen.restore();
  }

  const cornersOf = (range) => {
    if (!range || range[0] !== run.number) return null;
    const [, a, b, c, d] = range.map((value, at) => (at ? toAxis(value) : value));
    return [x(a), x(b), y(d), y(c)];
  };
  brushOn(node, {
    area,
    draw: (corners) => paint(current.state, current.kept, corners),
    done: ([x0, x1, y0, y1]) => {
      const edges = [x.invert(x0), x.invert(x1), y.invert(y1), y.invert(y0)].map((value) => rounded(toLogit(value)));
      app.update({ points: [run.number, ...edges], page: 1 }, { push: true });
    },
    click: (atX, atY) => {
      const near = nearest(points.filter((point) => current.kept[point.i]), x, y, atX, atY);
      if (near) app.open(run.id[near.i]);
    },
  });
  node.addEventListener("pointermove", (event) => {
    const bounds = node.getBoundingClientRect();
    const near = nearest(points, x, y, event.clientX - bounds.left, event.clientY - bounds.top);
    node.title = near ? visible(run.question[near.i]).map((part) => part.textContent).join("") : "";
    node.style.cursor = near ? "pointer" : "crosshair";
  });
  return chart;
}

const logitOf = (p) => Math.log(clamp(p, 1e-6, 1 - 1e-6) / (1 - clamp(p, 1e-6, 1 - 1e-6)));

function pointsOf(run, state, toAxis) {
  const out = [], k = state.layers[run.number], group = run.group[state.mode];
  for (let i = 0; i < run.n; i++) {
    const dataset = run.datasets[run.dataset[i]], clean = run.clean(state.mode, i, k), cut = run.cut(state.mode, i, k);
    if (Number.isNaN(clean) || Number.isNaN(cut) || state.hide.includes(dataset.name)) continue;
    const isQ = group[run.at(i, k)] === Q;
    out.push({ i, x: toAxis(clean), y: toAxis(cut), isQ, color: dataset[isQ ? "Q" : "A"], wrong: run.verdicts[run.verdict[i]] === "wrong" });
  }
  return out;
}

function symmetric(points) {
  let most = 0;
  for (const point of points) most = Math.max(most, Math.abs(point.x), Math.abs(point.y));
  const end = roundUp(most * 1.04);
  return [-end, end];
}

function penOf(node, width, height) {
  // In main memory: thousands of small marks are painted sooner there than by way of a GPU.
  const ratio = window.devicePixelRatio || 1, pen = node.getContext("2d", { willReadFrequently: true });
  if (node.width !== Math.round(width * ratio) || node.height !== Math.round(height * ratio)) {
    node.width = Math.round(width * ratio);
    node.height = Math.round(height * ratio);
    node.style.height = `${height}px`;
  }
  pen.setTransform(ratio, 0, 0, ratio, 0, 0);
  pen.clearRect(0, 0, width, height);
  return pen;
}

function themeOf(node) {
  const style = getComputedStyle(node), get = (name) => style.getPropertyValue(name).trim();
  return { ink: get("--ink"), quiet: get("--quiet"), line: get("--line"), faint: get("--control"), shade: get("--shade"), brush: get("--q"), sans: get("--sans") };
}

function ground(pen, colors, x, y, [left, top, right, bottom], scale) {
  const middle = scale === "logit" ? 0 : 0.5, [low, high] = [x.invert(left), x.invert(right)];
  pen.font = `12px ${colors.sans}`;
  pen.fillStyle = colors.shade; // where the prediction flips
  pen.fillRect(left, top, x(middle) - left, y(middle) - top);
  pen.fillRect(x(middle), y(middle), right - x(middle), bottom - y(middle));
  pen.strokeStyle = colors.line;
  pen.lineWidth = 1;
  for (const value of ticks(low, high, right - left < 320 ? 4 : 6)) {
    segment(pen, x(value), top, x(value), bottom);
    segment(pen, left, y(value), right, y(value));
    pen.fillStyle = colors.quiet;
    pen.textAlign = "center";
    if (x(value) < right - 8) pen.fillText(tickText(value), x(value), bottom + 15);
    pen.textAlign = "right";
    pen.fillText(tickText(value), left - 6, y(value) + 4);
  }
  pen.strokeStyle = colors.quiet;
  segment(pen, x(middle), top, x(middle), bottom);
  segment(pen, left, y(middle), right, y(middle));
  pen.setLineDash([2, 3]);
  segment(pen, x(low), y(low), x(high), y(high));
  pen.setLineDash([]);
  words(pen, colors, [left, top, right, bottom], x(middle), scale);
}

function words(pen, colors, [left, top, right, bottom], middle, scale) {
  const name = scale === "logit" ? "logit of wrong" : "P(wrong)";
  pen.fillStyle = colors.quiet;
  pen.textAlign = "center";
  pen.fillText(`${name}, clean`, (left + right) / 2, bottom + 30);
  pen.textAlign = "left";
  pen.fillText(`${name}, knocked out`, left + 4, top + 12);
  pen.textAlign = "right";
  pen.fillText("predicted right", middle - 5, bottom - 6);
  pen.textAlign = "left";
  pen.fillText("predicted wrong", middle + 5, bottom - 6);
}

function segment(pen, x0, y0, x1, y1) {
  pen.beginPath();
  pen.moveTo(x0, y0);
  pen.lineTo(x1, y1);
  pen.stroke();
}

// The line that one mechanism would follow, with the middle 95 % of its noise.
function oneMechanism(pen, run, state, x, y, toAxis) {
  if (!state.nulls) return;
  const k = state.layers[run.number], end = state.scale === "logit" ? -x.invert(PLOT.left) : 7;
  for (const fit of run.lines[state.mode]) {
    if (state.hide.includes(fit.dataset) || fit.slope[k - 1] === null) continue;
    const at = (share, more) => {
      const logit = end * (2 * share - 1);
      return [x(toAxis(logit)), y(toAxis(fit.intercept[k - 1] + fit.slope[k - 1] * logit + more * 1.96 * fit.spread[k - 1]))];
    };
    const steps = Array.from({ length: 61 }, (_, step) => step / 60), color = colorOf(run, fit.dataset, "Q");
    pen.fillStyle = pen.strokeStyle = color;
    trace(pen, [...steps.map((share) => at(share, -1)), ...steps.toReversed().map((share) => at(share, 1))]);
    pen.globalAlpha = 0.09;
    pen.fill();
    pen.globalAlpha = 1;
    pen.lineWidth = 1.6;
    pen.setLineDash([7, 4]);
    trace(pen, steps.map((share) => at(share, 0)));
    pen.stroke();
    pen.setLineDash([]);
  }
}

function trace(pen, points) {
  pen.beginPath();
  points.forEach(([a, b], at) => (at ? pen.lineTo(a, b) : pen.moveTo(a, b)));
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

function ring(pen, colors, point, x, y) {
  if (!point) return;
  pen.strokeStyle = colors.ink;
  pen.lineWidth = 2;
  pen.beginPath();
  pen.arc(x(point.x), y(point.y), 8, 0, 2 * Math.PI);
  pen.stroke();
}

function rectangle(pen, colors, corners) {
  if (!corners) return;
  const [x0, x1, y0, y1] = corners;
  pen.strokeStyle = pen.fillStyle = colors.brush;
  pen.globalAlpha = 0.12;
  pen.fillRect(x0, y0, x1 - x0, y1 - y0);
  pen.globalAlpha = 1;
  pen.lineWidth = 1;
  pen.strokeRect(x0, y0, x1 - x0, y1 - y0);
}

function nearest(points, x, y, atX, atY) {
  let best = null, least = 100;
  for (const point of points) {
    const distance = (x(point.x) - atX) ** 2 + (y(point.y) - atY) ** 2;
    if (distance < least) { least = distance; best = point; }
  }
  return best;
}
