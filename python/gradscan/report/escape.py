"""Text from recordings made harmless for the place where it is shown.

Run names, tags and messages are whatever somebody once logged. Each function here takes such text and returns text
that its medium shows as written: no terminal escape sequence, no HTML or Markdown structure, no spreadsheet
formula.
"""

from __future__ import annotations

import html as _html
import re

__all__ = ["csv_cell", "html", "json_text", "markdown", "terminal"]

# C0 and C1 controls and DEL; bidirectional marks, embeddings, overrides and isolates; zero-width and soft hyphens
# that hide differences; line and paragraph separators; tags; lone surrogates, which cannot be encoded. The
# zero-width joiner stays, emoji and several scripts need it.
_UNSAFE = re.compile(
    "[\x00-\x1f\x7f-\x9f\u00ad\u061c\u180e\u200b\u200e\u200f\u2028-\u202e\u2060-\u2069\ufeff\ufff9-\ufffb\ud800-\udfff\U000e0000-\U000e007f]"
)
_NAMED = {"\n": "\\n", "\r": "\\r", "\t": "\\t"}


def _code(match: re.Match[str]) -> str:
    char = match.group()
    if char in _NAMED:
        return _NAMED[char]
    code = ord(char)
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"


def terminal(text: str) -> str:
    """One line for a terminal: controls, escapes and direction marks become visible codes such as `\\x1b`."""
    return _UNSAFE.sub(_code, text)


def html(text: str) -> str:
    """Text for an HTML element or a quoted attribute."""
    return _html.escape(_UNSAFE.sub(_code, text), quote=True)


# Characters that mean something to some flavour of Markdown anywhere in a line. `|` ends a table's cell, `<`, `>`
# and `&` are HTML, `@` and `#` mention people and issues on GitHub, `:` makes an autolink of `http://`; a backslash
# before ASCII punctuation is always taken literally.
_MARKDOWN = re.compile(r"([\\`*\[\]#|~$]|(?<![0-9A-Za-z])_|_(?![0-9A-Za-z]))")


def markdown(text: str) -> str:
    """Text for a cell of a Markdown table: no pipes, code, links, images, HTML, mentions or line breaks."""
    text = _MARKDOWN.sub(r"\\\1", _UNSAFE.sub(_code, text))
    text = text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    return text.replace("@", "&#64;").replace("://", "&#58;//").replace("www.", "www&#46;")


def csv_cell(text: str) -> str:
    """Text for a CSV cell: what a spreadsheet would take for a formula gets a leading apostrophe."""
    return "'" + text if text.startswith(("=", "+", "-", "@", "\t", "\r")) else text


def json_text(document: str) -> str:
    """A JSON document whose strings are safe to print: C1 controls, direction marks and lone surrogates as `\\uXXXX`.

    `json.dumps(ensure_ascii=False)` escapes only C0; such characters can stand in strings alone, so a substitution
    keeps the document's meaning.
    """
    if document.isascii() and "\x7f" not in document:  # most rows: nothing to look for
        return document
    return _JSON_UNSAFE.sub(_json_code, document)


_JSON_UNSAFE = re.compile(_UNSAFE.pattern.replace("\x00-\x1f\x7f-", "\x7f-"))


def _json_code(match: re.Match[str]) -> str:
    code = ord(match.group())
    if code < 0x10000:
        return f"\\u{code:04x}"
    code -= 0x10000
    return f"\\u{0xD800 + (code >> 10):04x}\\u{0xDC00 + (code & 0x3FF):04x}"
