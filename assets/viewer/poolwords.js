// The texts of the pool: cards, legend, table.

const POOL_OUTCOMES = {
  decided: "decided tokens",
  rejected: "rejected a draft",
  preempted: "preempted",
  stopped: "stopped with the run",
  unused: "not needed",
  open: "not judged yet",
};

/** The positions of a forward in words, counted from 1. */
function poolPositions({ first, own, last }, i) {
  const range = (a, b) => (a === b ? `token ${a + 1}` : `tokens ${a + 1} to ${b + 1}`);
  return range(first[i], last[i]) + (own[i] > first[i] ? `, new: ${range(own[i], last[i])}` : "");
}

function poolSentence(run, i) {
  const { forwards: f, servers } = run.pool;
  return `${servers[f.server[i]].label}: ${poolPositions(f, i)}, ${POOL_OUTCOMES[f.outcome[i]]}, ${ms(f.start[i])} to ${ms(f.end[i])}`;
}

/** Facts for the card of a span that is a forward of a pool. */
function poolFacts(run, span) {
  const i = run.pool ? run.pool.forwards.id.indexOf(span) : -1;
  if (i < 0) return [];
  const { forwards: f } = run.pool;
  return [["scores", poolPositions(f, i)], ["outcome", POOL_OUTCOMES[f.outcome[i]]], ["committed", f.emitted[i] ? some(f.emitted[i], "token") : ""]];
}

function poolNote(run) {
  const { forwards: f } = run.pool;
  const preempted = f.outcome.filter((outcome) => outcome === "preempted").length;
  const most = run.metrics.sp_degree;
  return `${f.id.length} verifications, ${preempted} preempted, at most ${most} at once`;
}

function poolLegend(run) {
  const outcomes = new Set(run.pool.forwards.outcome);
  const again = run.pool.forwards.own.some((own, i) => own > run.pool.forwards.first[i]);
  return legendOf("Legend of the pool", [
    ...run.pool.servers.map(({ label }, i) => [`ss-pool-key ss-s${i % POOL.colours}`, label.split(" · ")[0]]),
    (outcomes.has("preempted") || outcomes.has("stopped")) && ["ss-pool-key-off", outcomes.has("preempted") ? "preempted" : "stopped"],
    again && ["ss-pool-key-again", "scored again"],
    run.pool.drafts.length > 0 && ["ss-pool-key-draft", "drafted"],
    outcomes.has("rejected") && el("li", {}, el("b", { class: "ss-pool-key-wrong", "aria-hidden": "true" }, "×"), "rejected draft"),
    ["ss-pool-key-text", "committed text"]]);
}

/** The pool as a table: the work of each server. */
function poolTable(run) {
  if (!run.pool) return [];
  const { servers, forwards: f } = run.pool;
  const rows = servers.map(({ label }, server) => {
    const mine = f.id.map((_, i) => i).filter((i) => f.server[i] === server);
    const count = (...outcomes) => mine.filter((i) => outcomes.includes(f.outcome[i]));
    const time = (list) => ms(list.reduce((sum, i) => sum + f.end[i] - f.start[i], 0));
    const off = count("preempted", "stopped");
    return [label, mine.length, count("decided").length, count("rejected").length, off.length, count("unused", "open").length, time(mine), time(off)];
  });
  return [table(`Pool, ${runName(run)}`, ["server", "verifications", "decided tokens", "rejected a draft", "preempted", "not needed", "time", "preempted time"], rows)];
}
