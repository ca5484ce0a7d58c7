"""Small patches of the product, of which each must make a golden fail. Found by their text, so that files may move."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True)
class Change:
    """`find`, which is there exactly once, becomes `replace`."""

    golden: str
    """The one that must fail: its name, or the test of the state folders that must."""
    what: str
    find: str
    replace: str

    @property
    def subject(self) -> str:
        return self.golden.partition("/")[0]


CHANGES: Final = (
    Change("engines/llama_server", "a flag is another", '"--kv-unified"', '"--kv-split"'),
    Change("engines/llama_cpp", "a flag is another", 'Flag("--n-ctx")', 'Flag("--context")'),
    Change("engines/vllm", "a flag is left out", '        "--disable-uvicorn-access-log",\n', ""),
    Change("engines/vllm_serve", "another program", '(binary or "vllm", "serve")', '(binary or "vllm", "server")'),
    Change("engines/exllamav3", "a flag is another", 'Flag("--cache-size")', 'Flag("-c")'),
    Change("engines/ct2", "a flag is another", 'Flag("--compute-type")', 'Flag("--type")'),
    Change("engines/litert_lm", "another folder of the cache", '/ "litert-lm"', '/ "litert"'),
    Change(
        "engines/onnx",
        "a field counts no longer in the spec hash",
        '"--no-normalize"), Hashed.ALWAYS',
        '"--no-normalize"), Hashed.NEVER',
    ),
    Change("engines/openai_remote", "another default", 'default="/models", description=', 'default="/", description='),
    Change("engines/stub", "a container may write to its root", '"ReadonlyRootfs": True', '"ReadonlyRootfs": False'),
    Change("engines/stub", "the spec hash counts one thing less", '        "served_name": served_name,\n', ""),
    Change("routing/table", "another kind of message", 'Literal["table"] = "table"', 'Literal["routes"] = "routes"'),
    Change("routing/report", "another kind of message", 'Literal["report"] = "report"', 'Literal["told"] = "told"'),
    Change("journal/entries", "an entry says something else", '"the controller stopped"', '"the controller ended"'),
    Change(
        "openapi/document",
        "a parameter has another bound",
        '"schema": {"type": "integer", "minimum": 0},',
        '"schema": {"type": "integer", "minimum": 1},',
    ),
    Change(
        "openapi/document",
        "a path is another",
        '"/v1/admin/models/{name:path}/override",',
        '"/v1/admin/models/{name:path}/statement",',
    ),
    Change("openapi/document", "fewer paths are passed on", '= "/v1/admin/"', '= "/v1/admin/models"'),
    Change("openapi/routes", "a path is another", '.websocket("/internal/link")', '.websocket("/internal/tables")'),
    Change("schema/desired-state", "a field has another bound", "le=31_536_000", "le=31_536_001"),
    Change("cli/roundhouse", "an option is named otherwise", '"--restart"', '"--anew"'),
    Change("cli/worker", "a flag takes another type", '"--token-delay-ms", type=float', '"--token-delay-ms", type=int'),
    Change("cli/exit-codes", "another number", "USAGE = 64", "USAGE = 65"),
    Change(
        "errors/codes", "another status", '"invalid_load_request",\n        400', '"invalid_load_request",\n        422'
    ),
    Change(
        "metrics/families",
        "a metric is named otherwise",
        '"roundhouse_gateway_queue_wait_seconds"',
        '"roundhouse_gateway_wait_seconds"',
    ),
    Change("settings/variables", "another default", "heartbeat_s: float = Field(10", "heartbeat_s: float = Field(11"),
    Change("names/docker", "labels begin otherwise", '"dev.roundhouse."', '"org.roundhouse."'),
    Change(
        "names/deployment",
        "the controller listens elsewhere",
        "ROUNDHOUSE_CONTROLLER_LISTEN: controller.control:8090",
        "ROUNDHOUSE_CONTROLLER_LISTEN: controller.control:8091",
    ),
    Change("names/state-folder", "a file is named otherwise", '"observed-memory.json"', '"history.json"'),
    Change("names/strings", "a header is named otherwise", 'b"x-queue-position: %d', 'b"x-queue-place: %d'),
    Change(
        "names/modules",
        "a string names another module",
        '"controller.runtimes.nvml", "--interval"',
        '"controller.runtimes.gpus", "--interval"',
    ),
    Change(
        "state-folders/test_what_a_controller_kept_is_read",
        "the last good state is looked for elsewhere",
        '"desired.json"',
        '"last-good.json"',
    ),
    Change(
        "state-folders/test_what_a_controller_kept_is_read",
        "records of replicas are looked for elsewhere",
        'for path in own_paths if path.suffix == ".json"',
        'for path in own_paths if path.suffix == ".record"',
    ),
    Change(
        "state-folders/test_what_a_gateway_kept_is_read",
        "stored responses are looked for elsewhere",
        '"responses.db"',
        '"answers.db"',
    ),
    Change(
        "state-folders/test_what_a_gateway_of_before_the_first_release_kept_is_refused_and_stays",
        "a file of before the first release is taken for today's",
        "if 0 < version < known_version:",
        "if version < 0:",
    ),
)
