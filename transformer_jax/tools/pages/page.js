"use strict";
// What the scripts of all pages share. Texts are always set as text, never as HTML.
const page = {
  data: JSON.parse(document.getElementById("data").textContent),

  // page.element("button", {type: "button", onclick: f}, "Text", child ...). Names that begin with
  // "on" are listeners, all others attributes; null and false leave one out.
  element(tag, attributes = {}, ...children) {
    const node = document.createElement(tag);
    for (const [name, value] of Object.entries(attributes)) {
      if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
      else if (value !== null && value !== false) node.setAttribute(name, value);
    }
    node.append(...children);
    return node;
  },

  // The values of what `numbers` of page.py wrote, as a Float32Array with a `shape`.
  numbers(encoded) {
    const text = atob(encoded.float32);
    const bytes = new Uint8Array(text.length);
    for (let i = 0; i < text.length; i++) bytes[i] = text.charCodeAt(i); // may be 100 MB
    const values = new Float32Array(bytes.buffer);
    values.shape = encoded.shape;
    return values;
  },

  // Keyboard: page.keys({n: f, ArrowLeft: g}). Keys mean nothing while one types or chooses, nor
  // with Ctrl, Alt or Meta, which are the browser's.
  keys(handlers) {
    document.addEventListener("keydown", (event) => {
      const busy = event.target.closest?.("input, select, textarea");
      const handler = handlers[event.key];
      if (!handler || busy || event.ctrlKey || event.altKey || event.metaKey) return;
      event.preventDefault();
      handler(event);
    });
  },

  // A colour of page.css, such as page.colour("accent").
  colour(name) {
    return getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim();
  },

  // Calls f when the reader changes between light and dark: what is drawn has to be drawn again.
  onTheme(f) {
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", f);
  },

  // Offers a text as a file.
  save(name, type, text) {
    const address = URL.createObjectURL(new Blob([text], {type}));
    page.element("a", {href: address, download: name}).click();
    setTimeout(() => URL.revokeObjectURL(address), 1000);
  },
};
