// Token by token: the runs of one text below each other, one column per token. A bar is the time since the token before.

const ALIGNED = { bar: 30, least: 2.5, strip: 20, row: 62, axis: 20, cell: [4, 44], room: 30 };
const ALIGNED_HINT = "Point at a token, or move with the arrow keys; a click or Enter pins its card.";
INSETS.push((viewer) => new Aligned(viewer));

/** How far the texts of the runs agree, for the chosen sequence of the first one: traces/view/aligned.py. */
const alignedViews = (model) => (model.state === "ready" && model.aligned?.[chosenSequence(model.runs[0])]?.rows) || [];

/**
 * A row: `more` and {tokens, first, t, gap}. Of these tokens, `skipped` ones are left out; `first` tokens of the run are
 * before the row. `more` has the run, its `part` with the rows of the tokens, and its numbers of tokens: `length`, `same`.
 */
function alignedRow(more, tokens, skipped, first = 0) {
  const t = Float64Array.from(tokens, (token) => token.t);
  const gap = t.map((time, k) => time - (k ? t[k - 1] : 0));
  return { ...more, tokens: tokens.slice(skipped), first, t: t.slice(skipped), gap: gap.slice(skipped) };
}

/** The rows of whole runs. */
function alignedRows(model) {
  return alignedViews(model).flatMap(({ sequence, same, reason }, i) => {
    const run = model.runs[i];
    const tokens = run.tokens.filter((token) => token.sequence === sequence);
    return reason ? [] : [alignedRow({ run, part: run, same, length: tokens.length }, tokens.slice(0, same), 0)];
  });
}

/** Sentences about the runs that are not aligned, or not to the `last` token. */
function alignedNotes(model, rows, last) {
  const left = alignedViews(model).flatMap(({ reason }, i) => (reason ? [`${runName(model.runs[i])}: ${reason}`] : []));
  return [
    left.length ? `Not aligned with ${runName(model.runs[0])}: ${left.join("; ")}.` : "",
    ...rows.filter(({ same }) => same < last).map(({ run, same, length }) => `${runName(run)} ${same < length ? "writes another text" : "ends"} after token ${number(same, 0)}.`),
  ].filter(Boolean).join(" ");
}

class Aligned {
  constructor(viewer) {
    this.viewer = viewer;
    this.part = new AlignedPart(viewer, () => this.update(viewer.model));
    this.place = [0, 0]; // row and column
    this.chosen = false; // whether the sentence is that of the place
    this.note = el("p", { class: "ss-hint" });
    this.names = el("div", { class: "ss-aligned-names" });
    this.svg = drawn("svg", { "aria-hidden": "true" });
    this.plot = el("div", { class: "ss-aligned-plot", tabindex: "0", role: "group",
      "aria-label": "Tokens of all runs by position. The arrow keys move, Enter pins the card. The table below has the same data." }, this.svg);
    this.status = el("p", { class: "ss-say", role: "status" });
    this.fold = fold("Token by token as a table", "ss-wide");
    this.parts = [alignedLegend(), el("div", { class: "ss-aligned-body" }, this.names, this.plot), this.status, this.fold];
    this.card = el("section", { class: "ss-card ss-aligned", "aria-label": "Token by token", hidden: true },
      el("h3", {}, "Token by token"), this.note, this.parts);
    this.node = el("div", {}, this.card);
    this.resizing = new ResizeObserver(() => this.draw());
    this.resizing.observe(this.plot);
    this.fold.addEventListener("toggle", () => this.tabulate());
    this.plot.addEventListener("pointermove", (event) => this.point(event, false));
    this.plot.addEventListener("click", (event) => this.point(event, true));
    this.plot.addEventListener("keydown", (event) => this.key(event));
    this.plot.addEventListener("focus", () => this.plot.matches(":focus-visible") && this.go(0, 0));
  }

  update(model) {
    const part = this.part.update(model);
    const rows = part ? this.part.rows() : alignedRows(model);
    this.rows = rows.filter((row) => row.tokens.length);
    for (const row of this.rows) row.lead = row.t.map((time, k) => this.rows[0].t[k] - time); // the time ahead of the first row
    const shown = part || (alignedViews(model).length > 0 && model.runs.some((run) => run.tokens.length));
    this.card.hidden = !shown;
    if (!shown) return;
    const alone = this.rows.length < 2;
    if (alone) this.rows = [];
    for (const part of this.parts) part.hidden = alone;
    this.note.textContent = part ? this.part.note() : alignedNotes(model, rows, rows[0]?.length);
    if (part && this.found !== this.part.found) Object.assign(this, { found: this.part.found, place: [0, 0], chosen: false });
    this.chosen &&= Boolean(this.rows[this.place[0]]?.tokens[this.place[1]]);
    if (!this.chosen) this.status.textContent = ALIGNED_HINT;
    this.drawnWidth = 0;
    this.names.replaceChildren(...this.rows.map((row, i) => alignedName(row, i)));
    this.draw();
    this.tabulate();
  }

