// The speculation cache: the branches drafted beside one verification, its outcome, and the hits by place.

INSETS.push((viewer) => new PerRun((run) => run.fans.length, () => new FanView(viewer)));

/** The cache of one run: the round that replay has reached, or the one pointed at. */
class FanView {
  constructor(viewer) {
    largeCard(this, viewer, "ss-fan", "Speculation cache", fanLegend());
  }

  update(run) {
    this.rounds = run.fans;
    this.size = { places: Math.max(...run.fans.map(({ trunk }) => trunk.length)) + 1, guesses: Math.max(...run.fans.flatMap(guessRanks)) + 1 };
    this.steps = new Map(run.tracks.flatMap(({ spans }) => spans.id.flatMap((id, i) => (KINDS[spans.kind[i]].drafts ? [[id, spans.step[i]]] : []))));
    run.rounds.forEach((r) => this.steps.set(r.span, r.step));
    entitle(this, "Speculation cache", hitsText(run.hits), this.large);
    setProps(this.body, scrolls("Branches of a round"));
  }

  /** The round of the span that is pointed at, or the one that judged a token. */
  roundOf(spans, span) {
    const judged = this.run.rounds.find((r) => spans.has(r.span))?.step;
    const step = span === undefined ? judged : this.steps.get(span);
    return this.rounds.find((fan) => fan.step === step);
  }

  show(fan) {
    this.note.textContent = fanSentence(this.run, fan);
    this.body.replaceChildren(fanTable(this.run, fan, this.size));
  }
}

/** The rank of each guess of a round at its place, from 0. */
function guessRanks({ guesses: { place } }) {
  return place.map((own, i) => i - place.indexOf(own));
}

function hitsText(places) {
  const sum = (name) => places.reduce((total, place) => total + place[name], 0);
  return places.length ? `${sum("hits")} hits in ${sum("lookups")} lookups` : "";
}

/** A sentence about a round. */
function fanSentence(run, { step, trunk, accepted, own, result, guesses, saved, emitted }) {
  const outcome = `${accepted} of ${trunk.length} accepted${own === null ? "" : `, then ${quoted(gramText(run, own))}`}`;
  const next = `the next round has ${some(emitted, "token")}`;
  if (result === "hit") {
    const length = guesses.length[guesses.taken.indexOf(true)];
    return `Step ${step}: ${outcome}. A hit: ${some(length, "token")} drafted, ${ms(saved)} of drafting saved; ${next}.`;
  }
  return `Step ${step}: ${outcome}. ${result === "miss" ? `A miss: no guess was right; ${next}` : "The text ends, nothing is looked up"}.`;
}

/**
 * A column for each place, a row for each guess; above them the verified draft, below the outcome and the hits. `size`
 * is that of the largest round, so that replay moves nothing.
 */
function fanTable(run, fan, size) {
  const { trunk, guesses, accepted, own } = fan;
  const places = Array.from({ length: size.places }, (_, place) => place);
  const look = (place) => (place === accepted ? "ss-fan-outcome" : "");
  const ranks = guessRanks(fan);
  const guess = (place, rank) => guesses.place.findIndex((other, i) => other === place && ranks[i] === rank);
  const rates = new Map(run.hits.map((row) => [row.place, row]));
  const cells = (name, cell, kind = "") => el("tr", { class: kind }, el("th", { scope: "row" }, name),
    places.map((place) => el("td", { class: look(place) }, cell(place))));
  const drafted = (place) => (place && place <= trunk.length ? gramToken(run, trunk[place - 1], place <= accepted ? "ss-gram-accepted" : "ss-fan-rejected") : null);
  const target = (place) => (place === accepted && own !== null ? gramToken(run, own, fan.result === "miss" ? "ss-fan-miss" : "ss-fan-hit") : null);
  return el("table", { style: `max-width:${90 + 170 * size.places}px` },
    el("caption", { class: "ss-sr" }, `Branches of step ${fan.step}: ${trunk.length + 1} places, ${guesses.token.length} guesses`),
    el("thead", {}, el("tr", {}, el("th", { scope: "col" }, "accepted"), places.map((place) => el("th", { scope: "col", class: look(place) }, place)))),
    el("tbody", {},
      cells("draft", drafted),
      Array.from({ length: size.guesses }, (_, rank) => cells(`guess ${rank + 1}`, (place) => guessCell(run, guesses, guess(place, rank)))),
      cells("target", target),
      run.hits.length ? cells("hits", (place) => rateCell(rates.get(place)), "ss-fan-rates") : null));
}

/** A guess: its token, its probability as a bar, a dot for each token drafted after it. */
function guessCell(run, { token, q, length, taken }, i) {
  if (i < 0) return null;
  const text = `${quoted(gramText(run, token[i]))}, q ${probability(q[i])}, ${length[i]} drafted${taken[i] ? ", taken" : ""}`;
  return el("span", { class: `ss-guess ${taken[i] ? "ss-guess-taken" : ""}`, title: text },
    el("span", { class: "ss-sr" }, text),
    el("span", { class: "ss-guess-bar", style: `width:${(100 * (q[i] ?? 0)).toFixed(1)}%`, "aria-hidden": "true" }),
    el("span", { class: "ss-guess-text", "aria-hidden": "true" }, gramText(run, token[i]).trim() || quoted(gramText(run, token[i]))),
    el("span", { class: "ss-guess-dots", "aria-hidden": "true" }, "•".repeat(Math.min(length[i], 8))));
}

function rateCell(row) {
  if (!row) return el("span", { class: "ss-hint" }, "–");
  return el("span", { title: `${row.hits} of ${row.lookups} lookups at this place hit` },
    rateBar(row.hits / row.lookups), `${row.hits}/${row.lookups}`);
}

const fanLegend = () => legendOf("Legend of the branches", [
  ["ss-guess-taken", "taken: the next draft"], ["ss-guess", "thrown away"], ["ss-fan-miss", "not guessed"],
  el("li", {}, "• a drafted token"), el("li", {}, "bar: the drafter's probability")], "ss-keys");
