// The completion that is open: its text token by token, the choice of a token, and the way between corrections.

const BLOCK_TOKENS = 200; // a block ends at the first line break behind so many; browsers skip blocks out of sight

class Reader {
  constructor(tokens, shading, onChoice) {
    Object.assign(this, { tokens, shading, onChoice, columns: tokens.columns, open: null, chosen: null, hits: [] });
    this.box = byId("text");
    this.inspector = new Inspector(tokens);
    this.pattern = null;
    this.box.addEventListener("pointerover", (event) => this.#preview(event.target));
    this.box.addEventListener("pointerleave", () => this.#back());
    this.box.addEventListener("click", (event) => {
      const found = event.target.closest("[data-t]");
      if (found && getSelection().isCollapsed) this.choose(Number(found.dataset.t));
    });
    this.box.addEventListener("focusin", (event) => {
      const found = event.target.closest("[data-t]");
      if (found && Number(found.dataset.t) !== this.chosen) this.choose(Number(found.dataset.t));
    });
    const strip = byId("strip");
    strip.addEventListener("click", (event) => {
      const box = strip.getBoundingClientRect();
      this.#chooseNear(((event.clientX - box.left) / box.width) * this.open.length - 0.5);
    });
    new ResizeObserver(() => this.redraw()).observe(strip);
  }

  show(each) {
    this.open = each;
    this.chosen = null;
    byId("heading").textContent = nameOf(each);
    this.#facts(each);
    const prompt = this.tokens.prompt(each.prompt);
    byId("prompt-text").replaceChildren(...[...prompt].map((index) => this.#plain(index)));
    byId("prompt").hidden = prompt.length === 0;
    this.#write();
    this.inspector.clear();
    byId("reader").scrollTop = 0;
    this.redraw();
    this.#where();
  }

  #facts(each) {
    const ends = { stop: "an end token", length: "the length limit: cut", nan: "a model that gave NaN" };
    const share = each.length ? ` (${((100 * each.corrections.length) / each.length).toFixed(1)} %)` : "";
    const pairs = [
      ["Corrections", `${each.corrections.length} in ${counted(each.length, "token")}${share}`],
      ["Ended by", ends[each.finish] ?? each.finish],
      ["Answer", each.correct === null ? null : ANSWERS[each.correct]],
      ["Method", each.method],
      ["Radius", `${number(each.radius)} nats`],
      ["Student version", each.version],
      ["Seed", each.seed],
      ["File", `${each.file}, row ${each.row}`],
    ];
    byId("facts").replaceChildren(
      ...pairs
        .filter(([, value]) => value !== null)
        .map(([name, value]) => {
          const pair = element("div");
          pair.append(element("dt", "", name), element("dd", "", String(value)));
          return pair;
        }),
    );
  }

  #plain(index) {
    return element("span", this.tokens.kind(index), this.tokens.running[index]);
  }

  #write() {
    const { open: each, columns, tokens } = this;
    const blocks = [];
    let block = element("div", "block");
    let inBlock = 0;
    this.spans = [];
    for (let t = 0; t < each.length; t++) {
      const at = each.start + t;
      const index = columns.committed[at];
      const corrected = columns.corrected[at];
      const span = document.createElement(corrected ? "ins" : "span");
      span.textContent = tokens.running[index];
      span.dataset.t = t;
      span.tabIndex = -1;
      const level = this.shading.level(at);
      const names = [tokens.kind(index), level ? `s${level}` : "", corrected ? "corrected" : ""];
      if (columns.mode[at] > 0) names.push("other");
      span.className = names.join(" ").trim();
      if (corrected) {
        const proposal = tokens.other("proposal", at);
        const shown = proposal === null ? "?" : tokens.alone(proposal);
        const rejected = element("del", "rejected", shown);
        rejected.dataset.t = t;
        span.setAttribute("role", "button");
        span.setAttribute("aria-label", `correction: proposed ${shown}, committed ${tokens.alone(index)}`);
        block.append(rejected);
      }
      block.append(span);
      this.spans.push(span);
      inBlock++;
      if (inBlock >= BLOCK_TOKENS && tokens.texts[index].endsWith("\n")) {
        blocks.push(block);
        block = element("div", "block");
        inBlock = 0;
      }
    }
    blocks.push(block);
    this.box.replaceChildren(...blocks);
    if (this.spans.length) this.spans[0].tabIndex = 0;
    byId("end").textContent = each.length ? "" : "This completion holds no token.";
    this.mark(this.pattern);
  }

  // Marks what the search found; the hits are first tokens of matches.
  mark(pattern) {
    this.pattern = pattern;
    for (const span of this.box.querySelectorAll(".hit")) span.classList.remove("hit");
    this.hits = [];
    if (!pattern || !this.open) return;
    const ends = new Uint32Array(this.open.length);
    const completion = this.tokens.completion(this.open);
    const text = this.tokens.text(completion, ends);
    let t = 0;
    pattern.lastIndex = 0; // the search through the list leaves it where it stopped
    for (const match of text.matchAll(pattern)) {
      const end = match.index + match[0].length;
      while (t < ends.length && ends[t] <= match.index) t++;
      this.hits.push(t);
      // A match ends with the token that reaches its end, and with further parts of a character that it ends with.
      const within = (i) => i === t || ends[i - 1] < end || (ends[i] === end && this.tokens.kind(completion[i]) === "bytes");
      for (let i = t; i < ends.length && within(i); i++) this.spans[i].classList.add("hit");
    }
  }

  reshade() {
    for (let t = 0; t < this.spans.length; t++) {
      const { classList } = this.spans[t];
      const level = this.shading.level(this.open.start + t);
      for (let each = 1; each <= LEVELS; each++) classList.toggle(`s${each}`, each === level);
    }
    this.redraw();
  }

  redraw() {
    if (this.open) drawStrip(byId("strip"), this.open, { shading: this.shading, selected: this.chosen });
  }

  #preview(target) {
    const found = target.closest("[data-t]");
    if (found) this.inspector.show(this.open, Number(found.dataset.t), Number(found.dataset.t) === this.chosen);
    else this.#back();
  }

