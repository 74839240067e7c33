// The speed that drafts of each length would have, with the interval that the counts of accepted drafts allow.

const BEST = { top: 12, height: 130, foot: 20, dot: 4 };
INSETS.push(() => new PerRun((run) => run.best, () => new BestCard()));

const bestDigits = ({ unit }) => (unit === "×" ? 2 : 1);
const bestWords = ({ unit }) => (unit === "×" ? "times plain decoding" : unit);

/** The card of one run. */
class BestCard {
  constructor() {
    this.still = true;
    chartCard(this, "ss-best");
    setProps(this.svg, { height: BEST.top + BEST.height + BEST.foot });
  }

  update({ best }) {
    entitle(this, "Best draft length");
    this.svg.setAttribute("aria-label", `Speed of each draft length of ${runName(this.run)}: ${best.sentence}`);
    this.node.replaceChildren(this.head, el("p", { class: "ss-detail" }, best.sentence), bestLegend(best), this.plot,
      bestTable(best), el("p", { class: "ss-note" }, best.notes.join(" ")));
  }

  draw(width) {
    drawBest(this.svg, width, this.run.best);
  }
}

function bestTable(best) {
  const title = "The lengths as a table";
  const cells = best.lengths.map((row) => [row.length, number(row.tokens, 2), row.value === null ? "unknown" : number(row.value, bestDigits(best)), row.text,
    [row.length === best.best ? "best" : row.alike ? "may be best" : "", row.beyond ? "beyond the recorded places" : ""].filter(Boolean).join(", ")]);
  const heads = [best.name, "tokens / round", bestWords(best), "95 % of runs", ""];
  return fold(title, "ss-scroll", table(title, heads, cells));
}

const bestLegend = (best) => legendOf("Legend of the draft lengths' speeds", [
  ["ss-best-key-value", "estimated"], ["ss-best-key-band", "95 % of runs"], best.measured !== null && ["ss-best-key-measured", "measured"],
  best.lengths.some((row) => row.beyond) && ["ss-best-key-beyond", "beyond the recorded places"]]);

function drawBest(svg, width, best) {
  const rows = best.lengths.filter((row) => row.low !== null);
  const most = rows.reduce((a, row) => Math.max(a, row.high ?? row.low), best.measured ?? 0);
  const last = best.lengths.at(-1).length;
  const x = (length) => 10 + (length / Math.max(1, last)) * (width - 20);
  const y = (value) => BEST.top + BEST.height * (1 - value / most);
  const points = (part, end) => part.map((row) => `${x(row.length)},${y(row[end])}`);
  const closed = rows.filter((row) => row.high !== null);
  const known = closed.filter((row) => !row.beyond);
  const beyond = closed.filter((row) => row.beyond);
  const far = beyond.length ? [...known.slice(-1), ...beyond] : [];
  const band = (part, look) => (part.length ? drawn("polygon", { class: look, points: [...points(part, "high"), ...points(part, "low").reverse()].join(" ") }) : null);
  const path = (part, look) => (part.length ? drawn("polyline", { class: look, points: points(part, "value").join(" ") }) : null);
  const ticks = roundTicks(0, most, BEST.height, 30);
  const every = Math.max(1, Math.ceil((26 * best.lengths.length) / width));
  const dots = closed.map((row) => drawn("g", {},
    drawn("title", {}, `${best.name} ${row.length}: ${number(row.value, bestDigits(best))} ${bestWords(best)} (${row.text})`),
    drawn("circle", { cx: x(row.length), cy: y(row.value), r: row.length === best.best ? BEST.dot + 1.5 : BEST.dot, class: row.length === best.best ? "ss-best-best" : "ss-best-dot" })));
  const measured = best.measured === null ? null : drawn("g", {},
    drawn("title", {}, `measured with ${best.name} ${best.used}: ${number(best.measured, bestDigits(best))} ${bestWords(best)}`),
    drawn("rect", { x: x(best.used) - 6, y: y(best.measured) - 6, width: 12, height: 12, class: "ss-best-measured" }));
  svg.replaceChildren(
    drawn("g", { "aria-hidden": "true", class: "ss-pool-axes" },
      ticks.map((tick) => [drawnLine(0, y(tick), width, y(tick), tick ? "ss-pool-grid" : "ss-pool-edge"), drawnText(-8, y(tick) + 4, "end", `${number(tick, most < 4 ? 1 : 0)}${best.unit === "×" ? "×" : ""}`)]),
      best.unit === "×" ? drawnLine(0, y(1), width, y(1), "ss-best-plain") : null,
      drawnText(-8, y(0) + 15, "end", best.name),
      best.lengths.map((row, i) => (i % every ? null : drawnText(x(row.length), y(0) + 15, "middle", row.length)))),
    ...[band(known, "ss-best-band"), band(far, "ss-best-band ss-best-far"), path(known, "ss-best-line"), path(far, "ss-best-line ss-best-dashed"), measured].filter(Boolean), ...dots);
}
