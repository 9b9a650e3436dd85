r"""Bring answers into a form in which math-verify reads them as they are meant."""

from __future__ import annotations

import re

_UNICODE = {
    "−": "-",
    "–": "-",
    "×": r"\times ",
    "·": r"\cdot ",
    "÷": "/",
    "π": r"\pi ",
    "∞": r"\infty ",
    "°": r"^\circ ",
    "≤": r"\le ",
    "≥": r"\ge ",
    "∪": r"\cup ",
    "±": r"\pm ",
    "∈": r"\in ",
    "√": r"\sqrt ",
    "²": "^{2}",
    "³": "^{3}",
    "½": r"\frac{1}{2}",
    "¼": r"\frac{1}{4}",
    "¾": r"\frac{3}{4}",
    "\u00a0": " ",
    "\u202f": " ",
    "\u2009": " ",
}

_SIZES = re.compile(r"\\(?:left|right|bigg?|Bigg?)[lrm]?(?![a-zA-Z])\s*\.?")
_SPACES = re.compile(r"(?<!\\)\\[!,;:> ]|~|\\(?:quad|qquad|displaystyle|limits)(?![a-zA-Z])")
_THOUSANDS = re.compile(r"(?<=\d)(?:,\s*\\!\s*|\{,\}\s*|\\,\s*|\\!\s*)(?=\d{3}(?!\d))")
_PLAIN_THOUSANDS = re.compile(r"(?<![\d.,(\[{])\d{1,3}(?:,\d{3})+(?!\d|,\d)")
_DOLLARS_BETWEEN = re.compile(r"(?<!\\)\$\s*([,;])\s*\$")
_REPEATING = re.compile(
    r"(?<![\w.])(\d*)\.(\d*)\s*\\(?:overline|bar|dot)\s*(?:\{\s*(\d+)\s*\}|(\d))(?!\s*(?:\d|\\dot))"
)
_IMAGINARY = re.compile(r"\\sqrt\s*(?:\{\s*-\s*1\s*\}|\(\s*-\s*1\s*\))")
_E_NOTATION = re.compile(r"(?<![\w.\\])(\d+\.?\d*|\.\d+)[eE]([+-]?\d+)(?![\w.^])")
_TEXT = r"\\(?:text|mbox|mathrm|textrm|textbf|textit|mathbf|textsf|mathsf|operatorname)"
_ROW_GAP = re.compile(r"\\\\\s*\[\s*-?[\d.]+\s*(?:pt|em|ex|mm|cm|in|px)\s*\]")
_NUMBER_IN_TEXT = re.compile(_TEXT + r"\s*\{\s*([+-]?(?:\d[\d,]*\.?\d*|\.\d+))\s*([a-zA-Z ]*)\}")
_UPRIGHT = re.compile(r"\\(?:mathrm|text|operatorname|textrm)\s*\{\s*([ie])\s*\}")
_DRESS = re.compile(r"\\(?:textcolor|color)\s*\{\s*\w+\s*\}\s*(?=\{)|\\(?:underline|mathbf|boldsymbol|bm)\s*(?=\{)")
_CONNECTIVES = re.compile(_TEXT + r"\s*\{\s*,?\s*(?:and|or)\s*,?\s*\}|(?<![a-zA-Z\\])(?:and|or)(?![a-zA-Z])")
_FUNCTION = re.compile(
    r"(?<![a-zA-Z\\])(?:np\.)?(arcsin|arccos|arctan|sinh|cosh|tanh|sin|cos|tan|cot|ln|log|exp)(?=\s*\()"
)
_ROOT = re.compile(r"(?<![a-zA-Z\\])(?:np\.)?sqrt\s*\(([^()]*)\)")
_BRACELESS_FRACTION = re.compile(r"\\frac\s*(\d)\s*(\d)(?!\d)|\\frac\s*(\d)\s*\{|\\frac\s*(\{[^{}]*\})\s*(\d)")


