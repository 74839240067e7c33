// Suffix trees: for each round the match, the tokens that its draft was expected to bring, and those accepted.

const FORECAST = { above: 92, below: 34, axis: 20, widest: 13 };
const DRAFTED_BY = { own: "from the own text", finished: "from finished texts", drafter: "by the drafter" };
INSETS.push(() => new PerRun((run) => run.forecasts.length, () => new ForecastChart()));

/** The chart of one run: a column for each round, and a sentence about the round that replay has reached or that is pointed at. */
class ForecastChart {
  constructor() {
    this.t = Infinity;
    this.pointed = null;
    this.head = chartHead();
    this.legend = el("div");
    this.svg = drawn("svg", { role: "img" });
    this.note = el("p", { class: "ss-detail", role: "status" });
    this.plot = el("div", { class: "ss-pool-plot" }, this.svg);
    this.node = el("section", { class: "ss-card ss-pool ss-forecast" }, this.head, this.legend, this.plot, this.note);
    this.plot.addEventListener("pointermove", (event) => this.point(this.rowAt(event)));
    this.plot.addEventListener("pointerleave", () => this.point(null));
  }

  update(run) {
    this.width = 0;
    entitle(this, run, "Suffix trees");
    this.legend.replaceChildren(forecastLegend(run.forecast_sums));
  }

  at(t) {
    this.t = t;
    this.mark();
  }

  point(row) {
    this.pointed = row;
    this.mark();
  }

  highlight(spans) {
    const round = this.run.rounds.find((r) => spans.has(r.span));
    this.point(round ? this.run.forecasts.find((row) => row.step === round.step && row.sequence === round.sequence) ?? null : null);
  }

  rowAt(event) {
    const { left } = this.svg.getBoundingClientRect();
    return this.run.forecasts[Math.floor((event.clientX - left) / this.step)] ?? null;
  }

  draw() {
    const width = this.svg.clientWidth;
    if (!width || width === this.width) return;
    this.width = width;
    const rows = this.run.forecasts;
    this.step = Math.min(FORECAST.widest, width / rows.length);
    this.cursor = drawn("rect", { class: "ss-forecast-cursor", y: 0, width: Math.max(2, this.step), height: FORECAST.above + FORECAST.below });
    setProps(this.svg, { height: FORECAST.above + FORECAST.below + FORECAST.axis, "aria-label": forecastSummary(this.run.forecast_sums, rows) });
    this.svg.replaceChildren(this.cursor, ...forecastBars(rows, this.step), ...forecastAxes(rows, this.step));
    this.mark();
  }

  /** Mark a round's column, and say what happened in it. */
  mark() {
    const rows = this.run.forecasts;
    const row = this.pointed ?? rows.findLast((one) => one.t <= this.t) ?? rows[0];
    this.note.textContent = forecastSentence(row);
    this.cursor?.setAttribute("x", rows.indexOf(row) * this.step);
  }
}

const forecastBy = (row) => (row.copied ? row.tree : "drafter");

/** Bars above: drafted tokens pale, accepted ones full, a line at the expected number. Bars below: the match. */
function forecastBars(rows, step) {
  const most = Math.max(1, ...rows.map((row) => row.drafted), ...rows.map(expectedOf));
  const longest = Math.max(1, ...rows.map((row) => row.match));
  const wide = Math.max(0.8, step - 1.5);
  const paths = {};
  const bar = (look, i, y, height) => {
    paths[look] = `${paths[look] ?? ""}M ${(i * step + 0.5).toFixed(2)} ${y.toFixed(2)} h ${wide.toFixed(2)} v ${height.toFixed(2)} h ${(-wide).toFixed(2)} z `;
  };
  rows.forEach((row, i) => {
    const up = (tokens) => (tokens / most) * (FORECAST.above - 6);
    const by = `ss-forecast-${forecastBy(row)}`;
    if (row.drafted) {
      bar(`${by} ss-forecast-drafted`, i, FORECAST.above - up(row.drafted), up(row.drafted));
      if (row.accepted) bar(`${by} ss-forecast-accepted`, i, FORECAST.above - up(row.accepted), up(row.accepted));
      bar("ss-forecast-expected", i, FORECAST.above - up(expectedOf(row)) - 1, 2);
    }
    if (row.match) bar(`ss-forecast-${row.tree} ss-forecast-match`, i, FORECAST.above + 2, (row.match / longest) * (FORECAST.below - 4));
  });
  return Object.entries(paths).map(([look, d]) => drawn("path", { class: look, d }));
}

