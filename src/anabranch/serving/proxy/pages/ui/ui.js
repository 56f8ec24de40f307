// The page: asks the proxy again and again which runs there are and what the chosen one does, and shows it.
// Everything that a model or a client wrote is put in as text, never as markup.

import { Refused, forgetKey, hasKey, listRuns, readRun, setKey, traceFile } from "./api.js";
import { Detail } from "./detail.js";
import { RunList, put } from "./list.js";
import { Timeline } from "./timeline.js";
import { count } from "./words.js";

const BUSY_MS = 500;
const IDLE_MS = 3000;
const MOST_RUNS = 100;

const $ = (id) => document.getElementById(id);

class Page {
  #runs = [];
  #list = new RunList($("runs"), (id) => this.#choose(id, { follow: false }));
  #detail = new Detail();
  #open = null;
  #follow = true;
  #timer = null;
  #reading = false;
  #again = false;

  constructor() {
    $("follow").addEventListener("click", () => {
      const id = this.#follow ? this.#open?.id : this.#runs[0]?.run_id;
      this.#choose(id ?? "", { follow: !this.#follow });
    });
    $("save").addEventListener("click", () => this.#save());
    $("key-form").addEventListener("submit", (event) => this.#takeKey(event));
    document.addEventListener("visibilitychange", () => this.#poll());
    addEventListener("hashchange", () => this.#fromAddress());
    this.#fromAddress();
  }

  #fromAddress() {
    const id = new URLSearchParams(location.hash.slice(1)).get("run");
    if (id && id !== this.#open?.id) this.#choose(id, { follow: false });
    else this.#poll();
  }

  #choose(id, { follow }) {
    this.#follow = follow;
    $("follow").setAttribute("aria-pressed", String(follow));
    if (id) this.#openRun(id);
    history.replaceState(null, "", follow || !id ? location.pathname + location.search : `#run=${encodeURIComponent(id)}`);
    this.#list.show(this.#runs, this.#open?.id);
    this.#poll();
  }

  #openRun(id) {
    if (this.#open?.id === id) return;
    this.#open = { id, run: new Timeline(), next: 0, over: false };
    this.#detail.open(null);
  }

  /** Ask, show, and ask again after a while; not while nobody looks. */
  async #poll() {
    clearTimeout(this.#timer);
    if (document.hidden || !$("key-form").hidden) return;
    if (this.#reading) {
      this.#again = true;
      return;
    }
    this.#reading = true;
    let wait = IDLE_MS;
    try {
      do {
        this.#again = false;
        await this.#read();
      } while (this.#again);
      if (this.#runs.some((run) => run.state === "running")) wait = BUSY_MS;
    } catch (error) {
      this.#failed(error);
    } finally {
      this.#reading = false;
    }
    this.#timer = setTimeout(() => this.#poll(), wait);
  }

  async #read() {
    this.#runs = await listRuns(MOST_RUNS);
    if (this.#runs.length && (this.#follow || !this.#open)) this.#openRun(this.#runs[0].run_id);
    $("main").hidden = false;
    $("empty").hidden = this.#runs.length > 0 || this.#open !== null;
    this.#list.show(this.#runs, this.#open?.id);
    const running = this.#runs.filter((run) => run.state === "running").length;
    if (running) this.#say(`${running} running, ${this.#runs.length - running} recent`, "busy");
    else this.#say(this.#runs.length ? count(this.#runs.length, "recent run") : "", "");
    if (this.#open && !this.#open.over) await this.#readRun(this.#open);
  }

  async #readRun(open) {
    let body;
    try {
      body = await readRun(open.id, open.next);
    } catch (error) {
      if (!(error instanceof Refused) || error.status !== 404) throw error;
      open.over = true;
      if (open === this.#open) this.#say("this run is not among the recent ones", "bad");
      return;
    }
    const first = open.next === 0;
    for (const event of body.events) open.run.feed(event);
    open.next = body.next;
    open.over = body.state !== "running";
    if (open !== this.#open) return;
    if (first) this.#detail.open(open.run);
    this.#detail.update(body, body.wall_s);
  }

  #failed(error) {
    if (error instanceof Refused && error.status === 401) this.#askForKey(error);
    else if (error instanceof Refused) this.#say(`${error.message}; trying again`, "bad");
    else this.#say("the proxy cannot be reached; trying again", "bad");
    if (!(error instanceof Refused) && !(error instanceof TypeError)) console.error(error);
  }

  #askForKey(error) {
    put($("key-problem"), hasKey() ? `That key was not accepted: ${error.message}` : "");
    forgetKey();
    $("key-form").hidden = false;
    $("main").hidden = true;
    this.#say("", "");
    $("key").focus();
  }

  #takeKey(event) {
    event.preventDefault();
    setKey($("key").value.trim());
    $("key").value = "";
    $("key-form").hidden = true;
    this.#poll();
  }

  async #save() {
    if (!this.#open) return;
    const { id } = this.#open;
    try {
      const link = document.createElement("a");
      link.href = URL.createObjectURL(await traceFile(id));
      link.download = `run-${id.slice(0, 12)}.jsonl`;
      link.click();
      setTimeout(() => URL.revokeObjectURL(link.href), 10_000);
    } catch (error) {
      this.#failed(error);
    }
  }

  #say(words, look) {
    put($("status"), words);
    $("status").className = look;
    document.title = look === "busy" ? `Anabranch: ${words}` : "Anabranch: runs";
  }
}

new Page();
