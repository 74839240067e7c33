// The rows of the KV caches in the step that replay has reached, or the one pointed at. traces/view/caches.py counts them.

const KV = { high: 16, cell: [3, 13], block: 0.4, least: 12 };
const KV_WORDS = {
  valid: "cached before",
  new: "new and kept",
  calibrated: "calibrated (exact) and kept",
  fuzzy: "fuzzy and kept",
  lost: "rolled back",
  "lost-fuzzy": "fuzzy, rolled back",
  padded: "padding",
  unknown: "unknown (no later forward shows whether they are kept, or where they are from)",
};
INSETS.push((viewer) => new Caches(viewer));

class Caches {
  constructor(viewer) {
    this.viewer = viewer;
    this.t = Infinity;
    this.pointed = null; // {run, step}
    this.legend = el("div");
    this.note = el("span", { class: "ss-hint" });
    this.body = el("div");
    this.card = el("section", { class: "ss-card ss-kv", "aria-label": "KV caches", hidden: true },
      el("div", { class: "ss-gantt-title ss-kv-title" }, el("h3", {}, "KV caches"), this.note), this.legend, this.body);
    this.node = el("div", {}, this.card);
    this.resizing = new ResizeObserver(() => this.draw(true));
    this.resizing.observe(this.body);
  }

  update(model) {
    this.rows = model.runs.flatMap((run) => (run.caches ?? []).map((cache) => new CacheRow(run, cache)));
    this.card.hidden = !this.rows.length;
    this.pointed = null;
    this.body.replaceChildren(...this.rows.map((row) => row.node));
    const states = Object.keys(KV_WORDS).filter((state) => this.rows.some(({ cache }) => cache.rows[state]));
    this.legend.replaceChildren(legendOf("Legend of the KV caches", states.map((state) => [`ss-kv-${state}`, KV_WORDS[state]]), "ss-keys"));
    this.draw(true);
  }

  at(t) {
    this.t = t;
    this.draw();
  }

  /** Pointing at a span shows its step. */
  highlight(run, spans) {
    const id = run ? spans.values().next().value : undefined;
    const place = id === undefined ? null : findSpan(run, id);
    this.pointed = place ? { run, step: place.track.spans.step[place.index] } : null;
    this.draw();
  }

  draw(anew = false) {
    if (this.card.hidden) return;
    const note = this.pointed ? `in step ${this.pointed.step || "0, the prefill"}` : this.place();
    if (this.note.textContent !== note) this.note.textContent = note;
    for (const row of this.rows) row.draw(this.indexOf(row), anew);
  }

  /** Which step is shown, in words. */
  place() {
    return this.rows.some(({ run }) => this.t >= run.to) ? "in the step of the replay's time; at the end of a run, in its last step whose rows are known" : "in the step of the replay's time";
  }

  /** The entry of a cache to show: of the pointed step, else the last one that has begun; at the end the last one without unknown rows. */
  indexOf({ run, cache }) {
    if (this.pointed?.run === run) {
      const at = cache.step.indexOf(this.pointed.step);
      if (at >= 0) return at;
    }
    const last = Math.max(0, upperBound(cache.t, this.t) - 1);
    if (this.t < run.to) return last;
    const known = cache.step.findLastIndex((_, i) => i <= last && !cache.rows.unknown?.[i]);
    return known < 0 ? last : known;
  }

  destroy() {
    this.resizing.disconnect();
  }
}

/** One cache: its name, its strip and its sentence. */
class CacheRow {
  constructor(run, cache) {
    Object.assign(this, { run, cache, shown: -1 });
    const whose = run.sequences.length > 1 ? `, seq. ${cache.sequence + 1}` : "";
    this.name = `${runName(run)}, ${cache.model}${whose}`;
    this.svg = drawn("svg", { role: "img" });
    this.text = el("div", { class: "ss-kv-text" });
    this.node = el("div", { class: "ss-kv-row" },
      el("div", { class: "ss-kv-name", title: `${this.name} · ${cache.label}` }, el("span", {}, run.title), `${cache.model}${whose}`), this.svg, this.text);
  }

  draw(index, anew) {
    if (index === this.shown && !anew) return;
    this.shown = index;
    const parts = Object.keys(KV_WORDS).map((state) => [state, this.cache.rows[state]?.[index] ?? 0]).filter(([, count]) => count);
    const step = this.cache.step[index];
    this.text.textContent = `${step ? `step ${step}` : "prefill"}: ${parts.map(([state, count]) => `${number(count, 0)} ${KV_WORDS[state].split(" (")[0]}`).join(", ")}`;
    setProps(this.svg, { "aria-label": `${this.name}, ${this.text.textContent}` });
    this.svg.replaceChildren(...kvCells(parts, this.svg.clientWidth));
  }
}

/** The strip: a block for many rows of one state, else a cell per row. */
function kvCells(parts, width) {
  if (!width) return [];
  const large = (count) => count > KV.least;
  const few = parts.reduce((sum, [, count]) => sum + (large(count) ? 0 : count), 0);
  const many = parts.reduce((sum, [, count]) => sum + (large(count) ? count : 0), 0);
  const cell = Math.max(KV.cell[0], Math.min(KV.cell[1], (width * (many ? 1 - KV.block : 1)) / Math.max(1, few)));
  const room = Math.max(40, Math.min(width - few * cell - 2, many * KV.cell[1]));
  let x = 1;
  return parts.flatMap(([state, count]) => {
    const wide = large(count) ? (room * count) / many : cell;
    return Array.from({ length: large(count) ? 1 : count }, () => {
      x += wide;
      return kvCell(state, x - wide, wide - (cell > 5 ? 2 : 1), large(count) ? count : 0);
    });
  });
}

function kvCell(state, x, wide, count) {
  const box = drawn("rect", { x, y: 2, width: Math.max(1, wide), height: KV.high, rx: 2, class: `ss-kv-${state}` });
  const title = count ? [drawn("title", {}, `${number(count, 0)} ${KV_WORDS[state]}`)] : [];
  const slashes = Math.max(1, Math.round(wide / 11));
  const slash = (i) => `M${x + 1 + (i * wide) / slashes} ${KV.high + 1}L${x - 1 + ((i + 1) * wide) / slashes} 3`;
  const crossed = state === "padded" || state.startsWith("lost");
  const cross = crossed ? drawn("path", { d: Array.from({ length: slashes }, (_, i) => slash(i)).join(""), class: `ss-kv-cross ss-kv-cross-${state}` }) : null;
  const label = count && state === "valid" && wide > 30 ? drawnText(x + wide / 2, KV.high - 2, "middle", number(count, 0)) : null;
  return drawn("g", {}, title, box, cross, label);
}
