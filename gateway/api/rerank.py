"""POST /v1/rerank and /rerank: Jina's, and Cohere's v1; /v2/rerank: Cohere's v2."""

from __future__ import annotations

from fastapi import FastAPI

from gateway.api.declare import declare_inference
from gateway.api.schemas import CohereRanking, CohereRerankRequest, Ranking, RerankRequest
from gateway.exchange.api_spec import ApiSpec

_V1, _ALIAS, _V2 = APIS = (
    ApiSpec("/v1/rerank", inputs=("documents",), whole_copies=4, scope="inference"),
    ApiSpec("/rerank", inputs=("documents",), whole_copies=4, scope="inference"),
    ApiSpec("/v2/rerank", inputs=("documents",), whole_copies=4, scope="inference"),
)


def declare(app: FastAPI) -> None:
    """Add the routes of `APIS` to `app`, so that its OpenAPI document has them and other methods on their paths get
    `method_not_allowed`. The requests themselves are served by `InferenceDispatcher`, which must be given `APIS`,
    too."""
    text = "Documents by how well they answer a query, the best first. Scores are the engine's own: some give \
probabilities, some logits. Takes the bodies of Jina and of Cohere's v1, and answers what clients of both read."
    declare_inference(app, _V1, request=RerankRequest, answer=Ranking, summary="Rerank", text=text)
    declare_inference(app, _ALIAS, request=RerankRequest, answer=Ranking, summary="Rerank", text="As /v1/rerank.")
    text = "As /v1/rerank, in the form of Cohere's v2."
    declare_inference(app, _V2, request=CohereRerankRequest, answer=CohereRanking, summary="Rerank, v2", text=text)
