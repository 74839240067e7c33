// The verdict under a pane: how fast the run is, why, and what would help.

/** Make the sentences, and a button that starts the advised run where the page can start runs. */
function verdictNodes(used, start) {
  const { summary, reason, advice, run } = used.verdict;
  return [
    summary && el("p", { class: "ss-verdict-main" }, summary),
    reason && el("p", {}, reason),
    advice && el("p", {}, advice),
    run && start && el("button", { type: "button", class: "ss-button ss-wide-button", title: `Predicted by ${run.source}`, onclick: () => start(used, run) }, `Run ${run.title} with ${run.setting}`),
  ].filter(Boolean);
}
