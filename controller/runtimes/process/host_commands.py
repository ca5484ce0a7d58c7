"""Renders the command lines of engines that run as processes of this host, and checks that their programs are here."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from controller.artifacts.model_roots import ModelRoots
from controller.engines import get_engine
from controller.engines.base import ClaimedGpu, Launch, RenderContext
from controller.runtimes.base import RENDER_ERRORS, no_command_error
from controller.runtimes.engine_paths import find_engine_paths
from controller.runtimes.process.preflight import check_program
from controller.schema.desired import Definition


def find_executables(python: str = sys.executable) -> Mapping[str, str]:
    """Return the absolute paths of the programs of engines on this host, by name; a missing program is left out.

    `python`: path of the interpreter that runs the workers.
    """
    paths = {"python": python, "llama-server": shutil.which("llama-server")}
    return {name: path for name, path in paths.items() if path}


@dataclass(frozen=True, slots=True)
class HostCommands:
    """What the command lines of all engines of one host have in common. It starts nothing and writes nothing."""

    roots: ModelRoots
    """Absolute folders of models."""
    cache_dir: Path
    """Folder where engines keep what they compile or download. It need not exist."""
    host: str
    """Address that engines listen on."""
    executables: Mapping[str, str]
    """As `find_executables` returns them."""

    def render_command(
        self,
        definition: Definition,
        served_name: str,
        port: int,
        gpus: tuple[ClaimedGpu, ...] = (),
        host: str | None = None,
        index: int = 0,
    ) -> Launch:
        """Return the command line and the environment of one replica, the one with the number `index` of its model.
        `host` None: the host of all engines.

        Raises ValueError, TypeError or KeyError (`RENDER_ERRORS`) if the definition yields no command line, OSError if
        a path cannot be looked at.
        """
        engine = get_engine(definition)
        context = RenderContext(
            runtime="process",
            served_name=served_name,
            models_root=PurePosixPath(self.roots.resolve().first),
            host=host or self.host,
            port=port,
            cache_dir=PurePosixPath(self.cache_dir),
            executables=self.executables,
            index=index,
            gpus=gpus,
            model_paths=find_engine_paths(self.roots, engine.list_paths(definition)),
        )
        return engine.render_command(definition, context)

    def check_command(self, definition: Definition, served_name: str) -> str | None:
        """Return why no process could be started for a definition, by its command line, its program and the Python
        package that it needs; None: it could. The model's files are not checked. Raises nothing."""
        try:
            return check_program(self.render_command(definition, served_name, port=1).argv)
        except RENDER_ERRORS as error:
            return str(no_command_error(served_name, error))
        except OSError as error:
            return f"the program of {served_name} cannot be looked at: {error}"
