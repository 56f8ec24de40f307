// The list of runs. Its buttons stay the same elements while their words change, so that the focus stays, too.

import { clip, clock, count, oneLine, seconds } from "./words.js";

export class RunList {
  #list;
  #choose;
  #items = new Map();

  constructor(list, choose) {
    this.#list = list;
    this.#choose = choose;
  }

  show(runs, chosen) {
    const kept = new Set(runs.map((run) => run.run_id));
    for (const [id, item] of this.#items) {
      if (kept.has(id)) continue;
      item.row.remove();
      this.#items.delete(id);
    }
    runs.forEach((run, index) => {
      const item = this.#item(run.run_id);
      if (this.#list.children[index] !== item.row) this.#list.insertBefore(item.row, this.#list.children[index] ?? null);
      fill(item, run, run.run_id === chosen);
    });
  }

  #item(id) {
    if (!this.#items.has(id)) this.#items.set(id, this.#create(id));
    return this.#items.get(id);
  }

  #create(id) {
    const row = document.createElement("li");
    const button = document.createElement("button");
    button.type = "button";
    button.addEventListener("click", () => this.#choose(id));
    const parts = {};
    for (const name of ["top", "question", "bottom"]) {
      parts[name] = document.createElement("span");
      parts[name].className = name;
      button.append(parts[name]);
    }
    for (const name of ["state", "strategy", "time"]) {
      parts[name] = document.createElement("span");
      parts[name].className = name;
      parts.top.append(parts[name]);
    }
    row.append(button);
    return { row, button, ...parts };
  }
}

function fill(item, run, chosen) {
  item.button.className = run.state;
  item.button.setAttribute("aria-current", String(chosen));
  put(item.state, run.state);
  put(item.strategy, clip(oneLine(run.strategy), 40));
  put(item.time, run.started_at === null ? "" : clock(run.started_at));
  put(item.question, oneLine(run.question) || "(no text)");
  put(item.bottom, `${seconds(run.wall_s)} · ${count(run.branches, "branch")} · ${count(run.tokens, "token")}`);
}

/** Set a text, if it is another one. */
export function put(element, text) {
  if (element.textContent !== text) element.textContent = text;
}