  #back() {
    if (this.chosen === null) this.inspector.clear();
    else this.inspector.show(this.open, this.chosen, true);
  }

  choose(t) {
    if (!this.open || t < 0 || t >= this.open.length) return;
    this.letGo();
    this.chosen = t;
    const span = this.spans[t];
    for (const each of this.box.querySelectorAll('[tabindex="0"]')) each.tabIndex = -1;
    span.tabIndex = 0;
    span.classList.add("chosen");
    span.setAttribute("aria-describedby", "card");
    span.focus({ preventScroll: true });
    span.scrollIntoView({ block: "nearest" });
    this.inspector.show(this.open, t, true);
    this.redraw();
    this.#where();
    this.onChoice();
  }

  letGo() {
    if (this.chosen === null) return;
    const span = this.spans[this.chosen];
    span.classList.remove("chosen");
    span.removeAttribute("aria-describedby");
    this.chosen = null;
    this.inspector.clear();
    this.redraw();
    this.#where();
  }

  move(step) {
    this.choose(this.chosen === null ? 0 : Math.min(Math.max(this.chosen + step, 0), this.open.length - 1));
  }

  // The next of some ascending positions in a direction; says whether there was one.
  jump(positions, step) {
    const here = this.chosen ?? (step > 0 ? -1 : this.open.length);
    const ahead = step > 0 ? positions.find((t) => t > here) : positions.findLast((t) => t < here);
    if (ahead === undefined) return false;
    this.choose(ahead);
    return true;
  }

  #chooseNear(t) {
    const near = this.open.corrections.find((each) => Math.abs(each - t) <= Math.max(this.open.length / 120, 0.5));
    this.choose(near ?? Math.min(Math.max(Math.round(t), 0), this.open.length - 1));
  }

  #where() {
    const { corrections } = this.open;
    const at = corrections.indexOf(this.chosen);
    byId("where").textContent = at < 0 ? counted(corrections.length, "correction") : `correction ${at + 1} of ${corrections.length}`;
    byId("prev-correction").disabled = byId("next-correction").disabled = corrections.length === 0;
  }
}
