"""State folders that earlier commits wrote, in tests/golden/state-folders/<day>/: read by the code as it is now.

    controller/      what a controller of that day kept, engines running when it ended
    gateway/         its gateway's stored responses
    expected.json    what the code of that day read in both

`write_state_folders` made the newest. They are never written anew: who changes a format adds a folder, and goes on
reading those that a release wrote. The oldest is of before 0.1.0: its `responses.db` has a schema version that is
refused, so `expected.json` has only what its controller read.
"""

from __future__ import annotations

import json
import shutil
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final

from controller.artifacts.model_roots import ModelRoots
from tests.support.goldens.golden import FOLDER
from tests.support.goldens.product import (
    JOURNAL_NAME,
    RESPONSES_NAME,
    DeclaredModel,
    Defaults,
    EventLog,
    HistoryBounds,
    MemoryHistory,
    Records,
    StateDatabase,
    StateDir,
    combine_declarations,
    load_last_good,
    resolve_desired,
)

FOLDERS: Final = FOLDER / "state-folders"
INSTANCE: Final = "golden"
TENANT: Final = "golden"
KEY: Final = "rh-" + "golden" * 7 + "g"
"""A key's secret, known to everybody."""
_FOR_EVER: Final = 1e12


def copy_of(kept: Path, to: Path) -> Path:
    """A kept folder of controller or gateway, as its program would find it."""
    shutil.copytree(kept, to, dirs_exist_ok=True)
    for path in (to, *to.rglob("*")):
        path.chmod(0o700 if path.is_dir() else 0o600)
    return to


def read_controller(folder: Path) -> Any:
    """All that a controller reads in its folder, which it changes by that: give it a copy. Of what it writes today only
    what stood in the files: fields that came later have their defaults."""
    store = StateDir.open_folder(folder)
    try:
        memory = store.load_memory()
        roots = ModelRoots((Path("/srv/roundhouse/models"),))
        files = load_last_good(folder, roots)
        assert files is not None
        settled = combine_declarations(files, memory.declarations, roots).state
        declared = {
            name: DeclaredModel(settled.definitions[name], settled.declared_models[name], 0.0)
            for name in settled.declared_models
        }
        desired = resolve_desired(declared, memory.model_copy(update={"paused": False}), Defaults(), generation=1)
        observed = MemoryHistory.load_history(folder)
        needs = {name: observed.largest_observed(want, None) for name, want in desired.models.items()}
        journal = EventLog(folder / JOURNAL_NAME)
        try:
            entries = journal.read_after(0, 10_000)
        finally:
            journal.close()
        return _plain(
            {
                "instance": store.instance,
                "secret": store.secret.hex(),
                "next_epoch": store.next_epoch(1.0),
                "memory": memory.model_dump(mode="json", exclude_unset=True),
                "definitions": {
                    name: each.model_dump(mode="json", exclude_unset=True) for name, each in settled.definitions.items()
                },
                "keys": {name: each.model_dump(mode="json", exclude_unset=True) for name, each in settled.keys.items()},
                "wanted": {
                    name: {"replicas": want.replicas, "spec_hash": want.spec_hash, "statement": want.statement.kind}
                    for name, want in desired.models.items()
                },
                "observed_memory": {name: asdict(need) for name, need in needs.items() if need is not None},
                "journal": [each.model_dump(mode="json", exclude_unset=True) for each in entries],
                "replicas": [
                    each.model_dump(mode="json", exclude_unset=True)
                    for each in Records(folder / "replicas", store.instance).read_records()
                ],
            }
        )
    finally:
        store.close()


def read_gateway(folder: Path, responses: list[str]) -> Any:
    """What a gateway reads of these stored responses in its folder: give it a copy."""
    database = StateDatabase(folder / RESPONSES_NAME, max_bytes=2**30, retention_s=_FOR_EVER, clock=time.time)
    try:
        return _plain(
            {
                "stored": database.count_stored().responses,
                "order": responses,
                "responses": {each: database.find_response(TENANT, each) for each in responses},
                "input": {each: database.list_input_items(TENANT, each) for each in responses},
                "history": list(database.load_history(TENANT, responses[-1], (), HistoryBounds(2**20)).items),
            }
        )
    finally:
        database.close()


def _plain(value: Any) -> Any:
    return json.loads(json.dumps(value))
