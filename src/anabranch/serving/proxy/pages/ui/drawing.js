// An SVG that is drawn anew many times a second: elements are kept by key, and only what differs is touched.

const SVG = "http://www.w3.org/2000/svg";

export class Drawing {
  #svg;
  #shapes = new Map();
  #pass = 0;

  constructor(svg) {
    this.#svg = svg;
  }

  begin() {
    this.#pass += 1;
  }

  /** An element with these attributes, below `into` or the drawing itself; `text` is its text and nothing else. */
  shape(key, tag, attributes, { into = this.#svg, text = null } = {}) {
    let shape = this.#shapes.get(key);
    if (!shape) {
      shape = { element: document.createElementNS(SVG, tag), set: {}, text: null };
      this.#shapes.set(key, shape);
      into.append(shape.element);
    }
    shape.pass = this.#pass;
    for (const [name, value] of Object.entries(attributes)) {
      const said = typeof value === "number" ? String(Math.round(value * 10) / 10) : value;
      if (shape.set[name] === said) continue;
      shape.set[name] = said;
      shape.element.setAttribute(name, said);
    }
    if (text !== null && text !== shape.text) {
      shape.text = text;
      shape.element.textContent = text;
    }
    return shape.element;
  }

  /** Remove what was not drawn since `begin`. */
  end() {
    for (const [key, shape] of this.#shapes) {
      if (shape.pass === this.#pass) continue;
      shape.element.remove();
      this.#shapes.delete(key);
    }
  }
}
