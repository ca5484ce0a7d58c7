"""Documents that packages of Debian and PyPI ship, in every format, added to a retrieval program."""

from __future__ import annotations

import argparse
import asyncio
import random
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from collections import Counter, defaultdict
from pathlib import Path
from typing import Final

from tests.campaigns.record import Outcome, Table
from tests.support.real_inputs import MOST_MIB, MOST_S, Tried, try_documents

ABOUT: Final = f"""
Documents that packages of Debian and sdists of PyPI ship, as they are, of every suffix in turn until there are 500, are
uploaded to a gateway with a retrieval program, one by one and with `?wait=true`. None may be answered with 5xx, take
more than {MOST_S:g} s, or be `ready` with mojibake: charset-normalizer, which Roundhouse does not use, is the judge.
Retrieval with its parsers stays below {MOST_MIB:,} MiB. Tests try the documents of the machine's own packages.
"""
COUNT: Final = 500
MOST_BYTES: Final = 8 * 1024 * 1024
PYPI: Final = (
    *("odfpy==1.4.1", "openpyxl==3.1.5", "python-docx==1.2.0", "python-pptx==1.0.2", "striprtf==0.0.29"),
    *("pypdf==5.1.0", "pikepdf==9.4.2", "reportlab==4.2.5", "XlsxWriter==3.2.0", "chardet==5.2.0", "ebooklib==0.18"),
)
DEBIAN: Final = (
    *("debmake-doc", "developers-reference", "debian-policy", "debian-faq", "sqlite3-doc", "apt-doc", "git-doc"),
    *("libpython3.11-testsuite", "postfix-doc", "shared-mime-info", "libtasn1-doc", "aspell-doc", "bash-doc"),
)
SUFFIXES: Final = frozenset(
    (
        *(".txt", ".md", ".rst", ".html", ".htm", ".xhtml", ".xml", ".csv", ".tsv", ".json", ".yaml", ".log", ".tex"),
        *(".py", ".c", ".eml", ".pdf", ".docx", ".pptx", ".xlsx", ".xlsm", ".odt", ".ods", ".odp", ".rtf", ".epub"),
        *(".gz", ".svg", ".ics", ".po", ".css", ".js"),
    )
)


def declare_options(parser: argparse.ArgumentParser) -> None:
    """What this campaign can be told besides its seed."""
    parser.add_argument(
        "--corpus", type=Path, help="folder of the unpacked packages, where they are fetched if missing"
    )


def run(seed: int, *, corpus: Path | None = None) -> Outcome:
    """Try 500 documents, chosen by the seed. `corpus` None: the packages are fetched for this run alone."""
    with tempfile.TemporaryDirectory(prefix="rh", ignore_cleanup_errors=True) as folder:
        root = corpus or Path(folder) / "corpus"
        missing = fetch_packages(root)
        files = choose_files(root, seed)
        tried, most_mib = asyncio.run(try_documents(files, Path(folder) / "site"))
    by_format: dict[str, list[Tried]] = defaultdict(list)
    for each in tried:
        by_format[each.path.suffix.lower()].append(each)
    rows = [
        (
            suffix,
            len(entries),
            sum(each.outcome == "ready" for each in entries),
            ", ".join(f"{count} {code}" for code, count in Counter(each.outcome for each in entries).items()),
            f"{max(each.seconds for each in entries):.1f}",
        )
        for suffix, entries in sorted(by_format.items())
    ]
    totals = [("documents", len(tried)), ("ready", sum(each.outcome == "ready" for each in tried))]
    totals += [("peak memory of retrieval with its parsers, MiB", round(most_mib)), ("packages missing", len(missing))]
    failures = [f"{each.path.relative_to(root)}: {each.problem}" for each in tried if each.problem]
    failures += [f"{len(tried)} documents, and not {COUNT}"] if len(tried) < COUNT else []
    failures += [f"retrieval took {most_mib:.0f} MiB"] if most_mib > MOST_MIB else []
    return Outcome(
        (
            Table("Documents", ("what", "figure"), totals),
            Table("Formats", ("suffix", "documents", "ready", "outcomes", "longest, s"), rows),
        ),
        failures,
    )


def choose_files(root: Path, seed: int) -> list[Path]:
    """Return `COUNT` files, of each suffix in turn, in an order of the seed's."""
    chance = random.Random(seed)
    by_suffix: dict[str, list[Path]] = defaultdict(list)
    for path in sorted(root.rglob("*")):
        is_known = path.suffix.lower() in SUFFIXES and path.is_file() and not path.is_symlink()
        if is_known and 0 < path.stat().st_size <= MOST_BYTES:
            by_suffix[path.suffix.lower()].append(path)
    for files in by_suffix.values():
        chance.shuffle(files)
    chosen: list[Path] = []
    while len(chosen) < COUNT and any(by_suffix.values()):
        chosen += [files.pop() for _, files in sorted(by_suffix.items()) if files]
    return chosen[:COUNT]


def fetch_packages(root: Path) -> list[str]:
    """Fetch and unpack what `root` lacks. Returns the packages that could not be fetched."""
    missing = []
    for package in (*PYPI, *DEBIAN):
        folder = root / package
        if folder.is_dir() and any(folder.iterdir()):
            continue
        folder.mkdir(parents=True, exist_ok=True)
        try:
            (_fetch_sdist if package in PYPI else _fetch_debian)(package, folder)
        except (subprocess.SubprocessError, OSError, ValueError, tarfile.TarError) as error:
            print(f"{package}: {error}", flush=True)
            missing.append(package)
    return missing


def _fetch_sdist(package: str, folder: Path) -> None:
    command = [
        sys.executable,
        "-m",
        "pip",
        "download",
        "--quiet",
        "--no-deps",
        "--no-binary=:all:",
        "--dest",
        str(folder),
    ]
    subprocess.run([*command, str(folder), package], check=True, timeout=300)
    for path in list(folder.iterdir()):
        if path.suffix == ".zip":
            with zipfile.ZipFile(path) as archive:
                archive.extractall(folder)
        else:
            with tarfile.open(path) as archive:
                archive.extractall(folder, filter="data")
        path.unlink()


def _fetch_debian(package: str, folder: Path) -> None:
    subprocess.run(["apt-get", "download", "--quiet", package], cwd=folder, check=True, timeout=300)
    [path] = folder.glob("*.deb")
    subprocess.run(["dpkg", "-x", path, folder], check=True, timeout=300)
    path.unlink()
