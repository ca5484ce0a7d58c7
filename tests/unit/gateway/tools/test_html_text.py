"""Pages as text."""

from __future__ import annotations

import pytest

from gateway.tools.files.html_text import extract_text


@pytest.mark.parametrize(
    ("markup", "text"),
    [
        ("", ""),
        ("<p>a<p>b", "a\n\nb"),
        ("a<br>b", "a\nb"),
        ("<h1>A</h1><h3>B</h3>c", "# A\n\n### B\n\nc"),
        ("<ul><li>a</li><li>b</li></ul>", "- a\n- b"),
        ("<title>T</title><p>a", "T\n\na"),
        ("<head><title>T</title><meta x><style>s</style></head><body>a", "T\n\na"),
        ("<head><title>T</title><body>a", "T\n\na"),
        ("<script>x<p>y</script>a<style>z</style>", "a"),
        ("<noscript>x</noscript><svg><text>y</text></svg>a", "a"),
        ("a &amp; b &lt;c&gt; &eacute;", "a & b <c> \u00e9"),
        ("a\u00a0 \t b", "a b"),
        ('<a href="https://x.org/">x</a>', "[x](https://x.org/)"),
        ('<a href="javascript:alert(1)">x</a><a>y</a></a>', "xy"),
        ("<table><tr><th>a<th>b<tr><td>1<td>2</table>", "| a | b\n\n| 1 | 2"),
        ("<!-- c -->a", "a"),
        ("a</p></div></script></svg>b", "a\n\nb"),
        ("<![CDATA[x]]>a", "a"),
        ("<svg>x", ""),
    ],
)
def test_texts(markup: str, text: str) -> None:
    assert extract_text(markup) == text
