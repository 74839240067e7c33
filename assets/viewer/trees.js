// Tree drafts: the nodes of one round, level by level, with their outcomes.

const MASK = 4; // pixels of a cell of the mask

const LEAF = { width: 110, height: 36, gap: 22, root: 16 };

/** The last of these trees that is judged at time t, or undefined. */
function treeAt(trees, t) {
  return trees.findLast((tree) => tree.t <= t);
}

/** The tree judged by a token's round, or undefined. */
function treeOf(run, row) {
  return run.trees.find((tree) => tree.sequence === row.sequence && tree.step === row.step);
}

/**
 * The place of each node in pixels: {places: [{x, y}], width, height}. The output is the top row; children have the
 * order of their parents, so no two edges cross.
 */
function treeLayout({ parent, level, outcome }) {
  const levels = [];
  level.forEach((depth, i) => (levels[depth] ??= []).push(i));
  const row = [];
  const above = (i) => (parent[i] < 0 ? 0 : row[parent[i]]);
  for (const nodes of levels) {
    nodes.sort((a, b) => above(a) - above(b) || isLostDraft(outcome[a]) - isLostDraft(outcome[b]) || a - b);
    nodes.forEach((i, at) => { row[i] = at; });
  }
  return {
    places: level.map((depth, i) => ({ x: LEAF.root + LEAF.gap + depth * (LEAF.width + LEAF.gap), y: row[i] * LEAF.height })),
    width: LEAF.root + levels.length * (LEAF.width + LEAF.gap),
    height: Math.max(...levels.map((nodes) => nodes.length)) * LEAF.height,
  };
}

/** The columns of a tree's nodes, with the branches below its last level. */
function nodesOf({ nodes, fork }) {
  return fork ? Object.fromEntries(Object.entries(nodes).map(([key, column]) => [key, [...column, ...fork.nodes[key]]])) : nodes;
}

/** The fork of a tree in words, or nothing. */
function forkWords({ nodes, fork }) {
  if (!fork) return "";
  const tested = nodes.outcome.some((outcome, i) => nodes.level[i] === fork.level && (outcome === "accepted" || outcome === "rejected"));
  const lost = fork.winner ? "" : tested ? "none" : "not reached, none";
  const won = fork.winner ? `sibling ${fork.winner} of ${fork.siblings} won` : `${lost} of ${fork.siblings} won`;
  const sure = fork.confidence === null ? "" : ` at q ${probability(fork.confidence)}`;
  return ` · fork${sure}: ${won}${fork.lost ? `, ${fork.lost} below lost` : ""}`;
}

/** The tree of a round, below the text of its pane. It is always shown, so that pointing moves nothing. */
class TreeInset {
  constructor(bus) {
    this.bus = bus;
    this.leaves = [];
    this.status = el("span", { class: "ss-hint" });
    this.body = el("div", { class: "ss-tree-body" });
    this.mask = el("div", { class: "ss-tree-mask" });
    const holder = el("div", {}, el("div", {}, this.body, el("details", {}, el("summary", {}, "Attention mask"), this.mask)));
    this.root = el("section", { class: "ss-tree", hidden: true },
      el("header", {}, el("h4", {}, "Draft tree"), this.status, bus.large.button(() => `Draft tree · ${runName(this.run)}`, holder)), holder);
    const over = (event) => {
      const node = event.target.closest(".ss-leaf");
      const token = node && this.rowOf(node);
      return token ? [{ run: this.run, token }, node.getBoundingClientRect()] : null;
    };
    this.body.addEventListener("pointerover", (e) => { if (over(e)) this.bus.hover(...over(e)); });
    this.body.addEventListener("pointerleave", () => this.bus.hover(null));
    this.body.addEventListener("click", (e) => { if (over(e)) this.bus.pin(...over(e)); });
  }

  /** Show another state of the run, with the same tree as before. */
  update(run) {
    const before = this.shown;
    this.run = run;
    this.shown = undefined;
    this.root.hidden = !run.trees.length;
    if (run.trees.length) {
      setProps(this.body, scrolls("Tree of a round"));
      setProps(this.mask, scrolls("Attention mask"));
    }
    this.body.style.height = `${Math.max(0, ...run.trees.map((tree) => treeLayout(nodesOf(tree)).height)) + 12}px`;
    this.show(before && treeOf(run, before));
  }

  /** Show a round's tree, or none, and highlight the nodes of these token rows. */
  show(tree, rows = new Set()) {
    if (tree !== this.shown || !tree) this.draw(tree);
    if (!tree) return;
    const lit = new Set([...rows].filter((row) => treeOf(this.run, row) === tree).map((row) => this.indexOf(row)));
    for (const [i, leaf] of this.leaves.entries()) leaf.classList.toggle("ss-lit", lit.has(i));
  }

