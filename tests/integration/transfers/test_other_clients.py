"""Our choice of files, and our bytes, against the real `huggingface_hub` and the real `llama-server -hf`."""

from __future__ import annotations

import hashlib
import os
import random
import subprocess
from collections.abc import Iterator
from pathlib import Path

import huggingface_hub
import pytest
from huggingface_hub.utils._http import default_client_factory

from tests.support.campaign import campaign_seeds
from tests.support.fake_hub import FakeHub, HubRepository, make_repositories
from tests.support.installed_engines import needed, program
from tests.support.ports import free_port
from tests.support.transfers_harness import error_code, hash_files, list_models, open_site
from transfers.sources.model_files import NoSuchFileError, choose_files

TOKEN = "hf_tester"
QUANTISATIONS = ("Q4_K_M", "Q8_0", "Q6_K", "IQ3_XXS", "UD-Q5_K_XL", "q2_k", "BF16", "MXFP4")


@pytest.fixture
def own_client() -> Iterator[None]:
    """`huggingface_hub` connects as it does by itself, and not through our checks."""
    huggingface_hub.set_client_factory(default_client_factory)
    yield
    huggingface_hub.close_session()


@pytest.mark.parametrize("repository", make_repositories(), ids=lambda each: each.name)
def test_the_real_client_gets_the_same_bytes(
    repository: HubRepository, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    is_pickle = repository.name == "tiny/pickle"
    with FakeHub([repository], page=3) as hub:
        with open_site(tmp_path / "models", hub.endpoint, token=TOKEN) as site:
            assert site.pull(repository.name, include_pickle=is_pickle).state == "finished"
            ours = list_models(site.models)
        request.getfixturevalue("own_client")
        folder = huggingface_hub.snapshot_download(
            repository.name,
            endpoint=hub.endpoint,
            token=TOKEN,
            local_dir=tmp_path / "theirs",
            cache_dir=tmp_path / "cache",
        )
    assert ours
    theirs = {
        f"{repository.name}/{path}": hashlib.sha256(Path(folder, path).read_bytes()).hexdigest()
        for path in repository.files
    }
    assert ours.items() <= theirs.items()


@pytest.mark.parametrize(
    ("reference", "token", "outcome"),
    [
        ("tiny/gated-GGUF", None, "source_forbidden"),
        ("tiny/gated-GGUF", "hf_of_nobody", "source_forbidden"),
        ("tiny/gated-GGUF", TOKEN, None),
        ("tiny/private-GGUF", None, "source_not_found"),
        ("tiny/private-GGUF", TOKEN, None),
        ("tiny/missing", TOKEN, "source_not_found"),
        ("tiny/llama-GGUF@nothing", None, "source_not_found"),
        ("tiny/llama-GGUF@main", None, None),
        ("tiny/llama-GGUF:Q3_K", None, "source_not_found"),
        ("hf:tiny/llama-GGUF/missing.gguf", None, "source_not_found"),
        ("tiny/pickle", None, "source_not_found"),
    ],
)
def test_refusals_of_the_hub_are_distinct(
    reference: str, token: str | None, outcome: str | None, tmp_path: Path
) -> None:
    with FakeHub() as hub, open_site(tmp_path / "models", hub.endpoint, token=token) as site:
        found = site.pull(reference)
    assert error_code(found) == outcome
    assert token is None or token not in found.model_dump_json()


def test_a_pinned_reference_gets_the_same_bytes_after_the_repository_has_changed(tmp_path: Path) -> None:
    name = "model-Q8_0.gguf"
    repository = HubRepository("some/model", {name: b"old" * 1000})
    repository.tags["v1"] = repository.head
    with FakeHub([repository]) as hub:
        with open_site(tmp_path / "a", hub.endpoint) as site:
            pinned = site.pull("some/model").pinned
        repository.commit({name: b"new" * 2000})
        assert pinned is not None
        for folder, reference in (("b", pinned), ("c", "some/model@v1")):
            with open_site(tmp_path / folder, hub.endpoint) as site:
                assert site.pull(reference).state == "finished"
                assert list_models(site.models) == hash_files("some/model", {name: b"old" * 1000})


def make_listing(chance: random.Random) -> tuple[list[str], str | None]:
    """Names of files as repositories of GGUF files have them, and a quantisation that is asked for; None: none is."""
    chosen = chance.sample(QUANTISATIONS, chance.randrange(1, 5))
    in_folders = chance.random() < 0.3
    names = ["README.md", "config.json"]
    for each in chosen:
        folder = f"{each}/" if in_folders else ""
        if chance.random() < 0.3:
            count = chance.randrange(2, 4)
            names += [f"{folder}model-{each}-{number:05d}-of-{count:05d}.gguf" for number in range(1, count + 1)]
        else:
            names.append(f"{folder}model{chance.choice('-.')}{each}.gguf")
    if chance.random() < 0.5:
        half = chance.choice(["F16", "BF16"])
        names += [f"mmproj-model-{each}.gguf" for each in chance.sample(["F32", "Q8_0", half], chance.randrange(1, 4))]
        if in_folders and chance.random() < 0.5:
            names.append(f"{chosen[0]}/mmproj-{half}.gguf")
    beside = ["model-imatrix.gguf", "imatrix-Q4_K_M.gguf", "mtp-model-Q4_K_M.gguf", "eagle3-model-Q8_0.gguf"]
    names += chance.sample(beside, chance.randrange(3))
    asked = chance.choice([None, chance.choice(chosen), chance.choice(QUANTISATIONS).lower()])
    return names, asked


def ask_llama_server(folder: Path, hub: FakeHub, reference: str) -> set[str]:
    """The files that `llama-server -hf` fetches. What they hold is no model, so it ends by itself."""
    environment = {"PATH": os.environ["PATH"], "HOME": str(folder), "HF_HOME": str(folder / "hf")}
    subprocess.run(
        [program(), "-hf", reference, "--host", "127.0.0.1", "--port", str(free_port()), "--fit", "off"],
        env={**environment, "MODEL_ENDPOINT": f"{hub.endpoint}/"},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        timeout=60,
        check=False,
    )
    snapshots = folder / "hf" / "hub"
    found = (path.relative_to(snapshots).parts for path in snapshots.glob("*/snapshots/*/**/*") if not path.is_dir())
    return {"/".join(parts[3:]) for parts in found}


@pytest.mark.parametrize("seed", campaign_seeds(6, 100))
def test_llama_server_chooses_the_same_files(seed: int, tmp_path: Path) -> None:
    needed("binary")
    names, asked = make_listing(random.Random(seed))
    try:
        ours = set(choose_files(names, quantisation=asked, path=None, include_pickle=False).paths)
    except NoSuchFileError:
        ours = set()
    contents: dict[str, bytes | Path] = {name: f"no model: {name}".encode() for name in names}
    with FakeHub([HubRepository("some/model", contents)]) as hub:
        reference = "some/model" if asked is None else f"some/model:{asked}"
        assert ask_llama_server(tmp_path, hub, reference) == ours, (sorted(names), asked)


@pytest.mark.parametrize(
    ("names", "asked", "ours"),
    [
        (["mmproj-BF16.gguf", "mmproj-F16.gguf", "model-Q8_0.gguf"], None, {"mmproj-F16.gguf", "model-Q8_0.gguf"}),
        (["model-BF16.gguf", "model-F16.gguf"], "F16", {"model-F16.gguf"}),
    ],
)
def test_where_we_choose_otherwise_on_purpose(names: list[str], asked: str | None, ours: set[str]) -> None:
    """llama-server takes the first of two projectors of the same precision, and `BF16` for `F16`."""
    assert set(choose_files(names, quantisation=asked, path=None, include_pickle=False).paths) == ours
