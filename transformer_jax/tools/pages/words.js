"use strict";
// Words in the place of pieces, where a tokenizer cuts words into several.
const words = {
  // The first piece of each word, of `labels` and of the text that they make: `ends` is how much of
  // it there is after each piece, in characters, null where a piece is no text. Words are Unicode's
  // (UAX 29), as the browser finds them; blanks belong to the word that follows.
  starts(labels, {text, ends}) {
    const characters = Array.from(text);
    const units = [0]; // where each character begins for JavaScript
    for (const one of characters) units.push(units.at(-1) + one.length);
    const begins = new Set();
    for (const {segment, index} of new Intl.Segmenter("en", {granularity: "word"}).segment(text)) {
      if (segment.trim()) begins.add(index);
    }
    const starts = [];
    let from = 0, alone = true, blank = false; // what the piece before was
    ends.forEach((end, piece) => {
      const part = characters.slice(from, end ?? from);
      const first = part.findIndex((one) => one.trim());
      const word = first >= 0 && begins.has(units[from + first]);
      const only_blanks = part.length > 0 && first < 0;
      if (alone || end === null || (!blank && (word || only_blanks))) starts.push(piece);
      // What adds nothing is a mark before the first word, or a byte of a character.
      blank = only_blanks || (part.length === 0 && (alone || blank));
      alone = end === null;
      from = end ?? from;
    });
    return starts;
  },

  // The names of words: their text, or what a piece that is no text is called.
  names(labels, {text, ends}, starts) {
    const characters = Array.from(text);
    return starts.map((start, word) => {
      const last = (starts[word + 1] ?? labels.length) - 1;
      if (last === start) return labels[start].trim();
      const from = ends.slice(0, start).findLast((end) => end !== null) ?? 0;
      return characters.slice(from, ends[last]).join("").trim() || labels.slice(start, last + 1).join("");
    });
  },

  // Weights between words: a query's is the mean of its pieces', a key's is their sum.
  weights(values, start, columns, queries, keys, rows) {
    const weights = new Float32Array(queries.length * keys.length);
    queries.forEach((first, query) => {
      const end = queries[query + 1] ?? rows;
      keys.forEach((left, key) => {
        const right = keys[key + 1] ?? columns;
        let sum = 0;
        for (let row = first; row < end; row++) {
          for (let column = left; column < right; column++) sum += values[start + row * columns + column];
        }
        weights[query * keys.length + key] = sum / (end - first);
      });
    });
    return weights;
  },
};
