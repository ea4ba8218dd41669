"""The models that requests of `/v1` can name."""

from __future__ import annotations

from switchyard.api.http.problems import Problem
from switchyard.api.models import openai as models
from switchyard.services.common.settings import Settings


def served_models(settings: Settings) -> list[models.ServedModel]:
    """Return the models of all servers, each once."""
    owners: dict[str, list[str]] = {}
    search = settings.for_embeddings
    for server in (*settings.llm_servers, *(search.llm_servers if search else ())):
        for name in (server.model, *server.aliases):
            owners.setdefault(name, []).append(server.name)
    return [
        models.ServedModel(id=name, owned_by=", ".join(dict.fromkeys(servers)))
        for name, servers in owners.items()
    ]


def check_model(settings: Settings, model: str, *, embeds: bool = False) -> None:
    """Raise Problem where no server has the model; with `embeds`, that for search may have it."""
    servers = settings.llm_servers
    if embeds and settings.for_embeddings is not None:
        servers += settings.for_embeddings.llm_servers
    if any(each.serves(model) for each in servers):
        return
    known = ", ".join(each.id for each in served_models(settings)[:10])
    advice = f"one of: {known}" if known else "the operator has to set JOBS_LLM_BASE_URL"
    raise Problem("unknown-model", f"no server has the model {model!r}; {advice}")
