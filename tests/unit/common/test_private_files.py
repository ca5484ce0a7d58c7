"""Files of the state folder that earlier versions left readable for others."""

from __future__ import annotations

from pathlib import Path

from common.private_files import is_open_to_others, narrow_files


def test_files_are_narrowed_and_nothing_else_is_touched(tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.write_text("")
    outside.chmod(0o644)
    folder = tmp_path / "state"
    (folder / "sub").mkdir(parents=True)
    (folder / "sub").chmod(0o755)
    modes = {"read": 0o644, "written": 0o602, "shared": 0o640, "own": 0o600}
    for name, mode in modes.items():
        (folder / name).write_text(name)
        (folder / name).chmod(mode)
    (folder / "link").symlink_to(outside)
    narrow_files(folder)
    found = {name: (folder / name).stat().st_mode & 0o777 for name in modes}
    assert found == {"read": 0o600, "written": 0o600, "shared": 0o640, "own": 0o600}
    assert (folder / "sub").stat().st_mode & 0o777 == 0o755
    assert outside.stat().st_mode & 0o777 == 0o644
    narrow_files(tmp_path / "missing")


def test_a_folder_that_others_may_use(tmp_path: Path) -> None:
    for mode, is_open in ((0o700, False), (0o750, False), (0o701, True), (0o755, True)):
        tmp_path.chmod(mode)
        assert is_open_to_others(tmp_path) is is_open
    assert not is_open_to_others(tmp_path / "missing")
