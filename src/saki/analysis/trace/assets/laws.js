// Log-probabilities of the proposal, the committed token and the teacher's top under p, q and T; NaN where the file
// does not say. A file leaves out what it has said of the committed token, and q of the other two follows from it.

const NOT_KNOWN = { p: NaN, q: NaN, T: NaN };

class Laws {
  constructor(tokens) {
    this.tokens = tokens;
    this.columns = tokens.columns;
  }

  committed(at) {
    const { student_logprobs: p, behavior_logprobs: q, teacher_logprobs: T } = this.columns;
    return { p: p[at], q: q[at], T: T[at] };
  }

  proposal(at, behavior) {
    const token = this.tokens.other("proposal", at);
    if (token === null) return NOT_KNOWN;
    if (token === this.columns.committed[at]) return this.committed(at);
    const p = this.columns.proposal_logprobs[at];
    // A bridge rejects with probability 1 - q(z)/p(z), so the chance of acceptance is the ratio itself.
    const q = this.#isBridge(at, behavior) ? p + Math.log(this.columns.acceptance_probability[at]) : NaN;
    return { p, q, T: this.columns.proposal_teacher_logprobs[at] };
  }

  mode(at, behavior) {
    const token = this.tokens.other("mode", at);
    if (token === null) return NOT_KNOWN;
    if (token === this.columns.committed[at]) return this.committed(at);
    if (token === this.tokens.other("proposal", at)) return this.proposal(at, behavior);
    const p = this.columns.mode_student_logprobs[at];
    const T = this.columns.mode_teacher_logprobs[at];
    return { p, q: this.#isBridge(at, behavior) ? this.#bridge(at, p, T) : NaN, T };
  }

  // log q = (1 - beta) log p + beta log T - log Z, with log Z from the committed token.
  #bridge(at, p, T) {
    const beta = this.columns.beta[at];
    if (beta === 0 || p === -Infinity) return p;
    const own = this.committed(at);
    const logPartition = beta * (own.T - own.p) - (own.q - own.p);
    return Math.min(p + beta * (T - p) - logPartition, 0);
  }

  // SKD has no beta and records 0; a bridge with beta 0 is the student itself.
  #isBridge(at, behavior) {
    if (behavior === null) return this.columns.beta[at] > 0 || this.columns.tv[at] === 0;
    return behavior !== "skd";
  }
}
