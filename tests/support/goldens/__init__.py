"""Goldens: what must never change by accident, as files in tests/golden/<subject>/.

    python -m tests.support.goldens             what differs from the files
    python -m tests.support.goldens --write     write them anew; `--write cli names` those of two subjects alone

tests/unit/goldens/test_goldens.py compares each file exactly with what the code makes now, printed by `printing`.
`make campaign ARGS=goldens` changes each subject by a patch and records that its golden fails
(docs/campaigns/goldens.md).

`catalog` lists them. `product` is the one place that imports the product: where a module moves, nothing else here
changes. The state folders in tests/golden/state-folders are no goldens of this kind: they are what a commit wrote, are
never written anew, and are read by all later ones (`state_folders`, `write_state_folders`).
"""
