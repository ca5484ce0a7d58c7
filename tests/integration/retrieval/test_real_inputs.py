"""Documents as they are found: the campaign `real_inputs` over what this machine's own packages ship."""

from __future__ import annotations

import gzip
import sysconfig
from pathlib import Path

import pytest

from tests.support.real_inputs import find_mojibake, try_documents

SUFFIXES = (".txt", ".md", ".rst", ".html", ".json", ".csv", ".xml", ".toml", ".py", ".js", ".css")
GREEK = "Οι επιβάτες πρέπει να αγοράσουν εισιτήριο πριν από την αναχώρηση του τρένου. "  # noqa: RUF001 - it is Greek
RUSSIAN = "Пассажиры должны купить билет до отправления поезда, иначе их не пустят в вагон. "


def find_documents() -> list[Path]:
    """Return the largest file below 100 kB of each suffix that the installed packages have."""
    found: dict[str, Path] = {}
    for path in sorted(Path(sysconfig.get_path("purelib")).rglob("*")):
        if path.suffix in SUFFIXES and path.is_file() and 0 < path.stat().st_size < 100_000:
            known = found.get(path.suffix)
            if known is None or known.stat().st_size < path.stat().st_size:
                found[path.suffix] = path
    return list(found.values())


async def test_documents_of_packages_are_read_or_refused(tmp_path: Path) -> None:
    files = find_documents()
    assert len(files) > 5
    for name, text, encoding in (("el.txt", GREEK, "iso8859-7"), ("ru.html", RUSSIAN, "koi8-r")):
        (tmp_path / name).write_bytes((text * 20).encode(encoding))
    (tmp_path / "ru.txt.gz").write_bytes(gzip.compress(RUSSIAN.encode()))
    tried, _ = await try_documents([*files, *(tmp_path.glob("*.*"))], tmp_path / "site")
    assert [f"{each.path}: {each.problem}" for each in tried if each.problem] == []
    outcomes = {each.path.name: each.outcome for each in tried}
    assert sum(outcome == "ready" for outcome in outcomes.values()) >= len(files), outcomes


@pytest.mark.parametrize(("text", "encoding"), [(GREEK, "iso8859-7"), (RUSSIAN, "koi8-r"), (RUSSIAN, "cp1251")])
def test_the_judge_knows_mojibake(text: str, encoding: str) -> None:
    raw = (text * 20).encode(encoding)
    assert find_mojibake(raw, raw.decode("latin-1")) is not None
    assert find_mojibake(raw, raw.decode(encoding)) is None
    assert find_mojibake(text.encode(), text) is None
