// The document as it is sent has columns in place of lists of rows (traces/view/packed.py); here they become lists.

/** Turn the columns of a document's runs into lists, in place. A document with lists stays as it is. */
function unpack(model) {
  for (const run of model.runs ?? []) {
    for (const name of ["tokens", "ghosts", "rounds", "lengths", "band"]) if (run[name]) run[name] = rowsOf(run[name]);
    for (const track of run.tracks ?? []) {
      track.waits = rowsOf(track.waits);
      for (const [name, column] of Object.entries(track.spans ?? {})) track.spans[name] = valuesOf(column);
    }
  }
  return model;
}

function rowsOf(list) {
  if (Array.isArray(list)) return list;
  if (list.tuples) {
    const columns = list.tuples.map(valuesOf);
    return Array.from({ length: list.rows }, (_, i) => columns.map((column) => column[i]));
  }
  const names = Object.keys(list.columns);
  const columns = names.map((name) => valuesOf(list.columns[name]));
  const rows = Array.from({ length: list.rows }, (_, i) => {
    const row = {};
    for (let k = 0; k < names.length; k++) row[names[k]] = columns[k][i];
    return row;
  });
  for (const [name, places] of Object.entries(list.absent)) for (const i of places) rows[i][name] = undefined;
  return rows;
}

function valuesOf(column) {
  if (Array.isArray(column)) return column;
  return column.codes ? valuesOf(column.codes).map((code) => column.names[code]) : numbersOf(column);
}

const TYPES = { Int8: Int8Array, Int16: Int16Array, Int32: Int32Array, Float64: Float64Array };

function numbersOf({ type, data, per }) {
  const text = atob(data);
  const bytes = new Uint8Array(text.length);
  for (let i = 0; i < bytes.length; i++) bytes[i] = text.charCodeAt(i);
  const typed = new TYPES[type](bytes.buffer);
  const numbers = new Array(typed.length); // a loop takes a third of the time of Array.from
  for (let i = 0; i < numbers.length; i++) numbers[i] = typed[i] / per;
  return numbers;
}
