// Suffix trees: for each round the match, the tokens that its draft was expected to bring, and those accepted.

const FORECAST = { above: 92, below: 34, axis: 20, widest: 13 };
const DRAFTED_BY = { own: "from the own text", finished: "from finished texts", drafter: "by the drafter" };
INSETS.push(() => new PerRun((run) => run.forecasts.length, () => new ForecastChart()));

/** The chart of one run: a column for each round, and a sentence about the round that replay has reached or that is pointed at. */
class ForecastChart {
  constructor() {
    this.still = true;
    chartCard(this, "ss-forecast");
    this.plot.addEventListener("pointermove", (event) => this.point(this.rowAt(event)));
    this.plot.addEventListener("pointerleave", () => this.point(null));
  }

  update(run) {
    this.rounds = run.forecasts;
    entitle(this, "Suffix trees");
    this.legend.replaceChildren(forecastLegend(run.forecast_sums));
  }

  point(row) {
    this.pointed = row;
    this.choose();
  }

  rowAt(event) {
    const { left } = this.svg.getBoundingClientRect();
    return this.rounds[Math.floor((event.clientX - left) / this.step)] ?? null;
  }

  draw(width) {
    const rows = this.rounds;
    this.step = Math.min(FORECAST.widest, width / rows.length);
    this.cursor = drawn("rect", { class: "ss-forecast-cursor", y: 0, width: Math.max(2, this.step), height: FORECAST.above + FORECAST.below });
    setProps(this.svg, { height: FORECAST.above + FORECAST.below + FORECAST.axis, "aria-label": forecastSummary(this.run.forecast_sums, rows) });
    this.svg.replaceChildren(this.cursor, ...forecastBars(rows, this.step), ...forecastAxes(rows, this.step));
    this.show(this.round);
  }

  /** Mark a round's column, and say what happened in it. */
  show(row) {
    this.note.textContent = forecastSentence(row);
    this.cursor?.setAttribute("x", this.rounds.indexOf(row) * this.step);
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
  const { above, below } = FORECAST;
  const end = rows.length * step;
  return [drawn("g", { class: "ss-pool-axes", "aria-hidden": "true" },
    drawnLine(0, above + 0.5, end, above + 0.5, "ss-pool-edge"),
    drawnText(-8, 12, "end", `${number(most, most % 1 ? 1 : 0)} tokens`), drawnText(-8, above - 2, "end", "0"),
    drawnText(-8, above + below - 4, "end", `match of ${longest}`),
    drawnText(0, above + below + 15, "start", `step ${rows[0].step}`),
    end > 120 ? drawnText(end, above + below + 15, "end", `step ${rows.at(-1).step}`) : null)];
}

function forecastLegend(sums) {
  const tokens = ({ by, rounds, expected, drafted, accepted, match }) =>
    `${some(rounds, "round")}${by === "drafter" ? "" : `, mean match ${number(match, 1)}`}: ${number(drafted, 0)} drafted, ${number(expected, 1)} expected, ${number(accepted, 0)} accepted`;
  return legendOf("Legend of the suffix trees", [
    ...sums.map((sum) => [`ss-forecast-key-${sum.by}`, el("span", {}, el("b", {}, DRAFTED_BY[sum.by]), ` · ${tokens(sum)}`)]),
    ["ss-forecast-key-expected", "expected to be accepted; below the axis, the length of the match"]]);
}

function forecastSummary(sums, rows) {
  const parts = sums.map(({ by, rounds, expected, accepted }) => `${rounds} ${DRAFTED_BY[by]}, ${number(expected, 1)} tokens expected, ${accepted} accepted`);
  return `${rows.length} rounds: ${parts.join("; ") || "none drafted"}`;
}

/** A sentence about a round. */
function forecastSentence(row) {
  const last = row.match === 1 ? "the last token occurs" : `the last ${row.match} tokens occur`;
  const where = row.tree === "own" ? "in the text so far, its end included" : "in finished texts";
  const found = row.tree ? `${last} ${row.occurrences === 1 ? "once" : `${row.occurrences} times`} ${where}; ${number(row.score, 2)} tokens expected of a copy` : "no match";
  const drafter = row.drafter === null ? "" : `, ${number(row.drafter, 2)} of the drafter`;
  const outcome = row.copied ? `${some(row.drafted, "token")} copied, ${row.accepted} accepted`
    : row.drafted ? `${some(row.drafted, "token")} by the drafter, ${row.accepted} accepted` : "a plain step";
  return `Step ${row.step}: ${found}${drafter}. ${outcome[0].toUpperCase()}${outcome.slice(1)}.`;
}
