"""What readers ask of the pages themselves: the meaning of their words, and a summary for models."""

from __future__ import annotations

from fastapi import APIRouter, Request, Response
from fastapi.responses import PlainTextResponse

from meshwright.launchers.registry import launcher_names
from meshwright.service.api.deps import READS, ServiceDep
from meshwright.service.report.glossary import glossary
from meshwright.service.web.rendering import page

router = APIRouter()


@router.get("/words", dependencies=[READS])
def show_words(request: Request) -> Response:
    """Return the meaning of each word that tables, pages and reports use."""
    return page(request, "words.html", parts=glossary())


_LLMS = """# Meshwright

> Finds the fastest way to split the training of a language model over your GPUs: tensor, pipeline, data,
> context and expert parallelism, micro-batch, recomputation and ZeRO. It predicts step time and memory of
> each plan and writes launch files for {launchers}.

This service searches questions as jobs. Keys, where the service has them, are bearer tokens.

- POST {base}v1/jobs with {{"model": "qwen3-8b", "cluster": {{"gpu": "a100-40gb", "num_gpus": 4}},
  "workload": {{"global_batch_size": 64, "seq_length": 4096, "lora_rank": 16}}}} submits a question.
- GET {base}v1/jobs/ID?wait=30 waits for its end. GET {base}v1/jobs/ID/plans returns the ranked plans.
- GET {base}v1/plans/PLAN_ID/export returns launch files of a plan.
- POST {base}v1/predictions prices a configuration or a launch file of your own.
- Errors are problem documents (RFC 9457) with a pointer, the allowed range and the nearest value.

## API

- [OpenAPI document]({base}openapi.json): every operation, with examples
- [Schema of a question]({base}schemas/problem.json)
{docs}"""


@router.get("/llms.txt")
def describe_for_models(request: Request, service: ServiceDep) -> PlainTextResponse:
    """Return what this service is and where its API is, for language models (llmstxt.org)."""
    address = service.settings.docs_url.rstrip("/")
    pages = {"Documentation": "", "Operations as a page": "reference/api.html"} if address else {}
    docs = "\n## Docs\n\n" * bool(pages) + "".join(
        f"- [{name}]({address}/{page})\n" for name, page in pages.items()
    )
    text = _LLMS.format(base=request.base_url, docs=docs, launchers=", ".join(launcher_names()))
    return PlainTextResponse(text)
