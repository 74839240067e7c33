// Token by token of long runs: the tokens that the first run commits in the timeline's window, and the same ones of the
// others. The page has all rounds, and how far the texts agree; the tokens that are not in the loaded part are asked for.

const MOST_ALIGNED = 600; // tokens of a run shown at once
const MOST_ASKED = 1000; // rounds of a request, see app/jobs/long.py

/** The rounds of a sequence, and the number of its tokens before each. Tokens of a prefill are a round of step 0. */
function outputLine(run, { sequence, length, begin }) {
  const own = run.rounds.filter((round) => round.sequence === sequence);
  const early = length - own.reduce((sum, round) => sum + round.emitted, 0);
  const rounds = early > 0 ? [{ step: 0, t: begin, emitted: early }, ...own] : own;
  let count = 0;
  return { run, rounds, before: rounds.map(({ emitted }) => (count += emitted) - emitted) };
}

/** The steps with the tokens [first, end) of a line, and with the token before them: {low, high, index of their first token, alone}. */
function stepsWith({ run, rounds, before }, first, end) {
  const [a, b] = [first - 1, end - 1].map((token) => upperBound(before, Math.max(0, token)) - 1);
  // The step before the others is asked for `alone` if it is far from them: the prefill of a late sequence, or one that stalls.
  const far = b > a && tooMany(run, { low: rounds[a].step, high: rounds[a + 1].step });
  return { low: rounds[far ? a + 1 : a].step, high: rounds[b].step, index: before[a], alone: far ? rounds[a].step : null };
}

/** Whether a request for these steps has too many rounds; one step is always allowed. */
const tooMany = (run, { low, high }) => low < high && run.rounds.filter(({ step }) => step >= low && step <= high).length > MOST_ASKED;

class AlignedPart {
  constructor(viewer, show) {
    Object.assign(this, { viewer, show, active: false, asking: false });
    this.look = throttled(() => this.next(), 400);
  }

  /** Take another document; return whether its runs are loaded in part and can be aligned. */
  update(model) {
    if (model !== this.model) Object.assign(this, { model, asked: "", found: null, problem: "" });
    this.active = Boolean(model.aligned?.length && model.runs[0].long && this.viewer.options.source);
    if (this.active) this.look();
    return this.active;
  }

  /** The tokens to show: {first, inside, rows: [{view, run, first, end}]}; of `inside` tokens in the window the first ones. */
  wanted() {
    const { runs } = this.model;
    const [from, to] = this.viewer.gantt.range;
    const views = alignedViews(this.model);
    const lines = views.map((view, i) => (view.reason ? null : outputLine(runs[i], view)));
    if (!lines[0]) return { first: 0, inside: 0, rows: [] };
    const { rounds, before } = lines[0];
    const first = before[rounds.findIndex(({ t }) => t >= from)] ?? views[0].length;
    const inside = Math.max(0, (before[rounds.findLastIndex(({ t }) => t <= to) + 1] ?? views[0].length) - first);
    for (let shown = Math.min(MOST_ALIGNED, inside); ; shown = Math.ceil(shown / 2)) {
      const rows = views.flatMap((view, i) => {
        const end = Math.min(first + shown, view.same);
        return lines[i] ? [{ ...view, run: runs[i], first, end, steps: end > first ? stepsWith(lines[i], first, end) : null }] : [];
      });
      if (shown < 2 || !rows.some(({ run, steps }) => steps && tooMany(run, steps))) return { first, inside, rows };
    }
  }

  /** Ask for the tokens to show, unless they were the last ones asked for. */
  async next() {
    if (!this.active || this.asking || !this.viewer.gantt.range) return;
    const { model } = this;
    const { rows, ...window } = this.wanted();
    const asked = JSON.stringify([window, rows.map(({ sequence, end }) => [sequence, end])]);
    if (asked === this.asked) return;
    Object.assign(this, { asked, asking: true, problem: "" });
    try {
      const found = { ...window, rows: [] };
      for (const row of rows) found.rows.push(await this.filled(row));
      if (model === this.model) this.found = found;
    } catch (error) {
      if (model === this.model) this.problem = `The tokens of the window cannot be loaded: ${error.message}.`;
    }
    this.asking = false;
    if (!this.active) return;
    if (model === this.model) this.show();
    this.look(); // the window may have moved meanwhile
  }

  /** Return a row with its tokens. */
  async filled({ run, sequence, first, end, steps, ...view }) {
    if (!steps) return alignedRow({ ...view, run }, [], 0);
    const { low, high, index, alone } = steps;
    const here = (from, to) => run.part.first <= from && to <= run.part.last;
    const partOf = async (from, to) => (here(from, to) ? run : { ...run, ...unpack({ runs: [await this.viewer.options.source.rounds(run.id, from, to)] }).runs[0] });
    const ownOf = (part, from, to) => part.tokens.filter((token) => token.sequence === sequence && token.step >= from && token.step <= to);
    const part = await partOf(low, high);
    const own = [...(alone === null ? [] : ownOf(await partOf(alone, alone), alone, alone)), ...ownOf(part, low, high)];
    return alignedRow({ ...view, run, part }, own.slice(0, end - index), first - index, first);
  }

  rows() {
    return this.found?.rows ?? [];
  }

  /** Which tokens are shown, and why others are not. */
  note() {
    if (this.problem) return this.problem;
    if (!this.found) return "The tokens of the timeline's window are loading.";
    const { first, inside, rows } = this.found;
    const name = runName(this.model.runs[0]);
    const [{ reason }] = alignedViews(this.model);
    if (reason) return `${name} cannot be aligned: ${reason}.`;
    if (!inside) return `${name} commits no token in the timeline's window; move the window.`;
    const last = first + rows[0].tokens.length;
    return [
      `Tokens ${number(first + 1, 0)} to ${number(last, 0)} of ${number(rows[0].length, 0)}: those that ${name} commits in the timeline's window.`,
      last < first + inside ? `The window has ${number(inside, 0)} of them; zoom in to see the others.` : "",
      alignedNotes(this.model, rows, last),
    ].filter(Boolean).join(" ");
  }

  destroy() {
    this.active = false;
    this.look.cancel();
  }
}
