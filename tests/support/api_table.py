"""Which APIs the models of each backend have: the table of docs/models.md, as the code says it.

`python -m tests.support.api_table` prints it, to be pasted into the page.
"""

from __future__ import annotations

from typing import Any

from controller.engines import ENGINES
from gateway.protocols.api_matrix import offered_paths, serving_option
from gateway.protocols.common.request import InferenceRequest
from tests.fakes.fake_controller import route

_NEEDED: dict[str, dict[str, Any]] = {"openai_remote": {"base_url": "http://x/v1"}, "stub": {}}
_ANY = InferenceRequest(b"{}", {}, "m", stream=False, wants_usage=False)


def native_apis(backend: str, **fields: Any) -> tuple[str, ...]:
    """What an engine of such a definition speaks itself."""
    needed = _NEEDED.get(backend, {"model_path": "m.gguf"})
    definition = ENGINES[backend].definition.model_validate({"backend": backend, **needed, **fields})
    return ENGINES[backend].list_apis(definition)


def modes() -> list[tuple[str, ...]]:
    """Backend, and the field that makes it serve something else than text."""
    found: list[tuple[str, ...]] = []
    for name, engine in ENGINES.items():
        if name != "openai_remote":
            fields = [field for field in engine.definition.model_fields if field.endswith(("_embedding", "_reranking"))]
            found += [(name,), *((name, field) for field in fields)]
    return found


def api_rows() -> list[str]:
    """Models, what is passed through, what is translated: one row for all backends and modes that have the same."""
    names: dict[tuple[str, str], list[str]] = {}
    for backend, *mode in modes():
        made = route("m", apis=native_apis(backend, **dict.fromkeys(mode, True))).model_copy(
            update={"backend": backend}
        )
        passed: list[str] = []
        translated: list[str] = []
        for path in offered_paths(made):
            way = serving_option(path, _ANY, made)
            (passed if way.target is None else translated).append(f"`{path}`")
        name = f"`{backend}`" + "".join(f" with `{field}`" for field in mode)
        names.setdefault((", ".join(passed), ", ".join(translated)), []).append(name)
    return [f"| {', '.join(same)} | {passed} | {translated} |" for (passed, translated), same in names.items()]


if __name__ == "__main__":
    print("\n".join(api_rows()))
