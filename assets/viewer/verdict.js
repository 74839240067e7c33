// The marks of a pane, and the verdict under it: how fast the run is, why, what is suspect, and what would help.

/** Make the sentences, and a button that starts the advised run where the page can start runs. */
function verdictNodes(used, start) {
  const { summary, reason, advice, run, drafter, other, health } = used.verdict ?? {}; // a long run has none
  return [
    summary && el("p", { class: "ss-verdict-main" }, summary),
    health && el("p", { class: "ss-verdict-health" }, health),
    reason && el("p", {}, reason),
    advice && el("p", {}, advice),
    run && start && el("button", { type: "button", class: "ss-button ss-wide-button", title: `Predicted by ${run.source}`, onclick: () => start(used, run) }, `Run ${run.title} with ${run.setting}`),
    drafter && el("p", {}, drafter, other && !start ? " The option is --drafter int4." : ""),
    other && start && el("button", { type: "button", class: "ss-button ss-wide-button", title: "Chooses this drafter and runs again", onclick: () => start(used, other) }, `Run again with the drafter ${other.drafter}`),
  ].filter(Boolean);
}

function marksOf(run, clocks) {
  const marks = clocks > 1 ? [el("span", { class: "ss-badge" }, run.badge)] : [];
  if (run.status !== "done") marks.push(el("span", { class: `ss-badge ss-status-${run.status}` }, run.status));
  if (run.drafter) marks.push(el("span", { class: "ss-badge", title: "The target's own weights in fewer bits." }, `drafter ${run.drafter}`));
  if (run.lossy) marks.push(lossyBadge(run));
  if (run.busy) marks.push(el("span", { class: "ss-badge ss-warn", title: run.busy }, `other load: ${/used (.*) during/.exec(run.busy)?.[1] ?? "much"}`));
  if (run.baseline) marks.push(el("span", { class: "ss-badge" }, "baseline"));
  if (run.passes) marks.push(passesMark(run.passes));
  if (run.reason) marks.push(el("span", { class: "ss-badge", title: "A speed-up needs a run of plain decoding under the same conditions." }, `no speed-up: ${run.reason}`));
  if (run.identity) marks.push(identityMark(run));
  return marks;
}

function passesMark({ count, low, high }) {
  const [slow, fast] = [number(low, 1), number(high, 1)];
  return count > 2
    ? el("span", { class: "ss-badge", title: "The run shown is the median pass; these are the slowest and the fastest." }, `median of ${count} passes, ${slow} to ${fast} tok/s`)
    : el("span", { class: "ss-badge", title: "The speed is the mean of both passes; the run shown is the slower one." }, `2 passes, ${slow} and ${fast} tok/s`);
}

function identityMark(run) {
  const { same, at, length, final } = run.identity;
  const parted = run.greedy || run.lossy ? "differs" : "other draws";
  const text = !same ? `${parted} from token ${at + 1} on` : final ? "identical output" : `identical so far (${length})`;
  const why = same
    ? "The same token ids as the baseline's."
    : run.greedy
      ? "At temperature 0 the output should equal the baseline's; ties between two tokens may differ by rounding."
      : run.lossy ? `${run.lossy} Another text is expected.`
      : "Sampled: other draws give another text from the same distribution.";
  return el("span", { class: `ss-badge ${same ? "ss-good" : run.greedy ? "ss-warn" : ""}`, title: why }, text);
}
