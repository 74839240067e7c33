// Arrows from drafts to the verifications that decided them.

/** The pairs of spans of some tokens and ghosts, {draft, verify, lost}, each pair once. */
function flowsOf(rows) {
  const pairs = new Map();
  for (const { draft, verify, outcome } of rows) {
    if (!(draft >= 0) || !(verify >= 0)) continue;
    const key = `${draft} ${verify}`;
    const lost = outcome === "rejected" || outcome === "discarded";
    pairs.set(key, { draft, verify, lost: lost && (pairs.get(key)?.lost ?? true) });
  }
  return [...pairs.values()];
}

/** The arrows as an SVG element above the timeline. */
Gantt.prototype.arrows = function (run, flows) {
  const lines = flows.flatMap(({ draft, verify, lost }) => {
    const [from, to] = [this.rectOf(run, draft), this.rectOf(run, verify)];
    if (!from || !to) return [];
    const [x1, y1] = [from.right, from.top + SIZE.lane / 2];
    const [x2, y2] = [to.left >= x1 - 2 ? to.left : to.right, to.top + (y1 < to.top ? 1 : SIZE.lane - 3)];
    if (Math.max(x1, x2) < 0 || Math.min(x1, x2) > this.width) return [];
    const head = y1 < y2 ? -7 : 7;
    const [, bend] = [x2, Math.max(14, Math.abs(y2 - y1) / 2) * Math.sign(y2 - y1 || 1)];
    return [drawn("path", { class: lost ? "ss-flow ss-flow-lost" : "ss-flow", d: `M${x1},${y1}C${x1},${y1 + bend} ${x2},${y2 - bend} ${x2},${y2}` }),
      drawn("path", { class: lost ? "ss-flow-head ss-flow-lost" : "ss-flow-head", d: `M${x2},${y2}l-4,${head}h8z` })];
  });
  return drawn("svg", { class: "ss-flows", width: "100%", height: "100%" }, lines);
};
