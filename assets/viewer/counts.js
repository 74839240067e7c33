// Windows of counts: a column per window, as high as its accepted share of the drafted tokens, and all numbers as a table.

const COUNTS = { top: 10, height: 96, most: 46, columns: 160, foot: 18 };
const MOST_COUNTS = 1000;
INSETS.push(() => new PerRun((run) => run.counts?.length, () => new CountsCard()));

const wholeCounts = (run) => run.counts.filter((row) => !row.drafter);

/** The card of one run. */
class CountsCard {
  constructor() {
    this.still = true;
    chartCard(this, "ss-counts");
    setProps(this.svg, { height: COUNTS.top + COUNTS.height + COUNTS.foot });
  }

  update(run) {
    entitle(this, "Accepted drafts by window");
    this.svg.setAttribute("aria-label", `Accepted drafts of ${runName(run)} by window`);
    this.node.replaceChildren(this.head, this.plot, this.note, countsTable(run));
  }

  draw(width) {
    drawCounts(this.svg, width, wholeCounts(this.run));
    this.note.textContent = countsSentence(wholeCounts(this.run));
  }

  /** The table's row of a window; undefined beyond the rows that it shows. */
  rowOf(place) {
    return this.node.querySelectorAll("tbody tr")[this.run.counts.indexOf(wholeCounts(this.run)[place])];
  }
}

function countsTable(run) {
  const rows = run.counts.slice(0, MOST_COUNTS);
  const drafters = rows.some((row) => row.drafter);
  const places = rows.reduce((most, row) => Math.max(most, row.places.length), 0);
  const heads = ["window", ...(drafters ? ["drafter"] : []), "seconds", "running", "tokens", "tokens/s", "drafts", "drafted", "accepted", "accepted / drafted", "tokens / draft", "ms / draft",
    ...Array.from({ length: Math.min(places, 16) }, (_, i) => `place ${i + 1}`)];
  const cells = rows.map((row, i) => [row.label || i + 1, ...(drafters ? [row.drafter || "all"] : []), counted(row.seconds, 2), counted(row.running, 1), counted(row.tokens, 0), counted(row.speed, 1), counted(row.drafts, 0),
    counted(row.drafted, 0), counted(row.accepted, 0), acceptedShare(row), counted(row.length, 2), counted(row.drafting, 2), ...row.places.slice(0, 16).map((rate) => `${number(100 * rate, 0)} %`)]);
  const cut = run.counts.length > rows.length ? `The first ${number(rows.length, 0)} of ${number(run.counts.length, 0)} windows.` : "";
  const title = "The windows as a table";
  return fold(title, "ss-scroll", cut ? el("p", { class: "ss-note" }, cut) : null, table(title, heads, cells));
}

const counted = (value, digits) => (value === null ? "unknown" : number(value, digits));
const acceptedShare = ({ accepted, drafted }) => (accepted === null || drafted === null ? "unknown" : drafted ? `${number((100 * accepted) / drafted, 1)} %` : "none drafted");

/** At most so many columns: neighbours are summed up. */
function countColumns(rows, most) {
  const each = Math.ceil(rows.length / most);
  const sum = (part, name) => (part.some((row) => row[name] === null) ? null : part.reduce((total, row) => total + row[name], 0));
  return Array.from({ length: Math.ceil(rows.length / each) }, (_, i) => rows.slice(i * each, (i + 1) * each))
    .map((part) => ({ first: part[0].label, last: part.at(-1).label, accepted: sum(part, "accepted"), drafted: sum(part, "drafted"), size: part.length }));
}

function drawCounts(svg, width, rows) {
  const columns = countColumns(rows, Math.min(COUNTS.columns, Math.floor(width / 5)));
  const wide = Math.min(COUNTS.most, width / Math.max(1, columns.length));
  const y = (rate) => COUNTS.top + COUNTS.height * (1 - rate);
  const every = Math.max(1, Math.ceil(64 / wide));
  const bars = columns.map((column, i) => {
    const [rate, left] = [column.drafted ? column.accepted / column.drafted : null, i * wide];
    const names = column.first === column.last || column.size === 1 ? column.first || `window ${i + 1}` : `${column.first} to ${column.last}`;
    const mark = rate === null || Number.isNaN(rate) ? drawn("rect", { x: left + 0.1 * wide, width: 0.8 * wide, y: y(1), height: COUNTS.height, class: "ss-counts-unknown" })
      : drawn("rect", { x: left + 0.1 * wide, width: Math.max(1, 0.8 * wide), y: Math.min(y(rate), y(0) - 2), height: Math.max(2, y(0) - y(rate)), class: rate ? "ss-counts-accepted" : "ss-counts-none" });
    return drawn("g", {}, drawn("title", {}, `${names}: ${counted(column.accepted, 0)} of ${counted(column.drafted, 0)} drafted tokens accepted, ${acceptedShare(column)}`), mark);
  });
  svg.replaceChildren(
    drawn("g", { "aria-hidden": "true", class: "ss-pool-axes" }, [0, 0.5, 1].map((rate) => [drawnLine(0, y(rate), width, y(rate), rate ? "ss-pool-grid" : "ss-pool-edge"), drawnText(-8, y(rate) + 4, "end", `${100 * rate} %`)]),
      columns.map((column, i) => (i % every || !column.first ? null : drawnText((i + 0.5) * wide, y(0) + 14, "middle", column.first)))), ...bars);
}

function countsSentence(rows) {
  const total = (name) => rows.reduce((sum, row) => (sum === null || row[name] === null ? null : sum + row[name]), 0);
  const [accepted, drafted, drafts] = ["accepted", "drafted", "drafts"].map(total);
  const length = drafts && accepted !== null ? `, ${number(1 + accepted / drafts, 2)} tokens per draft with the target's own` : "";
  return `${some(rows.length, "window")}: ${counted(accepted, 0)} of ${counted(drafted, 0)} drafted tokens were accepted${length}.`;
}
