// Long runs: the browser has the rows of a part (traces/view/part.py) and bins of the rest. It asks for the window that
// the timeline shows, paints bins until the rows arrive, and takes the whole document once the server has made it.

const SOON = 20000; // spans of runs whose whole document is fetched without asking
const SHARPER = 0.9; // of the width of the last window with bins: below, finer bins are asked for
const OVERVIEW = 700; // bins of a whole run

/** Whether the rows of a run in [from, to] are here. */
const covers = (run, from, to) => !run.long || (run.part.from <= Math.max(from, run.from) && run.part.to >= Math.min(to, run.to));

const endOf = (bins) => bins.low + bins.width * bins.spans.length;

/** The finest bins that have [from, to], or undefined. */
const binsFor = (run, from, to) => [run.detail, run.overview].find((bins) => bins && bins.low <= Math.max(from, run.from) + bins.width && endOf(bins) >= Math.min(to, run.to) - bins.width);

/** Replace the part of a long run. Tracks stay the same objects: the timeline's rows have them. */
function adopt(run, sections) {
  const { tracks, from, to, sources, ...others } = unpack({ runs: [sections] }).runs[0];
  for (const track of run.tracks) {
    const { lanes, ...rows } = tracks.find((other) => other.device === track.device);
    Object.assign(track, rows, { lanes: Math.max(lanes, track.lanes), drawn: undefined, idle: undefined, busyTimes: undefined, load: undefined });
  }
  Object.assign(run, others); // `from` and `to` stay those of the whole run
  if (sources.length) run.sources = sources; // a part without copies has none
  run.marks = run.bySpan = run.bandLine = undefined;
}

/** Which tokens of a long run are here. */
function partText({ tokens, long }) {
  const [first, last] = [tokens[0], tokens.at(-1)].map((token) => number((token?.index ?? 0) + 1, 0));
  return tokens.length ? `Tokens ${first} to ${last} of ${number(long.tokens, 0)}, those of the loaded part.` : "The loaded part has no tokens.";
}

/** Ask for windows and for the whole document. `source` has `window(query)` and `whole()`, which return promises. */
class Windows {
  constructor(viewer, source) {
    Object.assign(this, { viewer, source, asking: false, problem: "" });
    this.text = el("span", {});
    this.button = el("button", { type: "button", class: "ss-button ss-wide-button", onclick: () => this.whole() }, "Load the whole run");
    this.node = el("p", { class: "ss-note ss-long", role: "status", hidden: true }, this.text, this.button);
    this.look = throttled(() => this.next(), 60);
    this.settled = throttled(() => this.follow(), 400);
  }

  update(model) {
    this.runs = model.runs.filter((run) => run.long);
    this.node.hidden = !this.runs.length;
    if (!this.runs.length || !this.source) return;
    this.spans = this.runs.reduce((sum, run) => sum + run.long.spans, 0);
    this.say();
    this.look();
  }

  say() {
    const state = this.loading ? "The whole run is loading." : this.problem;
    this.text.textContent = `${number(this.spans, 0)} spans: the timeline loads what it shows; text, search and cards have the loaded part. ${state} `;
    this.button.hidden = Boolean(this.loading);
  }

  /** Ask for the next window that is missing. */
  async next() {
    const query = !this.asking && this.source && this.runs.map((run) => this.missing(run)).find(Boolean);
    if (!query) return;
    this.asking = true;
    try {
      const answer = await this.source.window(query.address);
      if (this.runs.includes(query.run)) this.take(query, answer);
      this.problem = "";
    } catch (error) {
      this.problem = `A window cannot be loaded: ${error.message}.`;
    } finally {
      this.asking = false;
      this.say();
    }
    if (!this.problem) this.look();
  }

  /** What is missing of a run, {run, address, width}, or null. */
  missing(run) {
    const ask = (low, high, margin, bins, rows) => ({
      run, width: high - low, overview: !rows, address: new URLSearchParams({ run: run.id, low, high, margin, bins, rows }).toString(),
    });
    if (!run.overview) return ask(run.from, run.to, 0, OVERVIEW, false);
    if (!this.viewer.gantt.range) return null;
    const [from, to] = [Math.max(run.from, this.viewer.gantt.range[0]), Math.min(run.to, this.viewer.gantt.range[1])];
    if (from >= to || covers(run, from, to)) return null;
    const bins = binsFor(run, from, to);
    if (bins && to - from > SHARPER * bins.asked) return null;
    return ask(from, to, to - from, 2 * OVERVIEW, true);
  }