  draw() {
    const width = this.plot.clientWidth;
    if (!this.rows?.length || !width || width === this.drawnWidth) return;
    this.drawnWidth = width;
    const columns = Math.max(...this.rows.map((row) => row.tokens.length));
    this.cell = Math.max(ALIGNED.cell[0], Math.min(ALIGNED.cell[1], (width - 2) / columns));
    const height = this.rows.length * ALIGNED.row;
    const most = Math.max(1e-9, ...this.rows.flatMap((row) => [...row.gap]));
    const leads = this.rows.flatMap((row) => [...row.lead]);
    const scale = [Math.max(1e-9, ...leads), Math.min(0, ...leads)];
    this.veils = this.rows.map((_, i) => drawn("rect", { y: i * ALIGNED.row, height: ALIGNED.row - 6, class: "ss-aligned-veil" }));
    this.light = drawn("rect", { class: "ss-aligned-light", height: ALIGNED.row - 8, width: this.cell, visibility: "hidden" });
    setProps(this.svg, { width: columns * this.cell + 1, height: height + ALIGNED.axis });
    this.svg.replaceChildren(drawn("defs", {}, hatching("ss-aligned-hatch", "ss-aligned-line", { size: 3, wide: 1.7 })), ...this.rows.map((row, i) => alignedBars(row, i, this.cell, most, scale)),
      ...this.veils, this.light, alignedAxis(columns, this.cell, height, this.rows[0]));
    this.at(this.t ?? Infinity);
    if (this.chosen) this.choose(this.place, false);
  }

  /** Cover the tokens after time t. */
  at(t) {
    this.t = t;
    if (!this.rows?.length || !this.veils) return;
    this.rows.forEach((row, i) => {
      const from = upperBound(row.t, t);
      setProps(this.veils[i], { x: from * this.cell, width: Math.max(0, (row.tokens.length - from) * this.cell) });
    });
  }

  point(event, pin) {
    if (!this.cell) return;
    const box = this.svg.getBoundingClientRect();
    const place = [Math.floor((event.clientY - box.top) / ALIGNED.row), Math.floor((event.clientX - box.left) / this.cell)];
    if (this.rows[place[0]]?.tokens[place[1]]) this.choose(place, pin);
  }

  key(event) {
    const [down, right] = { ArrowUp: [-1, 0], ArrowDown: [1, 0], ArrowLeft: [0, -1], ArrowRight: [0, 1], Home: [0, -1e9], End: [0, 1e9], Enter: [0, 0] }[event.key] ?? [];
    if (down === undefined || modified(event)) return;
    event.preventDefault();
    event.stopPropagation();
    this.go(down, right, event.key === "Enter");
  }

  go(down, right, pin = false) {
    if (!this.rows.length) return;
    const row = Math.max(0, Math.min(this.rows.length - 1, this.place[0] + down));
    const column = Math.max(0, Math.min(this.rows[row].tokens.length - 1, this.place[1] + right));
    this.choose([row, column], pin);
    const x = column * this.cell;
    if (x < this.plot.scrollLeft || x + this.cell > this.plot.scrollLeft + this.plot.clientWidth) this.plot.scrollLeft = x - this.plot.clientWidth / 2;
  }

  /** Show the sentence of a cell; with `pin` also its card. */
  choose(place, pin) {
    Object.assign(this, { place, chosen: true });
    const [i, k] = place;
    const row = this.rows[i];
    setProps(this.light, { x: k * this.cell, y: i * ALIGNED.row - 2, visibility: "visible" });
    this.status.textContent = alignedSentence(this.rows, i, k);
    if (!pin) return;
    const box = this.svg.getBoundingClientRect();
    const left = box.left + (k + 1) * this.cell + 4;
    const beside = { left, top: box.top + i * ALIGNED.row, bottom: box.top + (i + 1) * ALIGNED.row };
    const token = row.run.tokens.find(({ index }) => index === row.tokens[k].index) ?? row.tokens[k];
    this.viewer.pin({ run: row.run, part: row.part, token }, beside);
  }

  tabulate() {
    if (!this.fold.open || !this.rows.length) return;
    this.fold.lastChild.replaceChildren(alignedTable(this.rows));
  }

  followed(model) {
    this.update(model);
  }

  /** The timeline's window has changed. */
  range() {
    this.part.look();
  }

  destroy() {
    this.part.destroy();
    this.resizing.disconnect();
  }
}

function alignedName({ run, lead }, i) {
  const last = lead.at(-1);
  const ahead = i ? `${ms(Math.abs(last))} ${last < 0 ? "behind" : "ahead"}` : "reference";
  return el("div", { class: "ss-aligned-name", title: runName(run) }, el("span", {}, runName(run)), el("small", {}, ahead));
}

