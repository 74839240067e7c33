// Insets: views below the timeline, shown for the runs whose document has their section.

/**
 * Functions that make an inset for a viewer, in the order shown. An inset has a `node` and update(model), and may have
 * at(t), range() for a new window of the timeline, followed(model) for another chosen sequence, destroy() and
 * highlight(run, spans, span): spans linked with a token or with the span that is pointed at.
 */
const INSETS = [];

/** Call a method of all insets that have it. */
function callInsets(insets, method, ...args) {
  for (const inset of insets ?? []) inset[method]?.(...args);
}
