// Insets: views below the timeline that come only with a trace that holds what they show, whatever its method.

/**
 * Their makers, in the order shown; each takes the viewer. An inset has a `node` and update(model); where it needs them
 * at(t), range() when the timeline's window changed, highlight(run, spans) and destroy().
 */
const INSETS = [];

/** Tell all insets that know what to do with it. */
function tellInsets(insets, what, ...more) {
  for (const inset of insets ?? []) inset[what]?.(...more);
}
