"""Run inside a controller's container: what a Docker runtime does there, told as one line of JSON.

`python contained_controller.py JSON`, with `instance`, `models`, `model_path`, `network`, `images`, `shell`, `serve`.
"""

from __future__ import annotations

import asyncio
import json
import sys
import urllib.request
from pathlib import Path
from typing import Any

from contract.desired import Definition
from controller.artifacts.model_roots import split_folders
from controller.engines.llama_server import LlamaServerDefinition
from controller.engines.stub import StubDefinition
from controller.runtimes.base import StartRequest, replica_name
from controller.runtimes.docker.runtime import DockerOptions, DockerSetupError, open_docker
from controller.state import Phase, ReplicaId

TOKEN = "a token"


async def main(settings: dict[str, Any]) -> dict[str, Any]:
    """Start an engine that reads its model and, where told to `serve`, one that answers; what came of it."""
    try:
        options = DockerOptions(
            instance=settings["instance"],
            models=split_folders(settings["models"]),
            state=Path("/state"),
            images=settings["images"],
            engines_network=settings["network"],
        )
        runtime = await open_docker(options)
    except DockerSetupError as error:
        return {"refused": str(error)}

    def request(model: str, definition: Definition) -> StartRequest:
        replica = ReplicaId(model, 0, "0123456789abcdef")
        name = replica_name(settings["instance"], replica)
        return StartRequest(replica, name, definition, model, definition.image, TOKEN)

    answering = request("stub", StubDefinition(backend="stub", stub_text="from inside"))
    body = 'cat "$2"; cat < /dev/null > "$2.new"'
    definition = LlamaServerDefinition(model_path=settings["model_path"], image=settings["shell"], env={"BODY": body})
    reading = request("reader", definition)
    wanted = (answering, reading) if settings["serve"] else (reading,)
    try:
        preflights = [await runtime.check_preflight(each.served_name, each.definition, None) for each in wanted]
        for each in wanted:
            await runtime.start_replica(each)
        answer: dict[str, Any] = {"preflights": [each.error for each in preflights]}
        async with asyncio.timeout(60):
            async for _ in runtime.watch_events():
                seen = {each.name: each for each in await runtime.list_replicas()}
                if seen[reading.name].phase is Phase.EXITED:
                    break
            answer["read"] = await runtime.read_log_tail(reading.name)
            if settings["serve"]:
                engine = seen[answering.name]
                answer |= {"name": engine.name, "base_url": engine.base_url, "gpus": await runtime.read_gpus()}
                answer["text"] = await asyncio.to_thread(complete, str(engine.base_url))
        return answer
    finally:
        for each in wanted:
            await runtime.stop_replica(each.name, 10)
        await runtime.close()


def complete(url: str) -> str:
    """An engine's answer, once it has loaded."""
    headers = {"Authorization": f"Bearer {TOKEN}", "Content-Type": "application/json"}
    data = json.dumps({"prompt": "a"}).encode()
    while True:
        try:
            with urllib.request.urlopen(
                urllib.request.Request(f"{url}/v1/completions", data, headers), timeout=60
            ) as got:
                return str(json.load(got)["choices"][0]["text"])
        except OSError:
            continue


if __name__ == "__main__":
    print(json.dumps(asyncio.run(main(json.loads(sys.argv[1])))))