  draw(tree) {
    this.shown = tree;
    this.leaves = [];
    this.status.textContent = "no round yet";
    this.body.replaceChildren();
    this.mask.replaceChildren();
    if (!tree) return;
    const nodes = nodesOf(tree);
    const { places, width, height } = treeLayout(nodes);
    const whose = this.run.sequences.length > 1 ? `sequence ${tree.sequence + 1}, ` : "";
    this.status.textContent = `${whose}step ${tree.step}: ${tree.drafted} drafted, ${tree.accepted} accepted${forkWords(tree)}`;
    this.leaves = nodes.text.map((_, i) => leaf(nodes, i, places[i]));
    const canvas = put(el("div", { class: "ss-tree-canvas" }, edges(nodes, places, width, height), ...this.leaves), { width, height });
    this.body.append(canvas);
    this.mask.parentElement.hidden = Boolean(tree.fork); // the target's rows are a chain
    if (tree.fork) this.drawFork(canvas, tree.fork);
    else this.mask.append(maskOf(nodes));
  }

  /** Mark the branch point, and scroll to it. */
  drawFork(canvas, fork) {
    const left = LEAF.root + LEAF.gap / 2 + fork.level * (LEAF.width + LEAF.gap);
    canvas.append(put(el("div", { class: "ss-tree-fork" }), { left }));
    this.body.scrollLeft = Math.max(0, left - LEAF.width - LEAF.gap);
  }

  /** The token or ghost of a drawn node. */
  rowOf(node) {
    const i = this.leaves.indexOf(node);
    if (i < 0) return null;
    const inTree = (row) => row.sequence === this.shown.sequence && row.step === this.shown.step;
    return [...this.run.tokens, ...this.run.ghosts].find((row) => inTree(row) && this.indexOf(row) === i) ?? null;
  }

  /** The index of a token or ghost among the nodes of its tree; the target's own token is the last one. */
  indexOf(row) {
    if (row.node >= 0) return row.node;
    return isLostDraft(row.outcome) ? -1 : this.shown.nodes.text.length - 1; // the branches of a fork are no rows
  }
}

const isLostDraft = (outcome) => outcome === "rejected" || outcome === "discarded";

function leaf(nodes, i, { x, y }) {
  const [text, outcome, q, p] = [nodes.text[i], nodes.outcome[i], nodes.q[i], nodes.p[i]];
  const share = (name, value) => (value === null ? "" : `${name} ${probability(value)}`);
  const shares = [share("q", q), share("p", p)].filter(Boolean).join(", ");
  const fate = outcome === "pending" ? "draft of the next round" : OUTCOMES[outcome];
  const label = [`level ${nodes.level[i] + 1}: ${quoted(text)}`, fate, shares].filter(Boolean).join(", ");
  return put(el("div", { class: `ss-leaf ss-leaf-${outcome}`, role: "img", title: label, "aria-label": label },
    el("span", { class: `ss-leaf-text ss-${outcome}` }, el("span", { class: "ss-ink" }, text.trim() ? text.trim() : quoted(text))),
    el("span", { class: "ss-leaf-share" }, el("span", {}, share("q", q)), el("span", {}, share("p", p)))), { left: x, top: y });
}

/** The edges from parents to children; those of the output are drawn last, in a stronger line. */
function edges(nodes, places, width, height) {
  const middle = (LEAF.height - 6) / 2;
  const lines = nodes.parent.map((parent, i) => {
    const from = parent < 0 ? { x: LEAF.root, y: middle } : { x: places[parent].x + LEAF.width, y: places[parent].y + middle };
    const [x, y, half] = [places[i].x, places[i].y + middle, LEAF.gap / 2];
    const outcome = nodes.outcome[i];
    const kind = isLostDraft(outcome) ? "" : ({ accepted: " ss-tree-path", pending: " ss-tree-pending" }[outcome] ?? " ss-tree-own");
    const d = `M ${from.x} ${from.y} C ${from.x + half} ${from.y} ${x - half} ${y} ${x} ${y}`;
    return drawn("path", { d, class: `ss-tree-edge${kind}` });
  });
  const strong = (line) => line.classList.length > 1;
  const dot = drawn("circle", { cx: LEAF.root - 5, cy: middle, r: 4, class: "ss-tree-root" });
  return drawn("svg", { width, height, viewBox: `0 0 ${width} ${height}`, "aria-hidden": "true" }, lines.filter((line) => !strong(line)), lines.filter(strong), dot);
}

/** The attention mask of the target's forward: a row sees the prefix (left bar), its ancestors and itself. */
function maskOf({ parent, outcome }) {
  const rows = parent.flatMap((_, i) => (outcome[i] === "accepted" || isLostDraft(outcome[i]) ? [i] : []));
  const cells = { "ss-mask-cell": "", "ss-mask-path": "" };
  for (const i of rows) {
    for (let column = i; column >= 0; column = parent[column]) {
      cells[outcome[i] === "accepted" ? "ss-mask-path" : "ss-mask-cell"] += `M ${(column + 2) * MASK} ${i * MASK} h ${MASK - 1} v ${MASK - 1} h ${1 - MASK} z `;
    }
  }
  const [width, height] = [(rows.length + 2) * MASK, rows.length * MASK];
  const label = `Attention mask of ${rows.length} drafted rows: each sees the prefix, its ancestors and itself`;
  return drawn("svg", { width, height, viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": label },
    drawn("rect", { width: MASK - 1, height, class: "ss-mask-cell" }), Object.entries(cells).map(([kind, d]) => drawn("path", { d, class: kind })));
}
