// Layer groups and calibration: when each device computed which attention layer of a fuzzy draft.

const LAYERS = { row: 24, gap: 14, axis: 22 };
INSETS.push(() => new PerRun((run) => run.layers, () => new LayersChart()));

/** The chart of one run: the round that replay has reached, or the one pointed at. */
class LayersChart {
  constructor() {
    this.still = true;
    chartCard(this, "ss-layers");
  }

  update({ layers }) {
    this.rounds = layers.rounds.map((round) => ({ ...round, t: round.spans.start[0] }));
    entitle(this, "Layer groups and calibration", layersNote(layers));
    this.legend.replaceChildren(layersLegend(layers));
  }

  roundOf(spans) {
    return this.rounds.find((round) => round.spans.id.some((id) => spans.has(id)));
  }

  show() {
    if (this.width) this.draw(this.width);
  }

  draw(width) {
    const { run: { layers }, round } = this;
    const top = LAYERS.row + LAYERS.gap;
    const height = top + layers.devices.length * LAYERS.row;
    const sentence = layersSentence(layers, round);
    setProps(this.svg, { height: height + LAYERS.axis, "aria-label": sentence });
    this.svg.replaceChildren(...draftRow(round, width), ...layers.devices.map((label, rank) => deviceRow(round, label, rank, top, width)),
      ...zoomLines(round, width, top), layersAxis(round, width, height));
    this.note.textContent = sentence;
  }
}

function layersBar(x, width, y, look, text, title) {
  const wide = Math.max(1, width);
  return drawn("g", { class: `ss-layers-bar ${look}` }, drawn("title", {}, title),
    drawn("rect", { x, y: y + 2, width: wide, height: LAYERS.row - 6, rx: 1.5 }),
    wide > 6.5 * text.length + 4 ? drawnText(x + wide / 2, y + LAYERS.row / 2 + 2, "middle", text) : null);
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
  return [drawnText(-8, LAYERS.row / 2 + 3, "end", "draft", "ss-layers-name"), ...id.map((_, i) => {
    const text = kind[i] === "calibrate" ? `calibrate, ${some(rows[i], "row")}` : "fuzzy";
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
  return drawn("g", {}, drawnLine(0, y + LAYERS.row / 2 - 1, width, y + LAYERS.row / 2 - 1),
    drawnText(-8, y + LAYERS.row / 2 + 3, "end", label.split(" · ")[0], "ss-layers-name"), bars);
}

/** Lines from the shown forward in the draft to its devices below. */
function zoomLines(round, width, top) {
  const { draft, i } = layersScales(round, width);
  const { start, end } = round.spans;
  return [[draft(start[i]), 0], [draft(end[i]) - 1, width]].map(([x, below]) => drawnLine(x, LAYERS.row - 4, below, top, "ss-pool-edge"));
}

function layersAxis(round, width, height) {
  const { i } = layersScales(round, width);
  const long = round.spans.end[i] - round.spans.start[i];
  return drawn("g", { class: "ss-pool-axes", "aria-hidden": "true" }, drawnLine(0, height, width, height, "ss-pool-edge"),
    drawnText(0, height + 16, "start", "0"), drawnText(width, height + 16, "end", ms(long)));
}

function layersNote({ groups, devices }) {
  const named = groups.map(([first, last]) => (first === last ? `${first}` : `${first}–${last}`)).join(", ");
  return devices.length > 1 ? `${devices.length} devices; groups of layers ${named}; every other layer is computed alone` : "one device computes all layers of a group";
}

function layersLegend({ devices, rounds }) {
  return legendOf("Legend of the layers", [
    rounds.some((round) => round.spans.kind[0] === "calibrate") && el("li", {}, swatch("calibrate"), "exact forward (calibration)"),
    el("li", {}, swatch("draft"), "fuzzy forward; in the rows below: attention of a layer"),
    devices.length > 1 && el("li", {}, swatch("communicate"), "outputs are exchanged")]);
}

/** A sentence about a round. */
function layersSentence({ devices }, { step, spans, shown }) {
  const i = spans.id.indexOf(shown);
  const fuzzy = spans.kind.filter((kind) => kind === "draft").length;
  const calibrated = spans.kind[0] === "calibrate" ? `an exact forward of ${some(spans.rows[0], "row")}, then ` : "";
  return `Step ${step}: ${calibrated}${some(fuzzy, "fuzzy forward")}. Below: the first fuzzy one, `
    + `${ms(spans.end[i] - spans.start[i])} on ${some(devices.length, "device")}; between the bars every device runs the MLPs.`;
}
