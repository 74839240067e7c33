// Draft length: a column per draft, as high as the tokens that were asked for, drafted and accepted, and why it ended.

const LENGTHS = { height: 96, most: 22, least: 3, sign: 7, foot: 18, axis: 34 };
/** Why a draft ended: its sign below the column, and the words. */
const STOPS = {
  full: ["", "complete"],
  uncertain: ["?", "at an uncertain token"],
  end: ["|", "at the end of the output"],
  cancelled: ["×", "cancelled"],
  off: ["–", "off: drafting has ended for good"],
  load: ["≤", "at the length that the load's policy allowed"],
};
INSETS.push((viewer) => new PerRun((run) => run.lengths.length, () => new LengthsChart(viewer)));

/** The chart of one run: the drafts of the timeline's window, of one sequence. */
class LengthsChart {
  constructor(viewer) {
    this.viewer = viewer;
    this.id = `ss-lengths-${Math.random().toString(36).slice(2)}`;
    chartCard(this, "ss-lengths", "listbox");
    this.marks = new Marks(this.svg, ".ss-lengths-draft", (node) => Number(node.dataset.at),
      (node, { type }) => this.point(node, type === "click" ? "pin" : "hover"));
  }

  /** Tell of a draft and show the card of its first forward; node null: of none. */
  point(node, name) {
    const row = node ? this.rows[Number(node.dataset.at)] : null;
    this.say(row);
    if (row && findSpan(this.run, row.first)) this.viewer[name]({ run: this.run, span: row.first }, node.getBoundingClientRect());
    else this.viewer.hover(null);
  }

  update(run) {
    this.rows = ofChosen(run, run.lengths);
    this.svg.setAttribute("aria-label", `Drafts of ${runName(run)}; arrow keys move`);
    entitle(this, "Draft length", run.sequences.length > 1 ? `sequence ${chosenSequence(run) + 1} of ${run.sequences.length}` : "");
    this.legend.replaceChildren(lengthsLegend(this.rows));
  }

  followed() {
    this.update(this.run);
  }

  /** The drafts of the timeline's window; all of them if that shows everything. */
  inWindow() {
    const { gantt } = this.viewer;
    const [from, to] = gantt.follow ? [-Infinity, Infinity] : gantt.range;
    return this.rows.map((row, at) => ({ row, at })).filter(({ row }) => row.t >= from && row.t <= to);
  }

  draw(width) {
    const found = this.inWindow();
    this.crowd = found.length * LENGTHS.least > width ? found.length : 0;
    const shown = this.crowd ? [] : found;
    const scene = lengthsScene(shown, width);
    setProps(this.svg, { height: LENGTHS.height + LENGTHS.axis });
    this.marks.redraw(drawn("defs", {}, hatching(this.id, "ss-lengths-hatch", { ground: "ss-pool-ground" })), lengthsGrid(scene, shown),
      ...shown.map(({ row, at }, i) => lengthsColumn(scene, row, at, i, this.id)));
    this.say(null);
    this.highlight(this.lit ?? new Set());
    this.at(this.t ?? Infinity);
  }

  say(row) {
    this.note.textContent = row ? lengthSentence(row)
      : this.crowd ? `${number(this.crowd, 0)} drafts are too many for one view. Zoom in to see them.` : lengthsSummary(this.rows);
  }

  /** Fade what replay has not reached. */
  at(t) {
    this.t = t;
    for (const node of this.marks.all()) node.classList.toggle("ss-lengths-later", this.rows[Number(node.dataset.at)].t > t);
  }

  highlight(spans) {
    this.lit = spans;
    for (const node of this.marks.all()) {
      const { first, last } = this.rows[Number(node.dataset.at)];
      node.classList.toggle("ss-pool-lit", first >= 0 && [...spans].some((span) => span >= first && span <= last));
    }
  }
}

/** Widths and scale: columns of equal width, the highest one as high as the chart. */
function lengthsScene(shown, width) {
  const column = Math.min(LENGTHS.most, width / Math.max(1, shown.length));
  const most = shown.reduce((a, { row }) => Math.max(a, row.asked), 1);
  return { width, column, most, y: (tokens) => LENGTHS.height * (1 - tokens / most) };
}