const expectedOf = (row) => (row.copied ? row.score : row.drafter ?? 0);

function forecastAxes(rows, step) {
  const most = Math.max(1, ...rows.map((row) => row.drafted), ...rows.map(expectedOf));
  const longest = Math.max(1, ...rows.map((row) => row.match));
  const text = (x, y, anchor, words) => drawn("text", { x, y, "text-anchor": anchor }, words);
  const { above, below } = FORECAST;
  const end = rows.length * step;
  return [drawn("g", { class: "ss-pool-axes", "aria-hidden": "true" },
    drawn("line", { x1: 0, x2: end, y1: above + 0.5, y2: above + 0.5, class: "ss-pool-edge" }),
    text(-8, 12, "end", `${number(most, most % 1 ? 1 : 0)} tokens`), text(-8, above - 2, "end", "0"),
    text(-8, above + below - 4, "end", `match of ${longest}`),
    text(0, above + below + 15, "start", `step ${rows[0].step}`),
    end > 120 ? text(end, above + below + 15, "end", `step ${rows.at(-1).step}`) : null)];
}

function forecastLegend(sums) {
  const key = (look) => el("i", { class: `ss-swatch ${look}`, "aria-hidden": "true" });
  const tokens = ({ by, rounds, expected, drafted, accepted, match }) =>
    `${rounds} round${rounds === 1 ? "" : "s"}${by === "drafter" ? "" : `, mean match ${number(match, 1)}`}: ${number(drafted, 0)} drafted, ${number(expected, 1)} expected, ${number(accepted, 0)} accepted`;
  return el("ul", { class: "ss-legend", "aria-label": "Legend of the suffix trees" },
    sums.map((sum) => el("li", {}, key(`ss-forecast-key-${sum.by}`), el("span", {}, el("b", {}, DRAFTED_BY[sum.by]), ` · ${tokens(sum)}`))),
    el("li", {}, key("ss-forecast-key-expected"), "expected to be accepted; below the axis, the length of the match"));
}

function forecastSummary(sums, rows) {
  const parts = sums.map(({ by, rounds, expected, accepted }) => `${rounds} ${DRAFTED_BY[by]}, ${number(expected, 1)} tokens expected, ${accepted} accepted`);
  return `${rows.length} rounds: ${parts.join("; ") || "none drafted"}`;
}

/** A sentence about a round. */
function forecastSentence(row) {
  const plural = (n, noun) => `${n} ${noun}${n === 1 ? "" : "s"}`;
  const last = row.match === 1 ? "the last token occurs" : `the last ${row.match} tokens occur`;
  const where = row.tree === "own" ? "in the text so far, its end included" : "in finished texts";
  const found = row.tree ? `${last} ${row.occurrences === 1 ? "once" : `${row.occurrences} times`} ${where}; ${number(row.score, 2)} tokens expected of a copy` : "no match";
  const drafter = row.drafter === null ? "" : `, ${number(row.drafter, 2)} of the drafter`;
  const outcome = row.copied ? `${plural(row.drafted, "token")} copied, ${row.accepted} accepted`
    : row.drafted ? `${plural(row.drafted, "token")} by the drafter, ${row.accepted} accepted` : "a plain step";
  return `Step ${row.step}: ${found}${drafter}. ${outcome[0].toUpperCase()}${outcome.slice(1)}.`;
}
