// The pool of target servers: the time, the positions and the outcome of each forward.

const POOL = { row: 14, least: 110, most: 420, axis: 24, bars: 1500, colours: 8 };
INSETS.push((viewer) => new PerRun((run) => run.pool, () => new PoolChart(viewer)));

/** The chart of one run, on the timeline's window. */
class PoolChart {
  constructor(viewer) {
    this.viewer = viewer;
    this.id = `ss-pool-${Math.random().toString(36).slice(2)}`;
    chartCard(this, "", "listbox");
    this.veil = el("div", { class: "ss-veil", hidden: true });
    this.plot.append(el("div", { class: "ss-pool-over" }, this.veil));
    this.marks = new Marks(this.svg, ".ss-pool-bar", (bar) => Number(bar.dataset.span), (bar, { type }) => {
      if (bar) viewer[type === "click" ? "pin" : "hover"]({ run: this.run, span: Number(bar.dataset.span) }, bar.getBoundingClientRect());
      else if (type !== "click") viewer.hover(null);
    });
    this.svg.addEventListener("pointerdown", (e) => { this.pressed = e.clientX; });
    this.svg.addEventListener("pointerup", (e) => this.zoom(this.pressed, e.clientX));
  }

  /** Zoom the timeline, and this chart with it, to the part that the pointer was dragged across. */
  zoom(a, b) {
    const { left, width } = this.svg.getBoundingClientRect();
    const [from, to] = this.window();
    if (Math.abs(a - b) > 8) this.viewer.gantt.zoomTo(...[a, b].sort((p, q) => p - q).map((x) => from + ((x - left) / width) * (to - from)));
  }

  update(run) {
    entitle(this, "Pool and preemptions", poolNote(run));
    this.svg.setAttribute("aria-label", `Verifications of ${runName(run)}; arrow keys move`);
    this.legend.replaceChildren(poolLegend(run));
  }

  draw(width) {
    const scene = this.scene(width);
    const shown = scene.bars.length <= POOL.bars ? scene.bars : [];
    this.note.textContent = shown.length === scene.bars.length ? ""
      : `${number(scene.bars.length, 0)} forwards are too many for one view. Zoom in to see them.`;
    setProps(this.svg, { height: scene.height + POOL.axis });
    put(this.plot, { height: scene.height + POOL.axis });
    put(this.veil, { height: scene.height });
    this.marks.redraw(patterns(this.id, this.run.pool.servers.length, scene), poolGrid(scene),
      drawn("g", { "aria-hidden": "true" }, shown.map((bar) => this.again(scene, bar))), ...shown.map((bar) => this.bar(scene, bar)), poolLines(scene, this.run, this.id));
    this.highlight(this.lit ?? new Set());
    this.at(this.t ?? Infinity);
  }

  /** The timeline's window; if that shows everything, the extent of this run. */
  window() {
    const { gantt } = this.viewer;
    return gantt.follow ? [-0.01 * this.run.to, 1.01 * this.run.to] : gantt.range;
  }

  /** The bars in the window, and the scales of time and position. The positions fit the bars in the window. */
  scene(width) {
    const [from, to] = this.window();
    const { forwards, drafts } = this.run.pool;
    const bars = forwards.id.map((_, i) => i).filter((i) => forwards.end[i] >= from && forwards.start[i] <= to);
    const prompt = this.run.tokens[0]?.position ?? 0;
    const ticks = drafts.filter(([t]) => t >= from && t <= to);
    const positions = [...bars.flatMap((i) => [forwards.first[i], forwards.last[i]]), ...ticks.map(([, position]) => position)];
    const low = positions.reduce((a, b) => Math.min(a, b), Infinity);
    const [bottom, top] = positions.length ? [low, positions.reduce((a, b) => Math.max(a, b), 0) + 1] : [0, 1];
    const height = Math.max(POOL.least, Math.min(POOL.most, POOL.row * (top - bottom)));
    const x = (t) => ((t - from) / (to - from)) * width;
    const y = (position) => height * (1 - (position - bottom) / (top - bottom));
    return { from, to, bottom, top, width, height, bars, ticks, prompt, x, y, row: height / (top - bottom) };
  }

  look(i) {
    const { server, outcome, id } = this.run.pool.forwards;
    return { class: `ss-s${server[i] % POOL.colours} ss-pool-${outcome[i]}`, "data-span": id[i] };
  }

  rect({ x, y, width }, i, low, high, props) {
    const { start, end } = this.run.pool.forwards;
    const [left, right] = [Math.max(0, x(start[i])), Math.min(width, x(end[i]))];
    return drawn("rect", { x: left, width: Math.max(1, right - left), y: y(high) + 0.5, height: Math.max(1, y(low) - y(high) - 1), ...props });
  }

