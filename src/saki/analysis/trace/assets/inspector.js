// The card of one token: what was proposed, what was committed, and the numbers that the record has.

const LEAST_SHOWN = 1e-4;

function number(value, digits = 4) {
  if (!Number.isFinite(value)) return "not recorded";
  if (value === 0) return "0";
  const size = Math.abs(value);
  return size < LEAST_SHOWN || size >= 1e6 ? value.toExponential(digits - 2) : String(Number(value.toPrecision(digits)));
}

const LAWS = [
  ["p", "student"],
  ["q", "sampled"],
  ["T", "teacher"],
];

class Inspector {
  constructor(tokens) {
    this.tokens = tokens;
    this.columns = tokens.columns;
    this.laws = new Laws(tokens);
    this.card = byId("card");
    this.clear();
  }

  clear() {
    this.card.replaceChildren(
      element("h3", "", "No token chosen"),
      element("p", "faint", "Point at a token, click one to keep it here, or press n for the next correction."),
    );
  }

  show(each, t, chosen) {
    const at = each.start + t;
    const committed = this.columns.committed[at];
    const proposal = this.tokens.other("proposal", at);
    const mode = this.tokens.other("mode", at);
    const corrected = Boolean(this.columns.corrected[at]);
    const title = element("h3", corrected ? "is-correction" : "", corrected ? "Correction" : "Kept proposal");
    title.append(element("span", "faint", `  token ${t + 1} of ${each.length}${chosen ? "" : ", not chosen"}`));
    this.card.replaceChildren(
      title,
      this.#sentence(at, proposal, corrected),
      this.#names(committed, proposal, mode, corrected, each, t),
      this.#probabilities(at, each),
      this.#numbers(at, each),
    );
  }

  #sentence(at, proposal, corrected) {
    if (proposal === null) return element("p", "", "The file does not say what the student proposed.");
    const kept = number(this.columns.acceptance_probability[at], 3);
    return element(
      "p",
      "",
      corrected
        ? `The student's proposal would have been kept with probability ${kept}; it was rejected, and another token was drawn from the teacher's side.`
        : `The student's proposal was kept; the probability of that was ${kept}.`,
    );
  }

  #names(committed, proposal, mode, corrected, each, t) {
    const table = element("table", "names");
    const row = (label, index, className, same) => {
      const line = table.insertRow();
      line.append(element("th", "", label));
      line.lastChild.scope = "row";
      const cell = line.insertCell();
      if (index === null) return cell.append(element("span", "faint", "not recorded"));
      const shown = element(className || "span", `token ${this.tokens.kind(index)}`);
      shown.append(element("bdi", "", this.tokens.alone(index)));
      cell.append(shown);
      const note = [this.tokens.decoded ? `id ${this.tokens.ids[index]}` : "", same].filter(Boolean).join(", ");
      return cell.append(element("span", "faint", ` ${note}`));
    };
    row("Proposal", proposal, corrected ? "del" : "", "");
    row("Committed", committed, corrected ? "ins" : "", !corrected && proposal === committed ? "the proposal" : "");
    const same = mode === committed ? "the committed one" : mode === proposal ? "the proposal" : "";
    row("Teacher's top", mode, "", same);
    if (this.tokens.raw.has(committed)) {
      const whole = this.tokens.character(this.tokens.completion(each), t);
      const line = table.insertRow();
      line.append(element("th", "", "Part of"));
      const text = whole.text.replace(INVISIBLE, nameOfInvisible);
      const cell = line.insertCell();
      cell.append(element("bdi", "token", text), element("span", "faint", ` with ${counted(whole.tokens, "token")} in a row`));
    }
    return table;
  }

  #probabilities(at, each) {
    const table = element("table", "laws");
    table.append(element("caption", "", "Probabilities"));
    const head = table.createTHead().insertRow();
    head.append(element("td"));
    for (const [letter, owner] of LAWS) {
      const cell = element("th");
      cell.scope = "col";
      cell.append(element("span", "letter", letter), element("span", "faint", owner));
      head.append(cell);
    }
    const body = table.createTBody();
    for (const [label, found] of [
      ["Proposal", this.laws.proposal(at, each.behavior)],
      ["Committed", this.laws.committed(at)],
      ["Teacher's top", this.laws.mode(at, each.behavior)],
    ]) {
      const line = body.insertRow();
      line.append(element("th", "", label));
      line.lastChild.scope = "row";
      for (const [letter] of LAWS) line.append(this.#probability(letter, found[letter]));
    }
    return table;
  }

  #probability(letter, logprob) {
    const cell = element("td");
    if (Number.isNaN(logprob)) {
      cell.append(element("span", "faint", "unknown"));
      cell.title = "The file does not say.";
      return cell;
    }
    const bar = element("span", `fill fill-${letter}`);
    bar.style.width = `${100 * Math.exp(logprob)}%`;
    const track = element("span", "track");
    track.append(bar);
    cell.append(element("span", "value", number(Math.exp(logprob), 3)), track);
    cell.title = logprob === -Infinity ? "impossible" : `log-probability ${number(logprob, 6)} nats`;
    return cell;
  }

  #numbers(at, each) {
    const list = element("dl", "numbers");
    const bound = Math.sqrt(each.radius / 2);
    const bounded = each.radius > 0;
    const add = (name, column, meaning) => {
      list.append(element("dt", "", name));
      const cell = element("dd", "", number(this.columns[column][at]));
      cell.append(element("span", "faint", ` ${meaning}`));
      list.append(cell);
    };
    add("beta", "beta", "of the way to the teacher");
    add("KL(q‖p)", "kl", bounded ? `nats, at most ${number(each.radius)}` : "nats");
    // SKD rejects what is not among the teacher's top k, so its corrections are no maximal coupling.
    const chance = each.behavior === "skd" ? "at most the chance of a correction" : "chance of a correction";
    add("TV(p, q)", "tv", bounded ? `${chance}, at most ${number(bound)}` : chance);
    add("Acceptance", "acceptance_probability", "chance of this proposal");
    return list;
  }
}