def rewrite(text: str, *, e_notation: bool = True, thousands: bool = True) -> str:
    r"""Remove typography that carries no meaning; write what math-verify misreads in another way.

    Dollars (delimiters and currency), sizes of brackets and thin spaces go; thousands separators in all their forms
    close up; ``\dfrac`` and the like become ``\frac``; connectives become commas; ``1e-5``, which math-verify reads
    as e times 1 minus 5, becomes ``1 \times 10^{-5}``; ``0.\overline{3}`` becomes its fraction.

    Args:
        text: Content of a box, or a gold answer.
        e_notation: Whether e-notation is rewritten.
        thousands: Whether a bare comma, as in ``100,200``, may separate thousands; else it is a list's. A comma
            between two formulas (``$100$,$200$``) or before a space is a list's in any case.

    Returns:
        The answer as LaTeX without delimiters.
    """
    for character, latex in _UNICODE.items():
        text = text.replace(character, latex)
    text = _SIZES.sub("", text)
    text = _DOLLARS_BETWEEN.sub(r"\1 ", text)
    text = text.replace(r"\$", "").replace("$", "")
    text = _undressed(_ROW_GAP.sub(r"\\\\", text))
    text = _NUMBER_IN_TEXT.sub(_number_before_text, text)
    text = _UPRIGHT.sub(r" \1 ", text)
    text = re.sub(r"\\[()\[\]]", "", text) if re.match(r"\s*\\[(\[]", text) else text
    text = _THOUSANDS.sub("", text)
    text = _SPACES.sub(" ", text)
    if thousands:
        text = _PLAIN_THOUSANDS.sub(lambda match: match[0].replace(",", ""), text)
    text = re.sub(r"\\[dtc]frac(?![a-zA-Z])", r"\\frac", text)
    text = _BRACELESS_FRACTION.sub(_with_braces, text)
    text = _REPEATING.sub(_as_fraction, text)
    text = _CONNECTIVES.sub(" , ", text)
    text = _ROOT.sub(r"\\sqrt{\1}", _FUNCTION.sub(r"\\\1", text))
    text = _IMAGINARY.sub(" i ", text)  # math-verify takes i for a variable
    # Math-verify reads E as Euler's number even where it has an index, and knows no symbols of sun and earth.
    text = re.sub(r"(?<![a-zA-Z\\])E\s*_", r"\\Xi_", text).replace(r"\odot", "o").replace(r"\oplus", "p")
    if e_notation:
        text = repair_e_notation(text)
    text = re.sub(r"\s+", " ", text).strip()
    return text.rstrip(".").strip() if not text.endswith("..") else text


def repair_e_notation(text: str) -> str:
    r"""``4.5e33`` as ``4.5 \times 10^{33}``.

    Args:
        text: LaTeX or plain text.
    """
    return _E_NOTATION.sub(lambda match: rf"{match[1]} \times 10^{{{int(match[2])}}}", text)


def has_e_notation(text: str) -> bool:
    """Whether there is a number in e-notation.

    Args:
        text: LaTeX or plain text.
    """
    return _E_NOTATION.search(text) is not None


def has_bare_comma(text: str, *, in_threes: bool = False) -> bool:
    """Whether a comma could as well separate thousands as the numbers of a list, as in ``100,200``.

    Args:
        text: LaTeX or plain text.
        in_threes: Whether to count only what is a likely list: one in which all groups have three digits. ``58,500``
            is a number to whoever writes answers with care.
    """
    merged, listed = rewrite(text, e_notation=False), rewrite(text, e_notation=False, thousands=False)
    if merged == listed:
        return False
    return not in_threes or all(match[0].index(",") == 3 for match in _PLAIN_THOUSANDS.finditer(listed))


def plain_words(text: str) -> str | None:
    r"""The words of an answer in words, such as ``evelyn`` for ``\text{Evelyn}`` and ``c`` for ``\textbf{(C)}``.

    Args:
        text: A rewritten answer.

    Returns:
        Lower-case words, or None where it is mathematics: something besides letters, or a single letter that stands
        for a variable.
    """
    inner = re.sub(_TEXT + r"\s*\{([^{}]*)\}", r" \1 ", text)
    words = " ".join(re.sub(r"[().,;:'\"*]", " ", inner).split())
    if not words or not all(word.replace("-", "").isalpha() for word in words.split()):
        return None
    return words.lower() if len(words) > 1 or inner != text or "(" in text else None


def is_difference(text: str) -> bool:
    """Whether an answer of letters is a difference of variables, as ``n-k``, and no word with a hyphen."""
    return re.fullmatch(r"\s*[a-zA-Z](?:\s*-\s*[a-zA-Z])+\s*", text) is not None


def _undressed(text: str) -> str:
    """Without colours, lines under and bold type around mathematics; bold words are left, which are no mathematics."""
    begin = 0
    while match := _DRESS.search(text, begin):
        depth, end = 0, match.end()
        for end in range(match.end(), len(text)):
            depth += {"{": 1, "}": -1}.get(text[end], 0)
            if depth == 0:
                break
        inner = text[match.end() + 1 : end]
        if depth != 0 or ("mathbf" in match[0] and inner.strip("() ").isalpha()):
            begin = match.end()
        else:
            text = f"{text[: match.start()]} {inner} {text[end + 1 :]}"
            begin = match.start()
    return text


def _number_before_text(match: re.Match[str]) -> str:
    """A number out of its text, with the words behind it still in one."""
    return f"{match[1]} \\text{{{match[2]}}}" if match[2].strip() else match[1]


def _as_fraction(match: re.Match[str]) -> str:
    """A decimal that repeats: the digits up to the end of the first period, less those before it, over 99...900...0."""
    whole, fixed, period = match[1], match[2], match[3] or match[4]
    top = int(whole + fixed + period) - int(whole + fixed or "0")
    return rf"\frac{{{top}}}{{{'9' * len(period)}{'0' * len(fixed)}}}"


def _with_braces(match: re.Match[str]) -> str:
    if match[1]:
        return rf"\frac{{{match[1]}}}{{{match[2]}}}"
    if match[3]:
        return rf"\frac{{{match[3]}}}{{"
    return rf"\frac{match[4]}{{{match[5]}}}"
