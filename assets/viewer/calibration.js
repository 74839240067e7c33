// Calibration: the drafter's q of its tested tokens against the share that was accepted, by place in the draft.

const CALIBRATION = { size: 210, counts: 34, gap: 8, axis: 34, dot: 4.5, reach: 6 };
INSETS.push(() => new PerRun((run) => run.calibration.length, () => new CalibrationCard()));

/** The card of one run: the diagram of the chosen place, and a table of all places. */
class CalibrationCard {
  constructor() {
    this.place = 0;
    chartCard(this, "ss-calibration", "listbox");
    this.svg.setAttribute("class", "ss-calibration-plot");
    this.table = el("div", scrolls("Calibration of q by place in the draft"));
    this.plot.replaceWith(el("div", { class: "ss-calibration-body" }, this.svg, this.table));
    this.marks = new Marks(this.svg, ".ss-calibration-bin", (bin) => bin.dataset.bin, (bin) => this.say(bin));
  }

  update(run) {
    this.rows = run.calibration;
    entitle(this, "Calibration of q");
    this.legend.replaceChildren(calibrationLegend(this.rows[0]));
    this.pick(this.rows.some((row) => row.place === this.place) ? this.place : 0);
  }

  pick(place) {
    const focus = this.table.contains(document.activeElement);
    this.place = place;
    this.row = this.rows.find((row) => row.place === place);
    const size = CALIBRATION.size + CALIBRATION.axis;
    setProps(this.svg, { viewBox: `-40 -8 ${size + 16} ${size + CALIBRATION.gap + CALIBRATION.counts + 10}`, "aria-label": `Bins of q, ${placeName(place)}; arrow keys move` });
    this.marks.redraw(calibrationAxes(), ...calibrationBins(this.row).map(binNode));
    this.table.replaceChildren(calibrationTable(this.rows, place, (other) => this.pick(other)));
    if (focus) this.table.querySelector('[aria-pressed="true"]').focus();
    this.say(null);
  }

  say(node) {
    this.note.textContent = node ? node.getAttribute("aria-label") : calibrationSentence(this.row);
  }
}

const placeName = (place) => (place ? `place ${place}` : "all places");
const percent = (share) => `${number(100 * share, 0)} %`;

/** The bins of a row with their places in the diagram: x by q, y by share; `count` is the height of the bar below. */
function calibrationBins({ bins, tested }) {
  const { size, counts } = CALIBRATION;
  const most = Math.max(...bins.tested);
  return bins.low.map((low, i) => {
    const [n, rate] = [bins.tested[i], bins.accepted[i] / bins.tested[i]];
    return {
      x: size * bins.q[i], y: size * (1 - rate), low: size * (1 - bins.least[i]), high: size * (1 - bins.most[i]),
      expected: bins.expected[i] === null ? null : size * (1 - bins.expected[i]),
      left: size * low, count: Math.max(1, (counts * n) / most), i, text: binSentence(bins, i, tested),
    };
  });
}

function binSentence(bins, i, all) {
  const [low, n] = [bins.low[i], bins.tested[i]];
  const expected = bins.expected[i] === null ? "" : `, ${percent(bins.expected[i])} expected by the rule`;
  return `q from ${number(low, 1)} to ${number(low + 0.1, 1)}, ${number(bins.q[i], 2)} on average: ${number(bins.accepted[i], 0)} of ${number(n, 0)} tested tokens accepted, `
    + `${percent(bins.accepted[i] / n)} (95 % interval ${number(100 * bins.least[i], 0)} to ${percent(bins.most[i])})${expected}. ${percent(n / all)} of the tests.`;
}

function calibrationSentence({ place, tested, accepted, q, expected, error }) {
  const rule = expected === null ? "" : `, ${percent(expected)} expected by the rule`;
  return `${place ? `Place ${place}` : "All places"}: ${number(tested, 0)} tested tokens, q ${number(q, 2)} on average, ${percent(accepted / tested)} accepted${rule}; `
    + `expected calibration error ${number(error, 3)}. Tokens behind the first rejection were never tested and do not count.`;
}

