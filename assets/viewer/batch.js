// Runs of several sequences: the one whose tokens the timeline shows, and the padding of each round's forward.

const BATCH = { row: 5, least: 9, most: 26, gap: 3, left: 96, right: 150 };
INSETS.push(() => new PerRun((run) => run.packings.length, () => new Packing()));

/** The sequence whose tokens the timeline shows. */
const chosenSequence = (run) => (run.sequences.includes(run.chosen) ? run.chosen : run.sequences[0] ?? 0);

const ofChosen = (run, rows) => (run.sequences.length > 1 ? rows.filter((row) => row.sequence === chosenSequence(run)) : rows);

/** The fold with one sequence's text, its last child; its head shows the prompt and the number of tokens. */
function sequenceFold(run, sequence, open) {
  return el("details", { class: "ss-sequence ss-fold", "data-sequence": sequence, open }, el("summary", {}), el("div", {}));
}

function sequenceHead(run, sequence, tokens) {
  const prompt = run.redacted ? "(prompt left out)" : run.prompts[sequence] ?? "";
  const ended = run.reasons[sequence] ? ` · ${run.reasons[sequence]}` : "";
  return [el("b", {}, `${sequence + 1} `), el("span", { class: "ss-fold-prompt", title: prompt }, prompt),
    el("span", { class: "ss-note" }, ` ${number(tokens, 0)} tokens${ended}`)];
}

/** The choice of the sequence that the timeline shows; nothing for a run of one sequence. */
function sequenceChoice(run, choose) {
  if (run.sequences.length < 2) return [];
  const options = run.sequences.map((i) => el("option", { value: i, selected: i === chosenSequence(run) }, `sequence ${i + 1} of ${run.sequences.length}`));
  return [el("select", { class: "ss-choice", "aria-label": `Sequence of ${runName(run)} in the timeline`, onchange: (e) => choose(Number(e.target.value)) }, options)];
}

/** Padded and own cells of one round: a block per sequence, as high as its new rows, as wide as the rows they attend to. */
class Packing {
  constructor() {
    this.head = el("div", { class: "ss-gantt-title" });
    this.slider = el("input", { type: "range", min: 0, class: "ss-packing-round", "aria-label": "Round", oninput: () => this.show(Number(this.slider.value)) });
    this.status = el("p", { class: "ss-detail", role: "status" });
    this.svg = drawn("svg", { role: "list" });
    this.node = el("section", { class: "ss-card ss-packing" }, this.head, el("div", { class: "ss-packing-bar" }, this.slider, this.status), this.svg, packingLegend());
  }

  update(run) {
    const follows = this.index === this.last;
    this.last = run.packings.length - 1;
    entitle(this, "Padded and own cells", wholeRun(run));
    this.slider.max = this.last;
    this.show(follows ? this.last : this.index);
  }

  /** Follow the replay: show the last round that has ended by t. */
  at(t) {
    const ended = this.run.packings.filter((packing) => packing.t <= t).length;
    this.show(Math.max(0, ended - 1));
  }

  /** Pointing at a span shows its round. */
  highlight(spans) {
    const at = this.run.packings.findIndex((packing) => spans.has(packing.span));
    if (at >= 0) this.show(at);
  }

  show(index) {
    this.index = index;
    this.slider.value = String(index);
    if (this.width) this.draw(this.width);
  }

  draw(width) {
    const packing = this.run.packings[this.index];
    const sums = cellsOf([packing]);
    this.status.textContent = `Round ${packing.step}: ${number(packing.shares.length, 0)} sequences, ${cellsText(sums)}`;
    this.slider.setAttribute("aria-valuetext", this.status.textContent);
    const most = Math.max(...packing.shares.map((share) => share.padded_cached + share.padded_rows));
    const x = (keys) => (keys / most) * Math.max(60, width - BATCH.left - BATCH.right);
    let top = 0;
    const blocks = packing.shares.map((share) => {
      const height = Math.max(BATCH.least, Math.min(BATCH.most, BATCH.row * share.padded_rows));
      top += height + BATCH.gap;
      return shareBlock(share, top - height - BATCH.gap, height, x);
    });
    setProps(this.svg, { height: top, "aria-label": this.status.textContent });
    this.svg.replaceChildren(drawn("defs", {}, hatching("ss-packing-hatch", "ss-packing-line")), ...blocks);
  }
}

/** A sequence's block: its padding is hatched, its own cells are filled, darker for the new rows' own keys. */
function shareBlock(share, y, height, x) {
  const { sequence, rows, cached, padded_rows, padded_cached } = share;
  const own = height * (rows / padded_rows);
  const rect = (from, to, tall, name) => drawn("rect", { x: BATCH.left + x(from), y, width: Math.max(0, x(to) - x(from)), height: tall, class: name });
  const padding = [...(padded_rows > rows ? [`${padded_rows - rows} rows of padding`] : []), ...(padded_cached > cached ? [`${padded_cached - cached} cached rows of padding`] : [])];
  const label = `sequence ${sequence + 1}: ${rows} new rows after ${cached} cached ones${padding.length ? `; ${padding.join(", ")}` : ""}`;
  const cells = padded_rows * (padded_cached + padded_rows);
  return drawn("g", { role: "listitem", "aria-label": label }, drawn("title", {}, label),
    rect(0, padded_cached + padded_rows, height, "ss-packing-frame"),
    rect(0, padded_cached + padded_rows, height, "ss-packing-padding"),
    rect(0, cached, own, "ss-packing-cached"),
    rect(cached, cached + rows, own, "ss-packing-new"),
    drawnText(BATCH.left - 8, y + height / 2 + 4, "end", `sequence ${sequence + 1}`),
    drawnText(BATCH.left + x(padded_cached + padded_rows) + 8, y + height / 2 + 4, "start", `${number(rows * (cached + rows), 0)} of ${number(cells, 0)} cells`));
}

function cellsOf(packings) {
  const sums = { own: 0, all: 0 };
  for (const { rows, cached, padded_rows, padded_cached } of packings.flatMap((packing) => packing.shares)) {
    sums.own += rows * (cached + rows);
    sums.all += padded_rows * (padded_cached + padded_rows);
  }
  return sums;
}

function cellsText({ own, all }) {
  return all === own ? `${number(all, 0)} cells, no padding`
    : `${number(all, 0)} cells, ${number(100 * (1 - own / all), 0)} % of them padding`;
}

const wholeRun = (run) => `all rounds: ${cellsText(cellsOf(run.packings))}`;

const packingLegend = () => legendOf("Legend of the cells", [
  ["ss-packing-key-cached", "cached rows"], ["ss-packing-key-new", "new rows: last token and drafts"], ["ss-packing-key-padding", "padding: computed, then masked"],
  el("li", {}, "Height: new rows. Width: the rows they attend to.")], "ss-keys");
