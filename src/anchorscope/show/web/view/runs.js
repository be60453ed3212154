// Numbers out of base64: half precision, single precision, 32-bit integers, bytes.

const HALF = (() => {
  const table = new Float32Array(65536);
  for (let code = 0; code < 65536; code++) {
    const sign = code & 0x8000 ? -1 : 1, exponent = (code >> 10) & 31, fraction = code & 1023;
    if (exponent === 31) table[code] = fraction ? NaN : sign * Infinity;
    else if (exponent === 0) table[code] = sign * fraction * 2 ** -24;
    else table[code] = sign * (1 + fraction / 1024) * 2 ** (exponent - 15);
  }
  return table;
})();

function bytesOf(text) {
  const raw = atob(text), out = new Uint8Array(raw.length);
  for (let i = 0; i < raw.length; i++) out[i] = raw.charCodeAt(i);
  return out;
}

function halvesOf(text) {
  const codes = new Uint16Array(bytesOf(text).buffer), out = new Float32Array(codes.length);
  for (let i = 0; i < codes.length; i++) out[i] = HALF[codes[i]];
  return out;
}

const floatsOf = (text) => new Float32Array(bytesOf(text).buffer);
const integersOf = (text) => new Int32Array(bytesOf(text).buffer);

// A run in memory. Layers count from 1; `at(i, k)` is the place of sample i and layer k.

const Q = 1;
const PATHWAY = ["", "Q", "A"];
const sigmoid = (x) => 1 / (1 + Math.exp(-x));

class Run {
  constructor(data, number) {
    Object.assign(this, data);
    this.number = number;
    for (const name of ["dataset", "verdict", "type"]) this[name] = bytesOf(data[name]);
    this.popularity = floatsOf(data.popularity);
    const byMode = (packed, read) => Object.fromEntries(this.modes.map((mode) => [mode, read(packed[mode])]));
    this.logits = Object.fromEntries(this.passes.map(({ name }) => [name, byMode(data.logits[name], halvesOf)]));
    this.group = byMode(data.group, bytesOf);
    if (!this.no_tokens) this.readTokens(data);
    this.row = new Map(this.id.map((id, i) => [id, i]));
    this.flip = Object.fromEntries(this.modes.map((mode) => [mode, this.firstFlips(mode)]));
  }

  readTokens(data) {
    this.tokens = integersOf(data.tokens);
    this.roles = bytesOf(data.roles);
    this.tokenStart = new Int32Array(this.n + 1);
    integersOf(data.token_counts).forEach((count, i) => { this.tokenStart[i + 1] = this.tokenStart[i] + count; });
  }

  at(i, k) { return i * this.layers + k - 1; }

  // Whether a probe read the sample: abstentions and answers without an entity have no belief.
  read(i, mode) { return !Number.isNaN(this.logits.clean[mode][i * this.layers]); }

  clean(mode, i, k) { return this.logits.clean[mode][this.at(i, k)]; }

  cut(mode, i, k) { return this.logits.knockout[mode][this.at(i, k)]; }

  // The class the probe predicts without an intervention: 0 right, 1 wrong, NaN not read.
  predicted(mode, i, k) {
    const logit = this.clean(mode, i, k);
    return Number.isNaN(logit) ? NaN : Number(logit > 0);
  }

  pathway(mode, i, k) { return PATHWAY[this.group[mode][this.at(i, k)]]; }

  // ΔP: how far the belief in the first prediction moves, in points (or in percent of it).
  deltaP(mode, i, k, pass = "knockout") {
    const clean = this.clean(mode, i, k), other = this.logits[pass][mode][this.at(i, k)];
    const sign = clean > 0 ? 1 : -1, before = sigmoid(sign * clean);
    return 100 * (sigmoid(sign * other) - before) / (this.unit === "percent" ? before : 1);
  }

  // The first layer at which the knockout flips the prediction; 0: none, NaN: not read.
  firstFlips(mode) {
    const out = new Float32Array(this.n), clean = this.logits.clean[mode], cut = this.logits.knockout[mode];
    for (let i = 0; i < this.n; i++) {
      if (!this.read(i, mode)) { out[i] = NaN; continue; }
      for (let k = 1; k <= this.layers && !out[i]; k++) {
        const at = this.at(i, k);
        if (!Number.isNaN(cut[at]) && (clean[at] > 0) !== (cut[at] > 0)) out[i] = k;
      }
    }
    return out;
  }
}

// One row of the table: a question, and its place in each run.
function joinedRows(runs) {
  if (runs.length === 1) return Array.from({ length: runs[0].n }, (_, i) => [i]);
  const rows = [];
  runs[0].id.forEach((id, i) => {
    const j = runs[1].row.get(id);
    if (j !== undefined) rows.push([i, j]);
  });
  return rows;
}
