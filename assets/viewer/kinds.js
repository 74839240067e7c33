// The kinds of work, in the order of the legend. Each has the colours `--ss-<kind>` and `--ss-<kind>-edge`.
// `words`: what the legend says in place of the name; `vain`: why the work was wasted where no token of it was accepted.

const KINDS = {
  draft: { drafts: true },
  "draft-second": { words: "draft, second batch" },
  glue: { drafts: true, words: "glue (the drafter reads the draft that is verified)", vain: "No branch after it was taken: the work was wasted." },
  branch: { drafts: true, words: "branch (one more token for each guessed outcome)", vain: "None of its tokens was accepted: the work was wasted." },
  verify: {},
  "verify-second": { words: "verify, second batch" },
  "pre-verify": { words: "pre-verify (a draft's first token, while it is drafted)" },
  calibrate: {},
  communicate: {},
  sample: {},
  other: { words: "other work" },
  step: { words: "a whole step, not divided" },
  prefill: {},
  queue: { words: "requests wait for a KV slot" },
};