  /** The positions that a forward scores again; drawn below all bars, so that it hides none. */
  again(scene, i) {
    const { first, own } = this.run.pool.forwards;
    const look = this.look(i);
    return own[i] > first[i] ? this.rect(scene, i, first[i], own[i], { ...look, class: `ss-pool-again ${look.class}` }) : null;
  }

  bar(scene, i) {
    const { x, y, row } = scene;
    const { forwards: f, servers } = this.run.pool;
    const label = servers[f.server[i]].label.split(" · ")[0];
    const look = this.look(i);
    const height = row * (f.last[i] + 1 - f.own[i]);
    const solid = f.outcome[i] === "decided" || f.outcome[i] === "rejected";
    const fits = solid && x(f.end[i]) - x(f.start[i]) > 6 * label.length + 4 && height >= 10;
    const hatched = f.outcome[i] === "preempted" || f.outcome[i] === "stopped";
    return drawn("g", { ...look, class: `ss-pool-bar ${look.class}`, role: "option", tabindex: "-1", "aria-label": poolSentence(this.run, i) },
      this.rect(scene, i, f.own[i], f.last[i] + 1, { class: "ss-pool-own", rx: 1.5, ...(hatched ? { style: `fill: url(#${this.id}-${f.server[i]})` } : {}) }),
      fits ? drawn("text", { x: Math.max(0, x(f.start[i])) + 3, y: (y(f.own[i]) + y(f.last[i] + 1)) / 2 + 3.5, "aria-hidden": "true" }, label) : null);
  }

  at(t) {
    this.t = t;
    const width = this.svg.clientWidth;
    const [from, to] = this.window();
    this.veil.hidden = t >= this.viewer.model.axis.max;
    this.veil.style.left = `${Math.max(0, Math.min(width, ((t - from) / (to - from)) * width))}px`;
  }

  highlight(spans) {
    this.lit = spans;
    for (const bar of this.svg.querySelectorAll("[data-span]")) bar.classList.toggle("ss-pool-lit", spans.has(Number(bar.dataset.span)));
  }
}

/** Hatching in each server's colour, and the frame of the plot. */
function patterns(id, servers, { width, height }) {
  const frame = drawn("clipPath", { id: `${id}-frame` }, drawn("rect", { x: 0, y: -4, width, height: height + 5 }));
  return drawn("defs", {}, frame, Array.from({ length: servers }, (_, i) =>
    hatching(`${id}-${i}`, "ss-pool-hatch", { ground: "ss-pool-ground", class: `ss-s${i % POOL.colours}` })));
}

function poolGrid({ from, to, bottom, top, width, height, x, y }) {
  const tokens = roundTicks(bottom, top, height, 26).filter((n) => n >= 1 && Number.isInteger(n));
  return drawn("g", { "aria-hidden": "true", class: "ss-pool-axes" },
    roundTicks(from, to, width, 90).map((t) => [drawnLine(x(t), 0, x(t), height + 4), drawnText(x(t), height + 16, "middle", number(t, t % 1 ? 1 : 0))]),
    tokens.map((n) => [drawnLine(0, y(n - 0.5), width, y(n - 0.5)), drawnText(-8, y(n - 0.5) + 4, "end", `token ${number(n, 0)}`)]),
    drawnLine(0, height, width, height, "ss-pool-edge"), drawnText(-8, height + 16, "end", "ms"));
}

/** Lines above the bars: drafted tokens, crosses where drafts were rejected, and the committed text as a staircase. */
function poolLines({ x, y, row, bars, ticks, prompt, from, to }, run, id) {
  const half = Math.min(4, row / 2);
  const tick = ([t, position, fate]) => {
    const [tx, ty] = [x(t), y(position + 0.5)];
    return drawn("path", { d: `M${tx - 5},${ty}H${tx}`, class: fate === "accepted" || fate === "open" ? "ss-pool-draft" : "ss-pool-draft ss-pool-lost" });
  };
  const ids = new Set(bars.map((i) => run.pool.forwards.id[i]));
  const cross = (ghost) => {
    const [cx, cy] = [x(ghost.t), y(ghost.position - prompt + 0.5)];
    const arm = Math.max(2.5, half);
    return drawn("path", { class: "ss-pool-wrong", d: `M${cx - arm},${cy - arm}l${2 * arm},${2 * arm}m0,${-2 * arm}l${-2 * arm},${2 * arm}` });
  };
  const stairs = run.tokens.reduce((path, token, i) => `${path}H${x(token.t)}V${y(i + 1)}`, `M${x(Math.min(0, to))},${y(0)}`);
  return drawn("g", { "aria-hidden": "true", class: "ss-pool-above", "clip-path": `url(#${id}-frame)` },
    ticks.map(tick),
    drawn("path", { class: "ss-pool-text", d: stairs }),
    run.ghosts.filter((g) => g.outcome === "rejected" && ids.has(g.verify) && g.t >= from && g.t <= to).map(cross));
}