function binNode({ x, y, low, high, expected, left, count, text, i }) {
  const { size, counts, gap, dot, reach } = CALIBRATION;
  const foot = size + gap + counts;
  const diamond = (r) => `M ${x} ${expected - r} l ${r} ${r} l ${-r} ${r} l ${-r} ${-r} z`;
  return drawn("g", { class: "ss-calibration-bin", role: "option", tabindex: "-1", "data-bin": i, "aria-label": text },
    drawn("rect", { x: left, y: -reach, width: size / 10, height: foot + reach, class: "ss-calibration-reach" }),
    drawn("rect", { x: left + 1, y: foot - count, width: size / 10 - 2, height: count, class: "ss-calibration-count" }),
    drawnLine(x, high, x, low, "ss-calibration-interval"),
    expected === null ? null : drawn("path", { d: diamond(dot + 1.5), class: "ss-calibration-expected" }),
    drawn("circle", { cx: x, cy: y, r: dot, class: "ss-calibration-accepted" }));
}

function calibrationAxes() {
  const { size, counts, gap } = CALIBRATION;
  const foot = size + gap + counts;
  const ticks = [0, 0.25, 0.5, 0.75, 1];
  return drawn("g", { "aria-hidden": "true", class: "ss-pool-axes" },
    ticks.map((share) => [drawnLine(0, size * share, size, size * share), drawnLine(size * share, 0, size * share, size), drawnText(-6, size * (1 - share) + 4, "end", percent(share))]),
    drawnLine(0, size, size, 0, "ss-calibration-diagonal"), drawnLine(0, foot, size, foot, "ss-pool-edge"), drawnText(-6, foot, "end", "tests"),
    [0, 0.5, 1].map((q) => drawnText(size * q, foot + 14, "middle", number(q, 1))), drawnText(size / 2, foot + 29, "middle", "q, the drafter's probability"));
}

/** A line for each place; its button shows the place in the diagram. */
function calibrationTable(rows, chosen, choose) {
  const ruled = rows.some((row) => row.expected !== null);
  const heads = ["place", "tested", "mean q", "accepted", ...(ruled ? ["expected"] : []), "ECE"];
  const button = ({ place }) => el("button", { type: "button", class: "ss-button", "aria-pressed": String(place === chosen), "aria-label": placeName(place), onclick: () => choose(place) }, place || "all");
  return table("Calibration of q by place in the draft", defined(heads, CALIBRATION_WORDS), rows.map((row) => [
    button(row), number(row.tested, 0), number(row.q, 2), [rateBar(row.accepted / row.tested), percent(row.accepted / row.tested)],
    ...(ruled ? [row.expected === null ? "–" : percent(row.expected)] : []), number(row.error, 3)]));
}

/** A bar that is filled up to a share. */
const rateBar = (share) => el("span", { class: "ss-rate", "aria-hidden": "true" }, el("span", { style: `width:${100 * share}%` }));

const CALIBRATION_WORDS = {
  place: "Place in the draft, of a tree its level; 1 is right after the text.",
  tested: "Accepted and rejected tokens whose q is recorded.",
  "mean q": "The drafter's probability of its token.",
  accepted: "Accepted / tested.",
  expected: "The probability with which the rule accepts: min(1, p/q) of a sampled draft, p of one that the prefix determines.",
  ECE: "Expected calibration error: over ten bins of q the mean of |accepted - mean q|, weighted by tests.",
};

function calibrationLegend({ expected }) {
  return legendOf("Legend of the calibration of q", [
    ["ss-calibration-key-accepted", "accepted, with its 95 % interval"], expected !== null && ["ss-calibration-key-expected", "expected by the rule"],
    ["ss-calibration-key-diagonal", "accepted as often as q says"], ["ss-calibration-key-count", "tested tokens"]]);
}
