"""Whether to ask an engine for a stream and gather it, where the client asked for a blocking answer.

An engine that does not notice when the client of a blocking call leaves notices it of a stream. Gathering costs work
for each token, so an answer that is expected to be short is not gathered.
"""

from __future__ import annotations

from controller.schema.routing import ModelRoute
from gateway.exchange.attempt import Attempt
from gateway.exchange.services import Services
from gateway.protocols.common.request import InferenceRequest
from gateway.tenancy.rate_limits import BYTES_PER_TOKEN, answer_bound


def should_gather(services: Services, route: ModelRoute, request: InferenceRequest) -> bool:
    """Return whether to ask the engine for a stream and gather it into the blocking answer to `request`.

    False if the engine notices when a client leaves, or the answer is expected to take less than `gather_after_s`
    seconds. True if the expected time is not known. Whether the API and its family can be gathered is not checked.
    """
    return not (route.notices_leaving or _ends_soon(services, route.name, request))


def learn_pace(services: Services, route: ModelRoute, attempt: Attempt) -> None:
    """Record how long a complete answer took, for `should_gather`. Does nothing if the engine counted no tokens.

    Call at the answer's last byte, for a model whose engine does not notice when a client leaves (`notices_leaving`).
    """
    usage = attempt.usage
    if usage is not None:
        pace = services.paces.of(route.name)
        pace.record_answer(usage.prompt, usage.completion, services.now() - attempt.sent_at)


def _ends_soon(services: Services, model: str, request: InferenceRequest) -> bool:
    fields = request.outline_fields
    expected_s = services.paces.of(model).expected_s(
        request.size // BYTES_PER_TOKEN, answer_bound(fields), runs_to_bound=bool(fields.get("ignore_eos"))
    )
    return expected_s is not None and expected_s < services.settings.gather_after_s