/** A run's bars by origin, and below them its lead; `most` is the longest gap, `scale` the highest and the lowest lead. */
function alignedBars({ tokens, gap, lead }, i, cell, most, [high, low]) {
  const top = i * ALIGNED.row;
  const bars = {};
  const ahead = { ahead: "", behind: "" };
  const thick = cell - (cell > 6 ? 1.5 : 0.8);
  const foot = top + ALIGNED.bar;
  const zero = foot + 4 + (ALIGNED.strip * high) / (high - low);
  tokens.forEach((token, k) => {
    const tall = Math.max(ALIGNED.least, (gap[k] / most) * ALIGNED.bar);
    const inset = token.outcome === "corrected" ? 0.5 : 0; // its outline lies inside of the bar
    bars[token.outcome] = `${bars[token.outcome] ?? ""}M${k * cell + inset} ${foot - inset}v${2 * inset - tall}h${thick - 2 * inset}v${tall - 2 * inset}z`;
    const way = (ALIGNED.strip * lead[k]) / (high - low);
    ahead[way < 0 ? "behind" : "ahead"] += `M${k * cell} ${zero}v${-way}h${cell}v${way}z`;
  });
  return drawn("g", {},
    drawnLine(0, foot + 0.5, tokens.length * cell, foot + 0.5),
    Object.entries(bars).map(([outcome, d]) => drawn("path", { d, class: `ss-aligned-${outcome}` })),
    i ? [drawnLine(0, zero, tokens.length * cell, zero, "ss-pool-edge"),
      Object.entries(ahead).map(([name, d]) => drawn("path", { d, class: `ss-aligned-${name}` }))] : null);
}

/** The numbers of the tokens, or their texts where there is room. */
function alignedAxis(columns, cell, height, { tokens, first }) {
  const texts = cell >= ALIGNED.room;
  const room = 10 + 8 * String(first + columns).length;
  const step = texts ? 1 : [1, 2, 5, 10, 20, 50, 100, 200, 500, 1000].find((n) => n * cell >= room) ?? 2000;
  const places = Array.from({ length: columns }, (_, k) => k).filter((k) => texts || k === 0 || ((first + k + 1) % step === 0 && k * cell >= room));
  const most = Math.floor(cell / 6);
  const nameOf = (k) => {
    if (!texts) return String(first + k + 1);
    const text = tokens[k]?.text.trim() ?? "";
    return text.length > most ? `${text.slice(0, most - 1)}…` : text;
  };
  return drawn("g", { class: "ss-pool-axes" }, places.map((k) => drawn("text", { x: (k + (texts || (k && k < columns - 1) ? 0.5 : k ? 1 : 0)) * cell, y: height + 12,
    "text-anchor": texts ? "middle" : k === 0 ? "start" : k === columns - 1 ? "end" : "middle" }, nameOf(k))));
}

function alignedSentence(rows, i, k) {
  const { run, tokens, gap, t, lead, first } = rows[i];
  const later = first + k > 0;
  const before = later && gap[k] === 0 ? "together with the token before it" : `${ms(gap[k])} after ${later ? "the token before it" : "decoding began"}`;
  const compared = i ? `; ${ms(Math.abs(lead[k]))} ${lead[k] < 0 ? "behind" : "ahead of"} ${runName(rows[0].run)}` : "";
  return `Token ${first + k + 1}, ${quoted(tokens[k].text)}: ${runName(run)} has it at ${ms(t[k])}, ${before}, ${outcomeOf(tokens[k])}${compared}.`;
}

function alignedTable(rows) {
  const head = ["token", "text", ...rows.flatMap(({ run }, i) => [`${runName(run)}: after the token before`, "origin", ...(i ? ["ahead"] : [])])];
  const count = Math.max(...rows.map((row) => row.tokens.length));
  const shown = Math.min(count, MOST_ROUNDS);
  const lines = Array.from({ length: shown }, (_, k) => [rows[0].first + k + 1, quoted((rows.find((row) => row.tokens[k])).tokens[k].text),
    ...rows.flatMap(({ tokens, gap, lead }, i) => (tokens[k] ? [ms(gap[k]), outcomeOf(tokens[k]), ...(i ? [ms(lead[k])] : [])] : ["–", "–", ...(i ? ["–"] : [])]))]);
  return el("div", {}, table("Token by token", head, lines), count > shown ? el("p", { class: "ss-hint" }, `The first ${shown} are shown; ${count - shown} follow.`) : null);
}

const alignedLegend = () => legendOf("Legend of the tokens", [
  ...["accepted", "corrected", "bonus", "plain"].map((outcome) => [`ss-aligned-key-${outcome}`, OUTCOMES[outcome]]),
  el("li", {}, "Height of a bar: time since the token before. Below: "), ["ss-aligned-key-ahead", "ahead of the first run"], ["ss-aligned-key-behind", "behind it"]], "ss-keys");
