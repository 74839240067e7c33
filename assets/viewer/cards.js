// The texts of the timeline: the head of a run's card, the labels of its rows.

function labelOf(run, row) {
  if (row.type === "strip" || row.type === "measured") return stripLabel(run, row);
  if (row.type === "clock") return el("div", { class: "ss-row-label ss-row-strip", title: "the most by which this track's times are wrong beside another track's" }, row.label);
  const share = row.track && !row.track.measured ? named(run.metrics?.occupancy ?? {}, row.track.device) : undefined;
  return el("div", { class: "ss-row-label", title: row.label }, el("span", {}, row.label),
    share === undefined ? null : el("span", { class: "ss-busy", title: "share of decoding in which the device works" }, `${Math.round(100 * share)} % busy`));
}

/** The label of a strip: the busy share from the spans, or the measured load. */
function stripLabel(run, row) {
  const spans = row.type === "strip";
  const share = (spans ? named(run.metrics?.occupancy ?? {}, row.track.device) : row.track.measured.busy) ?? null; // a long run has no figures
  const title = spans ? "share of decoding in which the device works" : `mean load while decoding: ${row.label}${row.label.startsWith("whole") ? ", by all programs" : ""}`;
  const [name, meter] = row.label.split(" (");
  const text = el("div", {}, name, meter ? el("span", { class: "ss-meter" }, ` (${meter}`) : null, share === null ? "" : ` ${Math.round(100 * share)}\u202f%`);
  return el("div", { class: "ss-row-label ss-row-strip", title }, text);
}

/** A sentence in place of the timeline of a run without times. */
function untimedCard(run) {
  if (run.counts?.length) return ""; // its windows have a chart
  return el("section", { class: "ss-card ss-untimed" },
    el("div", { class: "ss-gantt-title" }, el("h3", {}, runName(run)), el("span", { class: "ss-badge" }, run.badge)),
    el("p", {}, "There is no timeline: the file holds no times. ", run.tokens.length ? run.note : ""));
}

/** The source of the times; a narrow window shows its first word only. */
function clockBadge(text) {
  const [kind, ...rest] = text.split(" · ");
  return el("span", { class: "ss-badge", title: text }, kind, rest.length ? el("span", { class: "ss-wide-only" }, ` · ${rest.join(" · ")}`) : null);
}

function headOf(run) {
  const { decode_seconds: seconds, target_forwards: count } = run.metrics ?? {}; // a long run has no figures
  const whole = `Share of decoding, from the end of prefill to the last token${seconds ? `: ${ms(1000 * seconds)}` : ""}.`;
  const shares = run.headline.map((part) => el("span", { class: part.percent ? "" : "ss-none", title: whole },
    swatch(`band-${part.kind}`), `${part.label} `, el("b", {}, `${part.percent} %`)));
  const forwards = run.status !== "running" && count; // devices report them later than the text grows
  const each = run.figures?.tokens_per_target_forward;
  const rest = forwards ? `${number(forwards, 0)} target forwards${each === "unknown" ? "" : ` · ${each} tokens each`}` : "";
  return [
    el("div", { class: "ss-gantt-title" }, el("h3", { title: runName(run) }, runName(run)), clockBadge(run.badge),
      run.note ? el("span", { class: "ss-note" }, run.note) : null),
    el("div", { class: "ss-headline" }, shares, el("span", { class: "ss-rest" }, rest)),
  ];
}
