// Long runs: the browser has all spans and rounds, and the tokens of a range of rounds (traces/view/long.py). It asks for
// the rounds that the timeline shows, for what the spans tell, and takes the whole document once the server has made it.

const SOON = 20000; // spans of runs whose whole document is fetched without asking
const MOST_AT_ONCE = 200; // rounds whose tokens are asked for
const MOST_OF_A_STEP = 10000; // those of one step, which may be one for each sequence
const AFTER = 500; // ms until the waits are asked for: after the first picture

/** The rounds of a run by time: {rows, t}. */
const roundLine = (run) => (run.line ??= makeRoundLine(run.rounds));

function makeRoundLine(rounds) {
  const rows = [...rounds].sort((a, b) => a.t - b.t);
  return { rows, t: Float64Array.from(rows, (row) => row.t) };
}

/** The rounds that end in [from, to], as [first, last) of the rounds by time. */
function roundsIn(run, from, to) {
  const { t } = roundLine(run);
  let first = upperBound(t, from);
  while (first > 0 && t[first - 1] === from) first--;
  return [first, upperBound(t, to)];
}

/** Whether the tokens of a run in [from, to] are here. */
function covers(run, from, to) {
  if (!run.long) return true;
  const { rows } = roundLine(run);
  const [first, last] = roundsIn(run, from, to);
  for (let i = first; i < last; i++) {
    if (rows[i].step < run.part.first || rows[i].step > run.part.last) return false;
  }
  return true;
}

/** The first and the last step of rounds: those of several sequences need not be in order of time. */
function stepsOf(rows) {
  const steps = rows.map((row) => row.step);
  return [Math.min(...steps), Math.max(...steps)];
}

/** Which tokens of a long run are here. */
function partText({ tokens, long }) {
  const [first, last] = [tokens[0], tokens.at(-1)].map((token) => number((token?.index ?? 0) + 1, 0));
  return tokens.length ? `Tokens ${first} to ${last} of ${number(long.tokens, 0)}, those of the loaded part.` : "The loaded part has no tokens.";
}

/** Ask for rounds, for what spans tell, and for the whole document. `source` has functions that return promises. */
class LongRuns {
  constructor(viewer, source) {
    Object.assign(this, { viewer, source, runs: [], asking: false, problem: "" });
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
    clearTimeout(this.telling);
    if (this.spans > SOON) this.telling = setTimeout(() => this.tell(), AFTER);
  }

  /** Ask for what the spans of each run tell: the waits, the band, the caches. */
  async tell() {
    for (const run of this.runs.filter((other) => !other.told)) {
      try {
        const answer = await this.source.spans(run.id);
        if (this.runs.includes(run)) this.take(run, answer);
      } catch (error) {
        Object.assign(run, { told: true, untold: `The waits cannot be loaded: ${error.message}.` });
        this.problem = run.untold;
        this.say();
      }
    }
  }

  say() {
    const state = this.loading ? "The whole run is loading." : this.problem;
    this.text.textContent = `${number(this.spans, 0)} spans: tokens are loaded where the timeline shows them; texts and their search have the loaded part. ${state} `;
    this.button.hidden = Boolean(this.loading);
  }

  /** Ask for the rounds that are missing, then for the whole document of runs that are not too long. */
  async next() {
    if (this.asking || !this.source || !this.viewer.gantt.range) return;
    const query = this.runs.map((run) => this.missing(run)).find(Boolean);
    if (!query) return this.spans <= SOON && this.runs.length && !this.problem ? this.whole() : undefined;
    const { run, steps } = query;
    this.asking = true;
    try {
      const answer = await this.source.rounds(run.id, ...steps);
      this.problem = "";
      if (this.runs.includes(run)) this.take(run, answer);
      if (String(this.missing(run)?.steps) === String(steps)) throw new Error("they are not those of the window");
    } catch (error) {
      this.problem = `The tokens of the window cannot be loaded: ${error.message}.`;
    } finally {
      this.asking = false;
      this.say();
    }
    return this.problem || this.look();
  }

  /** The rounds of the window that are missing of a run, with some on either side, {run, steps}; or null. */
  missing(run) {
    const [from, to] = this.viewer.gantt.range;
    const [first, last] = roundsIn(run, from, to);
    const { rows } = roundLine(run);
    const oneStep = last > first && last - first <= MOST_OF_A_STEP && new Set(rows.slice(first, last).map((row) => row.step)).size === 1;
    if ((last - first > MOST_AT_ONCE && !oneStep) || covers(run, from, to)) return null;
    const margin = Math.max(0, Math.min(last - first, (MOST_AT_ONCE - last + first) >> 1));
    const [low, high] = stepsOf(rows.slice(Math.max(0, first - margin), last + margin));
    return { run, steps: [first > margin ? low : 0, high] };
  }

  /** Put an answer into a run. Tracks stay the same objects: the timeline's rows have them. */
  take(run, answer) {
    const { viewer } = this;
    const { tracks = [], sources = [], ...others } = unpack({ runs: [answer] }).runs[0];
    Object.assign(run, others, { marks: undefined, bySpan: undefined, bandLine: undefined });
    if (sources.length) run.sources = sources; // a part without copies has none
    for (const { device, ...rows } of tracks) Object.assign(run.tracks.find((track) => track.device === device), rows, { idle: undefined, load: undefined });
    run.told ||= Boolean(answer.band);
    viewer.gantt.map.drawn = null;
    if (answer.band) viewer.gantt.update(viewer.model);
    else viewer.gantt.settle();
    this.settled();
  }

  /** Show the texts, the insets and the figures of what is here. */
  follow() {
    const { viewer } = this;
    viewer.model.runs.forEach((run, i) => viewer.panes[i].update(run, viewer.model.clocks.length));
    viewer.legend.replaceChildren(legend(viewer.model));
    callInsets(viewer.insets, "update", viewer.model);
    viewer.search.look();
    viewer.seek(viewer.replay.t);
    if (viewer.panel.range) viewer.panel.set(viewer.panel.range);
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
    clearTimeout(this.telling);
  }
}
