// The samples as a table: sorted by any column, a page at a time; and the same rows as CSV.

const PER_PAGE = 30;

// kind: "text" is untrusted, "word" one of ours, "number" a number (NaN: none).
function columnsOf(runs, state) {
  const first = runs[0], own = [
    { key: "question", title: "Question", kind: "text", get: (row) => first.question[row[0]] },
    { key: "dataset", title: "Dataset", kind: "text", get: (row) => first.datasets[first.dataset[row[0]]].title },
  ];
  const perRun = runs.flatMap((run, at) => ofRun(run, at, state, runs.length > 1 ? String(at + 1) : ""));
  return [own[0], ...(runs.length > 1 ? [] : perRun.splice(0, 1)), own[1], ...perRun,
    { key: "popularity", title: "Popularity", kind: "number", get: (row) => first.popularity[row[0]], show: short }];
}

function ofRun(run, at, state, end) {
  const k = state.layers[at], { mode } = state;
  const column = (key, title, kind, get, more = {}) => ({ key: key + end, title: end ? `${title} ${end}` : title, kind, get: (row) => get(row[at]), run: at, ...more });
  return [
    column("answer", "Answer", "text", (i) => run.answer[i]),
    column("verdict", "Verdict", "word", (i) => run.verdicts[run.verdict[i]], { chip: true }),
    column("predicted", "Predicted", "word", (i) => predictedName(run, mode, i, k), { hint: `by the ${mode}-mode probe at layer ${k}` }),
    column("paper", "Paper", "word", (i) => run.pathway("paper", i, k), { hint: `pathway in paper mode at layer ${k}`, group: true }),
    column("strict", "Strict", "word", (i) => run.pathway("strict", i, k), { hint: `pathway in strict mode at layer ${k}`, group: true }),
    column("delta_p", "ΔP", "number", (i) => rounded2(run.deltaP(mode, i, k)), { show: (value) => number(value, 1), hint: `at layer ${k}, ${mode} mode` }),
    column("flip_layer", "Flip", "number", (i) => run.flip[mode][i] || NaN, { show: (value) => number(value, 0), hint: "first layer at which the knockout flips the prediction" }),
    column("type", "Type", "word", (i) => run.types[run.type[i]], { hint: "of the answer, by its form" }),
  ];
}

const rounded2 = (value) => Math.round(value * 100) / 100;

// Rows in the order of a column, those without a value last. Letters with and without accents stand
// together; comparing such keys is ten times as fast as a collator, which a click would notice.
function sorted(rows, columns, sort) {
  const column = columns.find((each) => each.key === sort.replace("-", "")), sign = sort.startsWith("-") ? -1 : 1;
  if (!column) return rows;
  const keyOf = column.kind === "number" ? (value) => value : (value) => value.normalize("NFKD").toLowerCase();
  const known = [], unknown = [];
  for (const row of rows) {
    const value = column.get(row);
    if (value === "" || Number.isNaN(value)) unknown.push(row);
    else known.push({ row, key: keyOf(value) });
  }
  known.sort((a, b) => (a.key < b.key ? -sign : a.key > b.key ? sign : 0));
  return [...known.map((item) => item.row), ...unknown];
}

function drawTable(app, node, rows, columns) {
  const { state, runs } = app, from = (state.page - 1) * PER_PAGE, here = rows.slice(from, from + PER_PAGE);
  const body = element("tbody", {}, ...here.map((row, at) => rowOf(app, row, columns, at)));
  const empty = element("tbody", {}, element("tr", {}, element("td", { colspan: columns.length, class: "empty" }, "No sample passes these filters.")));
  node.replaceChildren(element("thead", {}, element("tr", {}, ...columns.map((column) => head(app, column)))), here.length ? body : empty);
  node.setAttribute("aria-rowcount", rows.length + 1);
  node.classList.toggle("two", runs.length > 1);
}

function head(app, column) {
  const { sort } = app.state, on = sort.replace("-", "") === column.key, down = sort.startsWith("-");
  const next = !on ? column.key : down ? "" : `-${column.key}`;
  return element("th", { scope: "col", class: `${column.kind} is-${column.key}`, "aria-sort": on ? (down ? "descending" : "ascending") : "none" },
    element("button", { type: "button", title: column.hint ?? null, "data-sort": column.key, onclick: () => app.update({ sort: next, page: 1 }, { push: true, focus: `[data-sort="${column.key}"]` }) },
      column.title, element("span", { class: "arrow", "aria-hidden": "true" }, on ? (down ? "▼" : "▲") : "")));
}

function rowOf(app, row, columns, at) {
  const id = app.runs[0].id[row[0]], open = app.state.open === id;
  return element("tr", {
    tabindex: open || at === 0 ? 0 : -1, "data-id": id, "aria-selected": String(open), class: open ? "open" : null,
    onclick: () => app.open(id), onkeydown: (event) => rowKey(app, event, id),
  }, ...columns.map((column) => cellOf(column, row)));
}

function cellOf(column, row) {
  const value = column.get(row), cell = element("td", { class: `${column.kind} is-${column.key}` });
  if (column.kind === "text") cell.append(untrusted(value));
  else if (column.kind === "number") cell.append(column.show(value));
  else if (value === "") cell.append("–");
  else if (column.chip) cell.append(element("span", { class: `verdict ${value}` }, value));
  else if (column.group) cell.append(element("span", { class: `group ${value}` }, value));
  else cell.append(value);
  return cell;
}

function rowKey(app, event, id) {
  const step = { ArrowDown: 1, ArrowUp: -1 }[event.key], rows = [...event.currentTarget.parentNode.rows];
  if (step) {
    event.preventDefault();
    rows[clamp(rows.indexOf(event.currentTarget) + step, 0, rows.length - 1)].focus();
  } else if (event.key === "Enter" || event.key === " ") {
    event.preventDefault();
    app.open(id);
  }
}

function drawPages(app, node, rows) {
  const last = Math.max(1, Math.ceil(rows.length / PER_PAGE)), { page } = app.state;
  if (last === 1) return node.replaceChildren();
  const button = (text, to, name) => element("button", { type: "button", disabled: to < 1 || to > last, "data-page": name, onclick: () => app.update({ page: to }, { push: true, focus: `[data-page=${name}]` }) }, text);
  node.replaceChildren(button("← Previous", page - 1, "previous"), element("span", { class: "quiet" }, `page ${page} of ${last}`), button("Next →", page + 1, "next"));
}

function csvOf(app, rows, columns) {
  const quoted = (text) => (/[",\n\r]/.test(text) ? `"${text.replaceAll('"', '""')}"` : text);
  const cell = (column, row) => {
    const value = column.get(row);
    return quoted(Number.isNaN(value) ? "" : String(value));
  };
  const lines = [["id", ...columns.map((column) => column.key)].join(",")];
  for (const row of rows) lines.push([quoted(app.runs[0].id[row[0]]), ...columns.map((column) => cell(column, row))].join(","));
  return lines.join("\r\n") + "\r\n";
}

function download(text, name) {
  const address = URL.createObjectURL(new Blob(["\ufeff", text], { type: "text/csv;charset=utf-8" }));
  element("a", { href: address, download: name }).click();
  setTimeout(() => URL.revokeObjectURL(address), 10000);
}