function lengthsGrid({ width, column, most, y }, shown) {
  const tokens = roundTicks(0, most, LENGTHS.height, 26).filter((n) => n >= 1 && Number.isInteger(n));
  const foot = LENGTHS.height + LENGTHS.foot + 14;
  const every = Math.max(1, Math.ceil(44 / column));
  return drawn("g", { "aria-hidden": "true", class: "ss-pool-axes" },
    tokens.map((n) => [drawnLine(0, y(n), width, y(n)), drawnText(-8, y(n) + 4, "end", n === tokens.at(-1) ? `${n} tokens` : n)]),
    drawnLine(0, LENGTHS.height, width, LENGTHS.height, "ss-pool-edge"), shown.some(({ row }) => STOPS[row.stop][0]) ? drawnText(-8, LENGTHS.height + LENGTHS.foot - 4, "end", "ended") : null, drawnText(-8, foot, "end", "step"),
    shown.map(({ row }, i) => (i % every ? null : drawnText((i + 0.5) * column, foot, "middle", number(row.step, 0)))));
}

/** A draft: an outline as high as what was asked for; in it the drafted tokens, accepted ones at the bottom. */
function lengthsColumn({ column, y }, row, at, i, id) {
  const [left, wide] = [i * column + 0.1 * column, Math.max(1, 0.8 * column)];
  const block = (low, high, look, props = {}) => (high > low ? drawn("rect", { x: left, width: wide, y: y(high), height: y(low) - y(high), class: look, ...props }) : null);
  const decided = row.accepted + row.lost;
  const sign = column >= LENGTHS.sign ? STOPS[row.stop][0] : "";
  return drawn("g", { class: `ss-lengths-draft ss-lengths-${row.stop}`, role: "option", tabindex: "-1", "data-at": at, "aria-label": lengthSentence(row) },
    drawn("rect", { x: i * column, width: column, y: 0, height: LENGTHS.height + LENGTHS.foot, class: "ss-lengths-reach" }),
    block(0, row.asked, "ss-lengths-asked"),
    block(0, row.accepted, "ss-lengths-accepted"), block(row.accepted, decided, "ss-lengths-lost", { style: `fill: url(#${id})` }), block(decided, row.drafted, "ss-lengths-open"),
    sign ? drawn("text", { x: (i + 0.5) * column, y: LENGTHS.height + LENGTHS.foot - 4, "text-anchor": "middle", "aria-hidden": "true" }, sign) : null);
}

function lengthSentence({ step, asked, drafted, accepted, lost, stop }) {
  if (stop === "off") return `Step ${step}: no draft, drafting has ended for good.`;
  const fate = accepted + lost ? `, ${accepted} accepted` : drafted ? ", not judged yet" : "";
  const ended = stop === "full" ? "" : ` It ended ${stop === "cancelled" ? "because it was cancelled" : STOPS[stop][1]}.`;
  return `Step ${step}: ${some(asked, "token")} asked for, ${drafted} drafted${fate}.${ended}`;
}

/** How many drafts ended for each reason, and the mean lengths. */
function lengthsSummary(rows) {
  const drafts = rows.filter((row) => row.stop !== "off");
  const mean = (name) => number(drafts.reduce((sum, row) => sum + row[name], 0) / Math.max(1, drafts.length), 1);
  const ends = Object.keys(STOPS).map((stop) => [rows.filter((row) => row.stop === stop).length, STOPS[stop][1]]).filter(([count]) => count);
  return `On average ${mean("asked")} tokens asked for, ${mean("drafted")} drafted, ${mean("accepted")} accepted. `
    + `${some(rows.length, "draft")}: ${ends.map(([count, words]) => `${number(count, 0)} ${words}`).join(", ")}.`;
}

function lengthsLegend(rows) {
  const signs = Object.entries(STOPS).filter(([stop, [sign]]) => sign && rows.some((row) => row.stop === stop));
  return legendOf("Legend of the draft lengths", [
    ["ss-lengths-key-asked", "asked for"], ["ss-lengths-key-accepted", "accepted"], ["ss-lengths-key-lost", "drafted, rejected or discarded"],
    rows.some((row) => row.drafted > row.accepted + row.lost) && ["ss-lengths-key-open", "drafted, not judged yet"],
    ...signs.map(([, [sign, words]]) => el("li", {}, el("b", { class: "ss-lengths-sign", "aria-hidden": "true" }, sign), words))]);
}
