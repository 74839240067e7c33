// Layer groups and calibration: when each device computed which attention layer of a fuzzy draft.

const LAYERS = { row: 24, gap: 14, axis: 22 };
INSETS.push(() => new PerRun((run) => run.layers, () => new LayersChart()));

/** The chart of one run: the round that replay has reached, or the one pointed at. */
class LayersChart {
  constructor() {
    this.t = Infinity;
    this.pointed = null;
    this.head = chartHead();
    this.svg = drawn("svg", { role: "img" });
    this.plot = el("div", { class: "ss-pool-plot" }, this.svg);
    this.note = el("p", { class: "ss-detail", role: "status" });
    this.legend = el("div");
    this.node = el("section", { class: "ss-card ss-pool ss-layers" }, this.head, this.legend, this.plot, this.note);
  }

  update(run) {
    entitle(this, run, "Layer groups and calibration", headNote(layersNote(run.layers)));
    this.legend.replaceChildren(layersLegend(run.layers));
  }

  at(t) {
    this.t = t;
    this.draw();
  }

  highlight(spans) {
    this.pointed = this.run.layers.rounds.find((round) => round.spans.id.some((id) => spans.has(id))) ?? null;
    this.draw();
  }

  round() {
    const { rounds } = this.run.layers;
    return this.pointed ?? rounds.findLast((round) => round.spans.start[0] <= this.t) ?? rounds[0];
  }

  draw() {
    const width = this.svg.clientWidth;
    const round = this.round();
    if (!width || (round === this.drawnRound && width === this.width)) return;
    [this.drawnRound, this.width] = [round, width];
    const { devices } = this.run.layers;
    const top = LAYERS.row + LAYERS.gap;
    const height = top + devices.length * LAYERS.row;
    setProps(this.svg, { height: height + LAYERS.axis, "aria-label": layersSentence(this.run.layers, round) });
    this.svg.replaceChildren(...draftRow(round, width), ...devices.map((label, rank) => deviceRow(round, label, rank, top, width)),
      ...zoomLines(round, width, top), layersAxis(round, width, height));
    this.note.textContent = layersSentence(this.run.layers, round);
  }
}

const layersText = (x, y, anchor, text, look = "") => drawn("text", { x, y, "text-anchor": anchor, class: look }, text);

function layersBar(x, width, y, look, text, title) {
  const wide = Math.max(1, width);
  return drawn("g", { class: `ss-layers-bar ${look}` }, drawn("title", {}, title),
    drawn("rect", { x, y: y + 2, width: wide, height: LAYERS.row - 6, rx: 1.5 }),
    wide > 6.5 * text.length + 4 ? layersText(x + wide / 2, y + LAYERS.row / 2 + 2, "middle", text) : null);
}

/** The scales time -> x of the whole draft and of its shown forward. */
function layersScales({ spans, shown }, width) {
  const [from, to] = [spans.start[0], spans.end.at(-1)];
  const i = spans.id.indexOf(shown);
  const scale = (low, high) => (t) => ((t - low) / Math.max(1e-9, high - low)) * width;
  return { draft: scale(from, to), forward: scale(spans.start[i], spans.end[i]), i };
}

/** The whole draft: a calibration, then one fuzzy forward after the other. */
function draftRow(round, width) {
  const { kind, start, end, rows, id } = round.spans;
  const { draft } = layersScales(round, width);
  return [layersText(-8, LAYERS.row / 2 + 3, "end", "draft", "ss-layers-name"), ...id.map((_, i) => {
    const text = kind[i] === "calibrate" ? `calibrate, ${rows[i]} row${rows[i] === 1 ? "" : "s"}` : "fuzzy";
    return layersBar(draft(start[i]), draft(end[i]) - draft(start[i]) - 1, 0, `ss-layers-${kind[i]}`, text, `${text}: ${ms(end[i] - start[i])}`);
  })];
}

/** The work of one device in the shown forward. */
function deviceRow(round, label, rank, top, width) {
  const { forward } = layersScales(round, width);
  const { parts } = round;
  const y = top + rank * LAYERS.row;
  const bars = parts.rank.map((own, i) => {
    if (own !== rank) return null;
    const text = parts.kind[i] === "attention" ? `${parts.layer[i]}` : "";
    const work = parts.kind[i] === "attention" ? `attention of layer ${parts.layer[i]}` : "exchange";
    const [x, end] = [forward(parts.start[i]), forward(parts.end[i])];
    return layersBar(x, end - x - 0.5, y, `ss-layers-${parts.kind[i]}`, text, `${work}: ${ms(parts.end[i] - parts.start[i])}`);
  });
  return drawn("g", {}, drawn("line", { x1: 0, x2: width, y1: y + LAYERS.row / 2 - 1, y2: y + LAYERS.row / 2 - 1, class: "ss-pool-grid" }),
    layersText(-8, y + LAYERS.row / 2 + 3, "end", label.split(" · ")[0], "ss-layers-name"), bars);
}

/** Lines from the shown forward in the draft to its devices below. */
function zoomLines(round, width, top) {
  const { draft, i } = layersScales(round, width);
  const { start, end } = round.spans;
  return [[draft(start[i]), 0], [draft(end[i]) - 1, width]].map(([x, below]) =>
    drawn("line", { x1: x, y1: LAYERS.row - 4, x2: below, y2: top, class: "ss-pool-edge" }));
}

function layersAxis(round, width, height) {
  const { i } = layersScales(round, width);
  const long = round.spans.end[i] - round.spans.start[i];
  return drawn("g", { class: "ss-pool-axes", "aria-hidden": "true" }, drawn("line", { x1: 0, y1: height, x2: width, y2: height, class: "ss-pool-edge" }),
    layersText(0, height + 16, "start", "0"), layersText(width, height + 16, "end", ms(long)));
}

function layersNote({ groups, devices }) {
  const named = groups.map(([first, last]) => (first === last ? `${first}` : `${first}–${last}`)).join(", ");
  return devices.length > 1 ? `${devices.length} devices; groups of layers ${named}; every other layer is computed alone` : "one device computes all layers of a group";
}

function layersLegend({ devices, rounds }) {
  const item = (kind, label) => el("li", {}, swatch(kind), label);
  return el("ul", { class: "ss-legend", "aria-label": "Legend of the layers" },
    rounds.some((round) => round.spans.kind[0] === "calibrate") ? item("calibrate", "exact forward (calibration)") : null,
    item("draft", "fuzzy forward; in the rows below: attention of a layer"),
    devices.length > 1 ? item("communicate", "outputs are exchanged") : null);
}

/** A sentence about a round. */
function layersSentence({ devices }, { step, spans, shown }) {
  const i = spans.id.indexOf(shown);
  const fuzzy = spans.kind.filter((kind) => kind === "draft").length;
  const calibrated = spans.kind[0] === "calibrate" ? `an exact forward of ${spans.rows[0]} row${spans.rows[0] === 1 ? "" : "s"}, then ` : "";
  return `Step ${step}: ${calibrated}${fuzzy} fuzzy forward${fuzzy === 1 ? "" : "s"}. Below: the first fuzzy one, `
    + `${ms(spans.end[i] - spans.start[i])} on ${devices.length} device${devices.length === 1 ? "" : "s"}; between the bars every device runs the MLPs.`;
}
