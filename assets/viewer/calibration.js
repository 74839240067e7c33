// Calibration: the drafter's q of its tested tokens against the share that was accepted, by place in the draft.

const CALIBRATION = { size: 210, counts: 34, gap: 8, axis: 34, dot: 4.5, reach: 6 };
INSETS.push(() => new PerRun((run) => run.calibration.length, () => new CalibrationCard()));

/** The card of one run: the diagram of the chosen place, and a table of all places. */
class CalibrationCard {
  constructor() {
    this.place = 0;
    this.head = chartHead();
    this.legend = el("div");
    this.svg = drawn("svg", { role: "listbox", class: "ss-calibration-plot" });
    this.table = el("div", scrolls("Calibration of q by place in the draft"));
    this.note = el("p", { class: "ss-detail", role: "status" });
    this.node = el("section", { class: "ss-card ss-pool ss-calibration" }, this.head, this.legend,
      el("div", { class: "ss-calibration-body" }, this.svg, this.table), this.note);
    const over = (event) => event.target.closest(".ss-calibration-bin");
    for (const name of ["pointerover", "focusin"]) this.svg.addEventListener(name, (e) => this.say(over(e)));
    for (const name of ["pointerleave", "focusout"]) this.svg.addEventListener(name, () => this.say(null));
    this.svg.addEventListener("keydown", (e) => this.key(e));
  }

  update(run) {
    this.rows = run.calibration;
    entitle(this, run, "Calibration of q");
    this.legend.replaceChildren(calibrationLegend(this.rows[0]));
    this.choose(this.rows.some((row) => row.place === this.place) ? this.place : 0);
  }

  choose(place) {
    const focus = this.table.contains(document.activeElement);
    this.place = place;
    this.row = this.rows.find((row) => row.place === place);
    const size = CALIBRATION.size + CALIBRATION.axis;
    setProps(this.svg, { viewBox: `-40 -8 ${size + 16} ${size + CALIBRATION.gap + CALIBRATION.counts + 10}`, "aria-label": `Bins of q, ${placeName(place)}; arrow keys move` });
    this.svg.replaceChildren(calibrationAxes(), ...calibrationBins(this.row).map(binNode));
    this.table.replaceChildren(calibrationTable(this.rows, place, (other) => this.choose(other)));
    if (focus) this.table.querySelector('[aria-pressed="true"]').focus();
    this.say(null);
  }

  say(node) {
    this.note.textContent = node ? node.getAttribute("aria-label") : calibrationSentence(this.row);
  }

  key(event) {
    const step = { ArrowRight: 1, ArrowLeft: -1, Home: -1e9, End: 1e9 }[event.key];
    if (!step || event.ctrlKey || event.metaKey || event.altKey) return;
    const all = [...this.svg.querySelectorAll(".ss-calibration-bin")];
    event.preventDefault();
    const next = all[Math.max(0, Math.min(all.length - 1, all.indexOf(event.target) + step))];
    all.forEach((node) => node.setAttribute("tabindex", node === next ? "0" : "-1"));
    next.focus();
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

function binNode({ x, y, low, high, expected, left, count, text }, at) {
  const { size, counts, gap, dot, reach } = CALIBRATION;
  const foot = size + gap + counts;
  const diamond = (r) => `M ${x} ${expected - r} l ${r} ${r} l ${-r} ${r} l ${-r} ${-r} z`;
  return drawn("g", { class: "ss-calibration-bin", role: "option", tabindex: at ? "-1" : "0", "aria-label": text },
    drawn("rect", { x: left, y: -reach, width: size / 10, height: foot + reach, class: "ss-calibration-reach" }),
    drawn("rect", { x: left + 1, y: foot - count, width: size / 10 - 2, height: count, class: "ss-calibration-count" }),
    drawn("line", { x1: x, x2: x, y1: high, y2: low, class: "ss-calibration-interval" }),
    expected === null ? null : drawn("path", { d: diamond(dot + 1.5), class: "ss-calibration-expected" }),
    drawn("circle", { cx: x, cy: y, r: dot, class: "ss-calibration-accepted" }));
}

function calibrationAxes() {
  const { size, counts, gap } = CALIBRATION;
  const foot = size + gap + counts;
  const line = (x1, y1, x2, y2, look = "ss-pool-grid") => drawn("line", { x1, y1, x2, y2, class: look });
  const text = (x, y, anchor, words) => drawn("text", { x, y, "text-anchor": anchor }, words);
  const ticks = [0, 0.25, 0.5, 0.75, 1];
  return drawn("g", { "aria-hidden": "true", class: "ss-pool-axes" },
    ticks.map((share) => [line(0, size * share, size, size * share), line(size * share, 0, size * share, size), text(-6, size * (1 - share) + 4, "end", percent(share))]),
    line(0, size, size, 0, "ss-calibration-diagonal"), line(0, foot, size, foot, "ss-pool-edge"), text(-6, foot, "end", "tests"),
    [0, 0.5, 1].map((q) => text(size * q, foot + 14, "middle", number(q, 1))), text(size / 2, foot + 29, "middle", "q, the drafter's probability"));
}

/** A line for each place; its button shows the place in the diagram. */
function calibrationTable(rows, chosen, choose) {
  const ruled = rows.some((row) => row.expected !== null);
  const names = ["place", "tested", "mean q", "accepted", ...(ruled ? ["expected"] : []), "ECE"];
  const line = (row) => el("tr", { class: row.place === chosen ? "ss-calibration-chosen" : "" },
    el("th", { scope: "row" }, el("button", { type: "button", class: "ss-button", "aria-pressed": String(row.place === chosen), "aria-label": placeName(row.place), onclick: () => choose(row.place) }, row.place || "all")),
    el("td", {}, number(row.tested, 0)), el("td", {}, number(row.q, 2)),
    el("td", {}, el("span", { class: "ss-rate", "aria-hidden": "true" }, el("span", { style: `width:${(100 * row.accepted) / row.tested}%` })), percent(row.accepted / row.tested)),
    ruled ? el("td", {}, row.expected === null ? "–" : percent(row.expected)) : null, el("td", {}, number(row.error, 3)));
  return el("table", {},
    el("caption", { class: "ss-sr" }, "Calibration of q by place in the draft"),
    el("thead", {}, el("tr", {}, names.map((name) => el("th", { scope: "col", title: CALIBRATION_WORDS[name] }, name)))),
    el("tbody", {}, rows.map(line)));
}

const CALIBRATION_WORDS = {
  place: "Place in the draft, of a tree its level; 1 is right after the text.",
  tested: "Accepted and rejected tokens whose q is recorded.",
  "mean q": "The drafter's probability of its token.",
  accepted: "Accepted / tested.",
  expected: "The probability with which the rule accepts: min(1, p/q) of a sampled draft, p of one that the prefix determines.",
  ECE: "Expected calibration error: over ten bins of q the mean of |accepted - mean q|, weighted by tests.",
};

function calibrationLegend({ expected }) {
  const key = (look, words) => el("li", {}, el("i", { class: `ss-swatch ss-calibration-key-${look}`, "aria-hidden": "true" }), words);
  return el("ul", { class: "ss-legend", "aria-label": "Legend of the calibration of q" },
    key("accepted", "accepted, with its 95 % interval"), expected === null ? null : key("expected", "expected by the rule"),
    key("diagonal", "accepted as often as q says"), key("count", "tested tokens"));
}
