"use strict";
// What a page of attention opens with: the sharpest head, and its most telling look, in words.
const finding = {
  // All heads of a map, those with the least entropy first.
  sharpest: ({entropy}) => entropy
    .flatMap((layer, number) => layer.map((value, head) => ({layer: number, head, value})))
    .sort((a, b) => a.value - b.value),

  // The look between words that reaches farthest, of those of more than half; else the surest one.
  telling({rows, columns, at, names}) {
    let best = {query: 0, key: 0, reach: -Infinity};
    const spelled = (name) => /[\p{L}\p{N}]/u.test(name) && !/^[<[].*[>\]]$/.test(name);
    const wordless = !names.query.some(spelled); // then of any query
    for (let query = 0; query < rows; query++) {
      if (!wordless && !spelled(names.query[query])) continue;
      for (let key = 0; key < columns; key++) {
        const weight = at(query, key);
        const far = weight > 0.5 && spelled(names.key[key]);
        const reach = far ? Math.abs(query / rows - key / columns) : weight - 2;
        if (reach > best.reach) best = {query, key, reach};
      }
    }
    return best;
  },

  // A sentence for the first screen, and how sharp the head is that it is of.
  told(map, now) {
    const {rows, columns, at, names} = now;
    const [{layer, head, value}, ...others] = finding.sharpest(map);
    const {query, key} = finding.telling(now);
    const quoted = (name) => `“\u2068${name}\u2069”`;
    const kind = map.rows === map.columns ? `${map.name.toLowerCase()} self-attention` : "cross-attention";
    const among = others.length ? `the sharpest of ${others.length + 1} heads of ${kind}` : kind;
    const all = [...Array(columns).keys()];
    const clear = names.query.filter((_, row) => all.some((column) => at(row, column) > 0.5)).length;
    return [
      `${quoted(names.query[query])} looks at ${quoted(names.key[key])} with ${at(query, key).toFixed(2)} ` +
      `of its weight in layer\u00a0${layer + 1}, head\u00a0${head + 1}, ${among}.`,
      `${clear} of ${rows} queries of this head give one key more than half. The entropy of its weights ` +
      `is ${value.toFixed(2)} nats in the mean.`,
    ];
  },
};