  take({ run, width, overview }, answer) {
    const { gantt } = this.viewer;
    if (answer.bins) {
      answer.bins.asked = width;
      run[overview ? "overview" : "detail"] = answer.bins;
      if (this.spans <= SOON && this.runs.every((other) => other.overview)) this.whole(); // after what is shown first
      gantt.map.drawn = null;
      gantt.settle();
      return;
    }
    const lanes = (tracks) => tracks.map((track) => track.lanes).join();
    const before = lanes(run.tracks);
    adopt(run, answer);
    if (lanes(run.tracks) === before) gantt.settle();
    else gantt.update(this.viewer.model);
    this.settled();
  }

  /** Show the texts and insets of the parts. */
  follow() {
    const { viewer } = this;
    viewer.model.runs.forEach((run, i) => viewer.panes[i].update(run, viewer.model.clocks.length));
    callInsets(viewer.insets, "update", viewer.model);
    viewer.search.look();
    viewer.seek(viewer.replay.t);
  }

  async whole() {
    if (this.loading) return;
    const { model } = this.viewer;
    this.loading = true;
    this.say();
    try {
      const whole = await this.source.whole();
      this.loading = false;
      if (this.viewer.model === model) this.viewer.update(whole);
    } catch (error) {
      this.loading = false;
      this.problem = `The whole run cannot be loaded: ${error.message}.`;
      this.say();
    }
  }

  destroy() {
    this.runs = [];
    this.source = null;
    this.look.cancel();
    this.settled.cancel();
  }
}

/** Painting of a row while only bins of its window are here, as PAINT does with rows. */
const PAINT_BINS = {
  ...PAINT,

  band: () => 0,

  track: (scene, row, run) => {
    const bins = binsFor(run, scene.from, scene.to);
    const looks = (bins && named(bins.tracks, row.track.device)) ?? [];
    paintStack(scene, bins, looks.map((look) => [look.busy, styleOf(look, scene).fill]), row.y + 1, row.height - 2);
  },

  strip: (scene, row, run) => {
    if (!run.overview) return;
    const looks = named(run.overview.tracks, row.track.device) ?? [];
    const share = (i) => Math.min(1, looks.reduce((sum, look) => sum + look.busy[i], 0));
    const side = row.track.role === "drafter" ? "draft" : "verify";
    paintSteps(scene, row, stepsOf(run.overview, scene, share), scene.colours[`strip-${side}`]);
  },

  tokens: (scene, row, run) => {
    row.marks = [];
    const bins = binsFor(run, scene.from, scene.to);
    if (!bins) return 0;
    const most = Math.max(1, ...bins.tokens);
    paintSteps(scene, row, stepsOf(bins, scene, (i) => bins.tokens[i] / most), scene.colours.accepted);
    const [first, last] = rangeOf(bins, scene);
    return bins.spans.slice(first, last).reduce((sum, n) => sum + n, 0);
  },
};

/** Painting of a part: a strip needs the time around the window, too. */
const PAINT_PART = { ...PAINT, strip: PAINT_BINS.strip };

/** The bins in a scene's window, as [first, last). */
function rangeOf(bins, { from, to }) {
  const place = (t) => (t - bins.low) / bins.width;
  return [Math.max(0, Math.floor(place(from))), Math.min(bins.spans.length, Math.ceil(place(to)))];
}

function stepsOf(bins, scene, shareOf) {
  const [first, last] = rangeOf(bins, scene);
  const at = (i) => bins.low + i * bins.width;
  return Array.from({ length: Math.max(0, last - first) }, (_, i) => ({ start: at(first + i), end: at(first + i + 1), share: shareOf(first + i) }));
}

/** Paint shares of bins on each other from below, [[shares, fill]]. */
function paintStack(scene, bins, looks, top, height) {
  if (!bins) return;
  const [first, last] = rangeOf(bins, scene);
  const wide = bins.width / scene.pixel;
  const low = new Float32Array(Math.max(0, last - first));
  for (const [shares, fill] of looks) {
    scene.ctx.fillStyle = fill;
    for (let i = first; i < last; i++) {
      const share = Math.min(1 - low[i - first], shares[i]);
      if (share <= 0) continue;
      low[i - first] += share;
      scene.ctx.fillRect(scene.x(bins.low + i * bins.width), top + height * (1 - low[i - first]), wide, height * share);
    }
  }
}

/** Paint a long run in the minimap: above how much the drafter works, below the target. */
function paintOverview(scene, run, top, height) {
  if (!run.overview) return;
  ["drafter", "target"].forEach((role, i) => {
    const own = run.tracks.filter((track) => (track.role === "drafter") === (role === "drafter")).flatMap((track) => named(run.overview.tracks, track.device) ?? []);
    const shares = run.overview.spans.map((_, bin) => Math.min(1, own.reduce((sum, look) => sum + look.busy[bin], 0)));
    paintStack(scene, run.overview, [[shares, scene.colours[i ? "verify" : "draft"]]], top + (i * height) / 2, height / 2);
  });
}
